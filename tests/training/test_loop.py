"""The loop: it learns, keeps the best, stops when asked and on bad steps; looks change nothing."""

import math
import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from everyhead.errors import UserError
from everyhead.training.checkpoints import complete_checkpoints
from everyhead.training.loop import Interrupted
from everyhead.training.metrics import read_rows
from tests.training import tiny

UP = "decoder.blocks.0.feed_forward.up_proj.bias"


def test_it_learns_one_batch_by_heart(tmp_path: Path):
    ids = tiny.pairs(4)
    settings = {"max_steps": 80, "warmup": 10, "peak": 3e-2, "label_smoothing": 0.0}
    trainer = tiny.trainer(tmp_path, ids=ids, dropout=0.0, evaluate_every=1000, **settings)
    trainer.fit()
    losses = [row["loss"] for row in read_rows(tmp_path) if row["kind"] == "train"]
    assert losses[0] > 2 and losses[-1] < 0.05
    model, batch = trainer.model.eval(), tiny.batch(ids, [0, 1, 2, 3])
    said = model(batch.source, batch.target_in, batch.source_mask, batch.target_mask).argmax(-1)
    assert torch.equal(said[batch.target_mask], batch.labels[batch.target_mask])


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "inverse_square_root", "factor": 0.5, "optimizer": "adam"},
        {"schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.1, "clip": 0},
    ],
    ids=["inverse square root", "cosine"],
)
def test_rows_say_the_rate_that_was_used_and_the_tokens_that_were_seen(tmp_path, settings):
    told = tiny.Told()
    trainer = tiny.trainer(tmp_path, listener=told, accumulate=2, **settings)
    trainer.fit()
    train = [row for row in told.rows if row["kind"] == "train"]
    assert [row["step"] for row in train] == [3, 6, 9, 12, 15, 18, 20]
    assert [row["lr"] for row in train] == [trainer.rate(row["step"]) for row in train]
    assert [row["tokens"] for row in train] == [
        sum(report.n_tokens for report in told.reports[: row["step"]]) for row in train
    ]
    three = told.reports[:3]
    mean = sum(r.smoothed for r in three) / sum(r.n_tokens for r in three)
    assert train[0]["loss"] == pytest.approx(mean)
    assert read_rows(tmp_path) == told.rows


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path):
    ends = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        trainer = tiny.trainer(tmp_path / name, seed=seed)
        trainer.fit()
        ends.append(tiny.weights(trainer.model))
    assert tiny.same(ends[0], ends[1]) and not tiny.same(ends[0], ends[2])


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_estimate_and_the_evaluations_change_nothing(tmp_path: Path, accumulate, monkeypatch):
    told = tiny.Told()
    looked = tiny.trainer(tmp_path / "a", listener=told, accumulate=accumulate, evaluate_every=1)
    looked.fit()
    assert len(told.estimates) == 1 and told.estimates[0] > 0
    blind = tiny.trainer(tmp_path / "b", accumulate=accumulate)
    monkeypatch.setattr(blind, "_seconds_per_step", lambda: 0.0)
    monkeypatch.setattr(blind, "_evaluate", lambda: None)
    blind.fit()
    assert tiny.same(tiny.weights(looked.model), tiny.weights(blind.model))


# ---------------------------------------------------------------- the best weights


def fit_with_scores(tmp_path: Path, scores: list[dict], **recipe):
    """Weights saved as best, by the step of the saving."""
    kept, left = [], list(scores)

    def score(model):
        assert not model.training
        model.train()  # a scorer may leave it in any mode
        return left.pop(0)

    trainer = tiny.trainer(
        tmp_path, score=score, save=lambda m: kept.append((trainer.state.step, tiny.weights(m))),
        **recipe,
    )  # fmt: skip
    trainer.fit()
    return trainer, kept


def test_the_best_by_bleu_is_kept_and_of_equals_the_later(tmp_path: Path):
    scores = [{"bleu": b, "chrf": 1.0} for b in (0.0, 0.0, 9.5, 3.0)]
    trainer, kept = fit_with_scores(tmp_path, scores)
    assert [step for step, _ in kept] == [5, 10, 15]
    assert (trainer.state.best, trainer.state.best_step) == (9.5, 15)
    assert not tiny.same(kept[-1][1], tiny.weights(trainer.model))
    rows = [row for row in read_rows(tmp_path) if row["kind"] == "validation"]
    assert [row["bleu"] for row in rows] == [0.0, 0.0, 9.5, 3.0]
    assert all(row["perplexity"] == pytest.approx(math.exp(row["loss"])) for row in rows)


def test_the_best_by_loss_if_so_chosen_or_if_there_is_no_bleu(tmp_path: Path):
    scores = [{"bleu": float(b)} for b in (9, 8, 7, 6)]
    chosen, by_choice = fit_with_scores(tmp_path / "a", scores, best="loss")
    _, without = fit_with_scores(tmp_path / "b", [{} for _ in range(4)])
    rows = [row for row in read_rows(tmp_path / "a") if row["kind"] == "validation"]
    lowest = min(rows, key=lambda row: row["loss"])
    assert chosen.state.best_step == lowest["step"] == by_choice[-1][0] == without[-1][0]


def test_a_score_that_is_not_finite_is_never_the_best(tmp_path: Path):
    scores = [{"bleu": float("nan")}, {"bleu": 1.0}, {"bleu": float("inf")}, {"bleu": 0.5}]
    trainer, kept = fit_with_scores(tmp_path, scores)
    assert [step for step, _ in kept] == [10] and trainer.state.best == 1.0


