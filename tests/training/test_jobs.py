"""What holds for every job: a run resumed is the run; a run is saved, opened again and scored."""

import json
import math
from pathlib import Path

import pytest
import torch

from everyhead.data import packages
from everyhead.errors import UserError
from everyhead.training.checkpoints import complete_checkpoints
from everyhead.training.job import LOWER_IS_BETTER, Job, Measured, loss_of
from everyhead.training.jobs import JOBS, job_kind
from everyhead.training.metrics import read_rows
from everyhead.training.objectives import TokenLoss
from everyhead.training.optimizers import optimizer_tensors
from everyhead.training.recipe import known_keys, load_recipe, parse_recipe, recipe_text
from everyhead.training.run import make_trainer, prepare, write_beginnings
from everyhead.training.step import evaluate_parts, train_step
from everyhead.weights.folder import load
from tests.training import tiny
from tests.training.small_jobs import CASES, TOOLS, values


def begun(job: str, folder: Path, run: Path, **train):
    given = values(job, folder)
    given["train"] = given["train"] | train
    prepared = prepare(parse_recipe(given, "a test"), None, TOOLS)
    run.mkdir(parents=True)
    prepared.write(run)
    write_beginnings(run, prepared)
    return prepared


def gone_on(run: Path):
    """As a fresh process would."""
    prepared = prepare(load_recipe(str(run / "recipe.toml")), run, TOOLS)
    torch.manual_seed(99)
    trainer = make_trainer(prepared, run)
    trainer.resume()
    return trainer


def outcome(trainer):
    return (
        tiny.weights(trainer.model),
        optimizer_tensors(trainer.model, trainer.optimizer),
        read_rows(trainer.run),
    )


@pytest.mark.slow
@pytest.mark.parametrize("job", sorted(CASES))
def test_a_run_resumed_is_the_run_and_what_it_saved_can_be_used(job: str, tmp_path: Path):
    ends = []
    for name in ("straight", "stopped"):
        prepared = begun(job, tmp_path / "data", tmp_path / name)
        trainer = make_trainer(prepared, tmp_path / name)
        if name == "stopped":
            while trainer.state.step < 10:
                trainer._step()
                trainer._after_step()
            trainer = gone_on(tmp_path / name)
            assert trainer.state.step == 10
        trainer.fit()
        ends.append(outcome(trainer))
    assert tiny.same(ends[0][0], ends[1][0]) and tiny.same(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2]
    run = tmp_path / "straight"
    rows = [row for row in read_rows(run) if row["kind"] == "validation"]
    assert all(math.isfinite(row["loss"]) for row in rows) and [r["step"] for r in rows] == [10, 20]
    assert trainer.recipe.best in rows[0] or trainer.recipe.best == "loss"
    assert complete_checkpoints(run)[-1].name == "step-20"
    model = load(run)[0].eval()
    scores = prepared.evaluate(model, "test")
    assert json.dumps(scores, allow_nan=False) and scores == prepared.evaluate(model, "test")
    with pytest.raises(UserError, match="no split 'dev'"):
        prepared.evaluate(model, "dev")
    assert prepared.introduction()


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_kind_has_a_recipe_with_its_name_and_its_best_is_known(job: str):
    kind = job_kind(job)
    recipe = kind.recipe(name="x")
    assert recipe.job == job and kind.verb and kind.unit
    assert parse_recipe({"name": "x", "job": job}, "a test") == recipe
    assert f'job = "{job}"' in recipe_text(recipe)
    keys = known_keys(kind.recipe)
    assert len(keys) == len(set(keys)) and "train.max_steps" in keys


def test_an_unknown_job_names_the_nearest():
    with pytest.raises(UserError, match="no job 'pretrain-bart'; did you mean pretrain-bert"):
        parse_recipe({"name": "x", "job": "pretrain-bart"}, "a test")


def test_a_jobs_own_keys_are_known_and_others_are_not():
    with pytest.raises(UserError, match=r"no key data\.pairs; did you mean data\."):
        load_recipe("pretrain-gpt2", ["data.pairs=x"])
    with pytest.raises(UserError, match=r"no key model\.n_encoder_layers; did you mean model"):
        load_recipe("pretrain-gpt2", ["model.n_encoder_layers=2"])


