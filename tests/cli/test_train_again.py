"""everyhead train where a run lies: what is refused leaves it whole, what has changed is said."""

import json
import os
import tomllib
from pathlib import Path

import pytest

from everyhead.files import read_json
from everyhead.training.metrics import read_rows
from tests.cli.conftest import changes, everyhead, everything_in, refused

MORE = ("--set", "train.max_steps=8")


def others(pairs: Path) -> bytes:
    """The same pairs but one word, which changes no length."""
    return pairs.read_bytes().replace(b"cat", b"dog", 1)


def test_overwrite_with_a_name_that_is_not_utf8_leaves_the_older_run_whole(
    copy: Path, pairs: Path, tmp_path: Path
):
    own = tmp_path / os.fsdecode(b"caf\xe9.tsv")
    try:
        own.write_bytes(pairs.read_bytes())
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    before = everything_in(copy)
    code, out, err = everyhead("train", "--pairs", own, "--run", copy, "--overwrite", *changes())
    assert (code, out) == (2, "") and "Traceback" not in err
    assert r"caf\udce9.tsv" in err and err.endswith("is not UTF-8: rename it.\n")
    assert everything_in(copy) == before
    assert everyhead("train", "--pairs", own, "--run", tmp_path / "new", *changes()).code == 2
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("more", [(), MORE])
def test_resume_says_that_pairs_have_changed_though_their_number_has_not(
    more: tuple[str, ...], copy: Path, pairs: Path, tmp_path: Path
):
    own = tmp_path / "own.tsv"
    own.write_bytes(pairs.read_bytes())
    recipe = copy / "recipe.toml"
    text = recipe.read_text(encoding="utf-8")
    recipe.write_bytes(text.replace(str(pairs), str(own)).encode("utf-8"))
    assert "have changed" not in everyhead("train", recipe, "--resume").err
    own.write_bytes(others(pairs))
    began = (copy / "data.json").read_bytes()
    code, _, err = everyhead("train", recipe, "--resume", *more)
    assert code == 0
    assert f"everyhead: the pairs have changed since {copy} began" in err
    assert (copy / "data.json").read_bytes() == began
    assert "the pairs have changed since" in everyhead("evaluate", copy, "--json").err


def test_resume_with_set_leaves_what_the_run_says_of_its_data(
    copy: Path, pairs: Path, tmp_path: Path
):
    own = tmp_path / "own.tsv"
    own.write_bytes(others(pairs))
    began = read_json(copy / "data.json")
    change = ("--set", f"data.pairs={json.dumps(str(own))}")
    assert everyhead("train", copy / "recipe.toml", "--resume", *MORE, *change).code == 0
    assert read_json(copy / "data.json") == began
    assert str(own) in (copy / "recipe.toml").read_text(encoding="utf-8")


def test_a_run_told_to_end_where_it_stands_is_evaluated_and_has_weights(
    pairs: Path, tmp_path: Path, monkeypatch
):
    from everyhead.training.loop import Interrupted, Trainer

    step = Trainer._step

    def stopped(self: Trainer) -> None:
        step(self)
        if self.state.step == 3:
            self._checkpoint()
            raise Interrupted(2, 3)

    run = tmp_path / "mine"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopped)
        assert everyhead("train", "--pairs", pairs, "--run", run, *changes()).code == 130
    assert not (run / "model.safetensors").exists()
    end = ("--set", "train.max_steps=3")
    code, _, err = everyhead("train", run / "recipe.toml", "--resume", *end)
    assert code == 0 and "the weights of step 3, the best" in err, err
    assert read_rows(run)[-1]["kind"] == "validation" and read_rows(run)[-1]["step"] == 3
    assert everyhead("translate", run, "I see", "--max-len", 3).code == 0
    before = (run / "metrics.jsonl").read_bytes()
    assert everyhead("train", run / "recipe.toml", "--resume").code == 0
    assert (run / "metrics.jsonl").read_bytes() == before, "evaluated a second time"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no names for pipes in /dev/fd")
@pytest.mark.parametrize("option", ["--pairs", "--source", "--target", "--data"])
def test_a_pipe_is_refused_unread_since_a_run_reads_its_pairs_again(
    option: str, pairs: Path, tmp_path: Path
):
    reader, writer = os.pipe()
    os.write(writer, pairs.read_bytes()[:4000])
    os.close(writer)
    recipe = ["translate-en-zh"] if option == "--data" else []
    words = refused("train", *recipe, option, f"/dev/fd/{reader}", "--run", tmp_path / "x")
    assert "is a pipe and can be read only once" in words and "save them to a file" in words
    assert len(os.read(reader, 4000)) == 4000 and not (tmp_path / "x").exists()
    os.close(reader)


