"""Which weights a resumed run keeps: by the metric of today, and those of its end at the least."""

import json
from pathlib import Path

from everyhead.training.checkpoints import complete_checkpoints
from everyhead.training.metrics import read_rows
from tests.training import tiny


def gone_on(run: Path, bleu: list[float], **recipe):
    """A trainer that resumes and trains to its end; the steps whose weights it kept."""
    kept: list[int] = []
    left = list(bleu)
    trainer = tiny.trainer(
        run,
        score=lambda model: {"bleu": left.pop(0)},
        save=lambda model: kept.append(trainer.state.step),
        **recipe,
    )
    trainer.resume()
    trainer.fit()
    return trainer, kept


def test_another_metric_on_resume_begins_the_comparison_anew(tmp_path: Path):
    trainer, _ = gone_on(tmp_path, [50.0, 40.0], max_steps=10, best="bleu")
    assert (trainer.state.best, trainer.state.best_step) == (50.0, 5)
    trainer, kept = gone_on(tmp_path, [0.0, 0.0], max_steps=20, best="loss")
    rows = {row["step"]: row for row in read_rows(tmp_path) if row["kind"] == "validation"}
    assert kept[0] == 15 and trainer.state.best_step in (15, 20)
    assert trainer.state.best == -rows[trainer.state.best_step]["loss"]
    # −loss is below every BLEU, and BLEU is never below −loss: neither is compared with the other.
    trainer, kept = gone_on(tmp_path, [1.0, 0.5], max_steps=30, best="bleu")
    assert kept == [25] and trainer.state.best == 1.0


def test_the_same_metric_on_resume_goes_on_with_the_comparison(tmp_path: Path):
    gone_on(tmp_path, [50.0, 40.0], max_steps=10, best="bleu")
    trainer, kept = gone_on(tmp_path, [49.0, 51.0], max_steps=20, best="bleu")
    assert kept == [20] and trainer.state.best == 51.0


def test_a_checkpoint_that_does_not_name_its_metric_goes_on_with_the_comparison(tmp_path: Path):
    gone_on(tmp_path, [50.0, 40.0], max_steps=10, best="bleu")
    (folder,) = complete_checkpoints(tmp_path)
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    assert state["facts"].pop("best") == "bleu"
    (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
    trainer, kept = gone_on(tmp_path, [49.0, 51.0], max_steps=20, best="bleu")
    assert kept == [20] and trainer.state.facts["best"] == "bleu"


def test_a_run_that_ends_before_its_first_evaluation_is_evaluated_at_its_end(tmp_path: Path):
    for last in (7, 4):  # the step that is saved, and one before it
        run = tmp_path / str(last)
        trainer = tiny.trainer(run, evaluate_every=100)
        while trainer.state.step < 7:
            trainer._step()
            trainer._after_step()
        assert trainer.state.best_step is None
        trainer, kept = gone_on(run, [float("nan")], max_steps=last, evaluate_every=100)
        assert kept == [7] and trainer.state.best_step == 7
        assert read_rows(run)[-1]["kind"] == "validation"
        (folder,) = complete_checkpoints(run)
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        assert folder.name == "step-7" and state["best_step"] == 7
        assert gone_on(run, [], max_steps=last)[1] == []