def test_if_no_score_was_ever_finite_the_last_weights_are_kept(tmp_path: Path):
    trainer, kept = fit_with_scores(tmp_path, [{"bleu": float("nan")} for _ in range(4)])
    assert [step for step, _ in kept] == [20] and trainer.state.best_step == 20
    assert complete_checkpoints(tmp_path)[-1].name == "step-20"


# ---------------------------------------------------------------- signals


class Sends(tiny.Told):
    """Sends this process a signal when a step is done."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__()
        self.number, self.step = number, step

    def stepped(self, state, report, rate) -> None:
        if state.step == self.step:
            signal.raise_signal(self.number)


def straight(tmp_path: Path) -> dict[str, torch.Tensor]:
    trainer = tiny.trainer(tmp_path / "straight")
    trainer.fit()
    return tiny.weights(trainer.model)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("step", [4, 7])
def test_a_signal_finishes_the_step_saves_and_raises(tmp_path: Path, number: int, step: int):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    sends = Sends(number, step)
    with pytest.raises(Interrupted, match=f"stopped at step {step}") as stop:
        tiny.trainer(tmp_path, listener=sends).fit()
    assert (stop.value.signal_number, stop.value.step) == (number, step)
    assert [p.name for p in complete_checkpoints(tmp_path)] == [f"step-{step}"]
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before
    resumed = tiny.trainer(tmp_path)
    resumed.resume()
    resumed.fit()
    assert tiny.same(tiny.weights(resumed.model), straight(tmp_path))


def test_a_second_signal_stops_at_once_and_what_was_saved_stands(tmp_path: Path):
    class Twice(Sends):
        def stepped(self, state, report, rate):
            if state.step == self.step:
                signal.raise_signal(self.number)
                signal.raise_signal(self.number)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        tiny.trainer(tmp_path, listener=Twice(signal.SIGINT, 9)).fit()
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-7"]
    assert signal.getsignal(signal.SIGINT) is before


def test_handlers_are_put_back_after_an_ordinary_end_and_after_an_error(tmp_path: Path):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    tiny.trainer(tmp_path / "a", max_steps=1).fit()
    broken = tiny.trainer(tmp_path / "b")
    broken.stream.take = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        broken.fit()
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_in_a_thread_it_trains_without_touching_signals(tmp_path: Path):
    ends: list[int] = []
    trainer = tiny.trainer(tmp_path, max_steps=2)
    thread = threading.Thread(target=lambda: ends.append(trainer.fit().step))
    thread.start()
    thread.join(60)
    assert ends == [2]


# ---------------------------------------------------------------- steps that are not finite


class Poison:
    """Makes the gradient of some steps infinite."""

    def __init__(self, trainer, steps: set[int]) -> None:
        self.trainer, self.steps = trainer, steps
        trainer.model.get_parameter(UP).register_hook(self)

    def __call__(self, grad: torch.Tensor) -> torch.Tensor:
        return grad * math.inf if self.trainer.state.step + 1 in self.steps else grad


def test_a_step_that_is_not_finite_is_skipped_counted_and_told(tmp_path: Path):
    told = tiny.Told()
    trainer = tiny.trainer(tmp_path, listener=told)
    Poison(trainer, {4, 5, 9})
    state = trainer.fit()
    assert told.skips == [4, 5, 9]
    assert (state.step, state.skipped, state.bad_in_a_row) == (20, 3, 0)
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert read_rows(tmp_path)[-2]["skipped"] == 3
    assert state.n_tokens == sum(report.n_tokens for report in told.reports)


def test_several_bad_steps_in_a_row_stop_and_the_last_good_weights_stand(tmp_path: Path):
    """Defect: NaN after 2-3 k steps, and the checkpoint overwritten with it."""
    kept = []
    trainer = tiny.trainer(tmp_path, save=lambda m: kept.append(tiny.weights(m)), max_bad_steps=4)
    Poison(trainer, set(range(12, 30)))
    with pytest.raises(UserError, match="stopped at step 15: 4 steps in a row") as error:
        trainer.fit()
    words = str(error.value)
    assert f"of step {trainer.state.best_step}, stand in {tmp_path}" in words
    assert "train.peak" in words and 'train.precision="fp32"' in words
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-7"]
    assert all(torch.isfinite(t).all() for weights in kept for t in weights.values())


def test_bad_steps_from_the_start_say_that_nothing_was_saved(tmp_path: Path):
    trainer = tiny.trainer(tmp_path, max_bad_steps=2)
    Poison(trainer, set(range(30)))
    start = tiny.weights(trainer.model)
    with pytest.raises(UserError, match=r"stopped at step 2.*Nothing had been saved yet"):
        trainer.fit()
    assert tiny.same(start, tiny.weights(trainer.model))


def test_bad_steps_before_the_first_evaluation_name_the_checkpoint(tmp_path: Path):
    trainer = tiny.trainer(tmp_path, max_bad_steps=2, evaluate_every=20)
    Poison(trainer, set(range(9, 30)))
    with pytest.raises(UserError, match=r"weights stand in .*step-7\."):
        trainer.fit()


def test_a_bad_last_step_still_leaves_a_model_and_a_checkpoint(tmp_path: Path):
    kept = []
    trainer = tiny.trainer(tmp_path, save=lambda m: kept.append(1), evaluate_every=100)
    Poison(trainer, {20})
    assert trainer.fit().best_step == 20
    assert kept and complete_checkpoints(tmp_path)[-1].name == "step-20"


@pytest.mark.skipif(os.name == "nt", reason="os.kill ends the process on Windows")
def test_a_signal_from_outside_during_the_estimate_saves_too(tmp_path: Path):
    class AtOnce(tiny.Told):
        def estimated(self, seconds, state):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="step 1"):
        tiny.trainer(tmp_path, listener=AtOnce()).fit()
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-1"]