def test_the_tokenizer_that_a_run_has_learnt_cannot_be_changed(copy: Path):
    before = everything_in(copy)
    words = refused("train", copy / "recipe.toml", "--resume", "--set", "tokenizer.vocab_size=500")
    assert "has learnt its tokenizer" in words and "--overwrite" in words
    assert everything_in(copy) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tokenizer.vocab_size=99999999999", "at most 10,000,000 pieces"),
        ("tokenizer.vocab_size=[300, 99999999999]", "at most 10,000,000 pieces"),
        (f"train.seed={2**63}", "train.seed: Input should be less than"),
        (f"train.seed={10**30}", "train.seed: Input should be less than"),
        ("evaluate.length_penalty=11", "less than or equal to 10"),
        ("evaluate.length_penalty=-11", "greater than or equal to -10"),
    ],
)
def test_a_number_beyond_all_measure_is_refused(
    change: str, words: str, pairs: Path, tmp_path: Path
):
    run = tmp_path / "x"
    assert words in refused("train", "--pairs", pairs, "--run", run, "--set", change)
    assert not run.exists()


def test_two_trainings_in_one_folder_are_refused_and_the_first_is_left_alone(
    copy: Path, pairs: Path, tmp_path: Path
):
    from everyhead.training.alone import alone

    before = everything_in(copy)
    with alone(copy):  # as another process does while it trains
        for command in (
            ("train", copy / "recipe.toml", "--resume", *MORE),
            ("train", "--pairs", pairs, "--run", copy, "--overwrite", *changes()),
        ):
            code, out, err = everyhead(*command)
            assert (code, out) == (2, "") and f"Another training is at work in {copy}:" in err
            assert everything_in(copy) == before
    assert everyhead("train", copy / "recipe.toml", "--resume", *MORE).code == 0


def test_a_run_that_began_in_the_folder_meanwhile_is_not_replaced(
    copy: Path, pairs: Path, tmp_path: Path, monkeypatch
):
    from everyhead.training import run as runs

    prepare, new = runs.prepare, tmp_path / "new"

    def slowly(*arguments: object):
        copy.rename(new)
        return prepare(*arguments)

    monkeypatch.setattr(runs, "prepare", slowly)
    before = everything_in(copy)
    code, _, err = everyhead("train", "--pairs", pairs, "--run", new, *changes())
    assert code == 2 and "holds a run already" in err and everything_in(new) == before


def test_a_recipe_s_relative_paths_are_found_from_anywhere_once_the_run_has_begun(
    pairs: Path, tmp_path: Path, monkeypatch
):
    (tmp_path / "my.tsv").write_bytes(pairs.read_bytes())
    (tmp_path / "held.tsv").write_bytes(b"A fox.\t\xe7\x8b\x90\xe3\x80\x82\n")
    recipe = tmp_path / "my.toml"
    recipe.write_text(
        'name = "mine"\n[data]\npairs = "my.tsv"\nvalidation = ["held.tsv"]\n', encoding="utf-8"
    )
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    assert everyhead("train", "my.toml", "--run", run, *changes()).code == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "my.tsv").write_bytes(others(pairs))  # not what it learnt from
    assert everyhead("train", run / "recipe.toml", "--resume", *MORE).code == 0
    code, _, err = everyhead("evaluate", run, "--split", "validation", "--json")
    assert (code, err) == (0, "")
    change = ("--set", "data.pairs=my.tsv", "--set", "train.max_steps=9")
    assert everyhead("train", run / "recipe.toml", "--resume", *change).code == 0
    kept = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))["data"]
    assert kept["pairs"] == str((tmp_path / "elsewhere" / "my.tsv").resolve())
    assert kept["validation"] == [str((tmp_path / "held.tsv").resolve())]


def test_best_weights_that_are_gone_are_not_said_to_be_there(copy: Path):
    (copy / "model.safetensors").unlink()
    code, _, err = everyhead("train", copy / "recipe.toml", "--resume")
    assert code == 0 and f"lie in {copy} no more" in err
    assert "the weights of step 6, the best, lie in" in err
    assert (copy / "model.safetensors").is_file()
    assert everyhead("translate", copy, "I see the cat.").code == 0
    again = everyhead("train", copy / "recipe.toml", "--resume")
    assert again.code == 0 and "no more" not in again.err
