"""everyhead train, evaluate and predict with jobs other than translation."""

import json
from pathlib import Path

import pytest

from everyhead.cli import progress
from everyhead.data import packages
from everyhead.files import read_json
from tests.cli.conftest import everyhead, everything_in, refused
from tests.training.small_jobs import text_files

SMALL = {
    "tokenizer.vocab_size": "280",
    "model.d_model": "16",
    "model.n_heads": "2",
    "model.n_layers": "1",
    "model.max_len": "24",
    "data.block_bytes": "200",
    "train.max_steps": "4",
    "train.evaluate_every": "2",
    "train.save_every": "2",
    "train.precision": "fp32",
}


def changes(**more: str) -> list[str]:
    given = SMALL | {key.replace("__", "."): value for key, value in more.items()}
    return [part for key, value in given.items() for part in ("--set", f"{key}={value}")]


def data(files: list[str]) -> list[str]:
    return [part for file in files for part in ("--data", file)]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[str]:
    return text_files(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """A language model of four steps, and what training said."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    return run, everyhead("train", "pretrain-gpt2", *data(files), "--run", run, *changes())


def test_a_recipe_with_data_of_ones_own_becomes_a_run(trained, files):
    run, (code, out, err) = trained
    assert (code, out) == (0, "")
    for said in ("Text: train ", "documents", "Model: gpt2, ", "4 steps to go", "bits per byte"):
        assert said in err
    assert f"everyhead generate {run}" in err and "Pairs" not in err
    assert {"config.json", "tokenizer.json", "learning-curve.png"} <= {
        p.name for p in run.iterdir()
    }
    assert read_json(run / "data.json")["origin"]["files"] == files


def test_it_is_scored_and_json_has_the_same_numbers(trained):
    run = trained[0]
    code, out, err = everyhead("evaluate", run)
    assert code == 0 and err == ""
    lines = dict(line.rsplit("  ", 1) for line in out.splitlines()[:-1])
    assert [name.strip() for name in lines] == [
        *("loss", "perplexity", "bits per byte", "tokens", "bytes"),
    ]
    scores = json.loads(everyhead("evaluate", run, "--json").out)
    assert scores["split"] == "test" and f"{scores['loss']:.3f}" in out
    other = json.loads(everyhead("evaluate", run, "--json", "--split", "validation").out)
    assert other["loss"] != scores["loss"]
    assert "no split 'dev'" in refused("evaluate", run, "--split", "dev")
    assert "leave them out" in refused("evaluate", run, "--beam", "2")


def test_its_verb_is_named_by_those_that_do_not_fit(trained):
    assert f"use: everyhead generate {trained[0]}" in refused("predict", trained[0], "x")


def test_a_resumed_run_of_another_job_is_the_run(trained, files, tmp_path: Path):
    run = tmp_path / "stopped"
    first = changes(train__max_steps="2")
    assert everyhead("train", "pretrain-gpt2", *data(files), "--run", run, *first).code == 0
    code, _, err = everyhead("train", run / "recipe.toml", "--resume", "--set", "train.max_steps=4")
    assert code == 0 and "2 steps to go" in err
    # Its schedule was that of two steps until then, so only what does not depend on it is equal.
    assert everything_in(run)["tokenizer.json"] == everything_in(trained[0])["tokenizer.json"]
    assert read_json(run / "data.json") == read_json(trained[0] / "data.json")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pretrain-gpt2", "--data", "none.txt", "--run", "x"], "none.txt; check the path"),
        (["pretrain-gpt2", "--data", "a.txt"], "--run runs/mine"),
        (["--data", "a.txt", "--run", "x"], "everyhead train pretrain-gpt2 --data a.txt --run x"),
        (["pretrain-gpt2", "--data", "a.txt", "--pairs", "b.tsv", "--run", "x"], "either a recipe"),
        (["pretrain-gpt2", "--data", "a.txt", "--run", "x"], "Too little text for three sets"),
        (["pretrain-gpt2", "--data", "latin.txt", "--run", "x"], "latin.txt, line 1: byte 0xE9"),
        (["pretrain-bert", "--data", "a.txt", "--run", "x"], "Too little text for three sets"),
        (["pretrain-gpt3", "--run", "x"], "did you mean pretrain-gpt2"),
    ],
)
def test_mistakes_are_sentences_and_nothing_is_written(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes("Ein kurzer Text.\n道可道\n".encode())
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    before = everything_in(tmp_path)
    assert words in refused("train", *arguments)
    assert everything_in(tmp_path) == before


def test_data_that_was_not_fetched_says_how(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = refused("train", "pretrain-gpt2", "--run", tmp_path / "x")
    assert (
        words == "The data of shakespeare are not on this machine yet: everyhead fetch shakespeare"
    )
    assert set(packages.PACKAGES) >= {"shakespeare"}


def test_metrics_in_words():
    metrics = {"accuracy": 0.912, "macro_f1": 0.5, "perplexity": 7.314, "loss": 1.0, "n": 12345}
    shown = [f"{progress.named(name)} {progress.shown(name, x)}" for name, x in metrics.items()]
    assert shown == [
        *("accuracy 91.2 %", "macro f1 50.0 %", "perplexity 7.31", "loss 1.000", "n 12,345"),
    ]