def test_files_of_ones_own_take_the_place_of_the_corpus(tmp_path: Path):
    recipe = load_recipe("pretrain-gpt2", files=[tmp_path / "a.txt", tmp_path / "b.txt"])
    assert recipe.data.corpus is None
    assert recipe.data.files == [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    again = load_recipe("pretrain-gpt2", ["data.corpus=moby-dick"], files=[tmp_path / "a.txt"])
    assert again.data.corpus == "moby-dick" and again.data.files == []
    pairs = load_recipe("translate-en-zh", files=[tmp_path / "a.tsv"])
    assert pairs.data.corpus is None and pairs.data.pairs == str(tmp_path / "a.tsv")


# ---------------------------------------------------------------- several criteria


def two(model, batch, smoothing):
    """Two criteria over the same weights, with counts of their own."""
    rows = batch.source.float()
    first, second = ((rows * model.weight[i]).square().sum() for i in (0, 1))
    return {
        "one": TokenLoss(first, first.detach(), batch.n_target),
        "two": TokenLoss(second, second.detach(), batch.n_sentences),
    }


def counts(batch):
    return {"one": batch.n_target, "two": batch.n_sentences}


def test_each_criterion_is_divided_once_by_its_own_count_over_the_step():
    """Law 6, for the sum of two criteria and for accumulated batches."""
    ids = tiny.pairs()
    parts = [tiny.batch(ids, [0]), tiny.batch(ids, [1, 2, 3])]
    model = torch.nn.Linear(1, 2, bias=False)
    grads: list[torch.Tensor] = []
    model.weight.register_hook(grads.append)
    report = train_step(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        parts,
        loss=two,
        counts=counts,
        smoothing=0.0,
        limit=None,
        precision="fp32",
    )
    square = sum(float(part.source.float().square().sum()) for part in parts)
    n = sum(part.n_target for part in parts)
    weight = model.weight.detach()[:, 0]
    expected = 2 * weight * square / torch.tensor([n, 4.0])
    torch.testing.assert_close(sum(grads)[:, 0], expected)
    assert report.parts["one"].n == n == report.n_tokens and report.parts["two"].n == 4
    loss = float((weight.square() * square / torch.tensor([n, 4.0])).sum())
    assert report.loss == pytest.approx(loss, rel=1e-5)


def test_rows_of_several_criteria_name_each(tmp_path: Path):
    prepared = begun("pretrain-bert", tmp_path / "data", tmp_path / "run", max_steps=3, log_every=1)
    trainer = make_trainer(prepared, tmp_path / "run")
    trainer.fit()
    train = [row for row in read_rows(tmp_path / "run") if row["kind"] == "train"]
    assert all(row["nll"] == pytest.approx(row["mlm"] + row["nsp"]) for row in train)
    (row,) = [row for row in read_rows(tmp_path / "run") if row["kind"] == "validation"]
    assert row["loss"] == pytest.approx(row["mlm"] + row["nsp"])
    assert {"mlm_accuracy", "nsp_accuracy", "perplexity"} <= row.keys()


def test_the_loss_of_no_count_is_zero_and_not_nan():
    assert loss_of({"a": Measured(0.0, 0), "b": Measured(4.0, 2)}) == {"loss": 2.0, "a": 0, "b": 2}


def test_evaluation_of_parts_leaves_the_model_as_it_was():
    model = torch.nn.Linear(1, 2, bias=False).train()
    ids = tiny.pairs()
    found = evaluate_parts(model, [tiny.batch(ids, [0, 1])], loss=two, precision="fp32")
    assert found.keys() == {"one", "two"} and found["two"].n == 2 and model.training


# ---------------------------------------------------------------- rates, and what is frozen


@pytest.mark.slow
def test_what_is_frozen_is_bit_equal_after_training_and_layers_learn_at_their_rates(tmp_path: Path):
    prepared = begun("tune", tmp_path / "data", tmp_path / "run", max_steps=6)
    trainer = make_trainer(prepared, tmp_path / "run")
    before = tiny.weights(trainer.model)
    rates = {
        name: group["factor"]
        for group in trainer.optimizer.param_groups
        for name, p in trainer.model.named_parameters()
        if any(p is each for each in group["params"])
    }
    trainer.fit()
    after = tiny.weights(trainer.model)
    still = {name for name in before if torch.equal(before[name], after[name])}
    frozen = {n for n in before if n.startswith(("token_embed.", "decoder.blocks.0."))}
    assert frozen <= still and frozen and not (rates.keys() & frozen)
    assert any(n.startswith("decoder.blocks.2.") for n in before.keys() - still)
    assert {f for n, f in rates.items() if n.startswith("decoder.blocks.1.")} == {0.8}
    assert {f for n, f in rates.items() if n.startswith("decoder.blocks.2.")} == {1.0}


def test_lower_is_better_for_what_is_a_loss_and_higher_for_what_is_not(tmp_path: Path):
    assert "loss" in LOWER_IS_BETTER and "accuracy" not in LOWER_IS_BETTER
    accuracies, kept = [0.5, 0.9, 0.7, 0.9], []
    left = list(accuracies)
    trainer = tiny.trainer(
        tmp_path, score=lambda m: {"accuracy": left.pop(0)}, save=lambda m: kept.append(1)
    )
    trainer.recipe = trainer.recipe.model_copy(update={"best": "accuracy"})
    trainer.fit()
    assert trainer.state.best_step == 20 and trainer.state.best == 0.9 and len(kept) == 3


def test_a_job_that_cannot_be_compiled_says_so(tmp_path: Path):
    with pytest.raises(UserError, match=r"leave train\.compile out"):
        prepared = begun("pretrain-bert", tmp_path / "data", tmp_path / "run", compile=True)
        make_trainer(prepared, tmp_path / "run")
    assert Job.__dataclass_fields__["compiled"].default is None


def test_tuning_on_a_corpus_of_ours_begins_and_says_whose_it_is(tmp_path: Path, monkeypatch):
    kinds = ("DESC:manner How", "HUM:ind Who", "LOC:city Where", "NUM:date When")
    lines = [f"{kinds[i % 4]} number {i} ?" for i in range(60)]
    (tmp_path / "question_labels.txt").write_text("\n".join(lines), encoding="latin-1")
    monkeypatch.setattr(packages, "folder", lambda package: tmp_path)
    given = values("tune-pairs", tmp_path)
    given["data"] |= {"files": [], "corpus": "trec"}
    prepared = prepare(parse_recipe(given, "a test"), None, TOOLS)
    write_beginnings(tmp_path / "run", prepared)
    assert "Roth 2002" in (tmp_path / "run" / "DATA-LICENCE.txt").read_text(encoding="utf-8")
