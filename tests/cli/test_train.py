"""everyhead train: what it takes, what it refuses, what it leaves on disk."""

import json
import signal
import tomllib
from pathlib import Path

import pytest

from everyhead.cli import progress, train
from everyhead.files import read_json
from everyhead.training import run as runs
from everyhead.training.jobs.translate import read_splits
from everyhead.training.metrics import read_rows
from tests.cli.conftest import changes, everyhead, everything_in, refused, rows

RUN_FILES = {
    *("config.json", "generation_config.json", "model.safetensors"),
    *("tokenizer.json", "tokenizer_config.json"),
    *("recipe.toml", "data.json", "metrics.jsonl", "learning-curve.png"),
}


def lines(path: Path, *texts: str, ending: str = "\n") -> Path:
    path.write_bytes("".join(text + ending for text in texts).encode("utf-8"))
    return path


def test_a_file_of_ones_own_becomes_a_run(trained, pairs: Path):
    run, (code, out, err) = trained
    assert (code, out) == (0, "")
    assert {path.name for path in run.iterdir()} == {*RUN_FILES, "checkpoints"}
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-6"]
    recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
    assert recipe["name"] == "mine" and "150 pairs" in recipe["about"]
    assert recipe["data"]["pairs"] == str(pairs.resolve())
    assert recipe["train"]["max_steps"] == 6 and recipe["evaluate"]["tokenize"] == "zh"
    data = read_json(run / "data.json")
    assert data["filters"]["read"] == data["filters"]["kept"] == 150
    assert sum(data["splits"][part] for part in ("train", "validation", "test")) == 150
    for said in ("150 read", "6 steps to go", "step      6/6", "validation", "BLEU", "step 6,"):
        assert said in err
    assert f"everyhead translate {run}" in err


def test_plain_lines_in_a_log_have_loss_rate_speed_and_the_time_left(trained):
    (line,) = [line for line in trained[1].err.splitlines() if line.startswith("step      2/6")]
    assert all(word in line for word in ("loss ", "rate ", " tokens/s", " left"))
    assert "\x1b" not in trained[1].err, "colours"


def test_progress_says_durations_in_words():
    assert [progress.duration(s) for s in (-1, 0.4, 59.4, 95, 3725)] == [
        *("0 s", "0 s", "59 s", "1 min 35 s", "1 h 02 min"),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either a recipe (like translate-en-zh) or your own --pairs"),
        (["translate-en-zh", "--pairs", "my.tsv", "--run", "x"], "either a recipe"),
        (["--pairs", "my.tsv"], "--run runs/mine"),
        (["nonsense", "--run", "x"], "No recipe 'nonsense'"),
        (["translate-en-z", "--run", "x"], "did you mean translate-en-zh?"),
        (["none.toml", "--run", "x"], "no recipe file none.toml"),
        (["my.tsv"], "everyhead train --pairs my.tsv --run runs/my"),
        (["--pairs", "my.tsv", "--run", "x", "--resume", "--overwrite"], "give one of them"),
        (["--pairs", "my.tsv", "--run", "x", "--resume"], "no run in x to resume"),
        (["--pairs", "none.tsv", "--run", "x"], "no file none.tsv; check the path"),
        (["--pairs", ".", "--run", "x"], ". is a folder"),
        (["--pairs", "empty.tsv", "--run", "x"], "empty.tsv is empty"),
        (["--pairs", "blank.tsv", "--run", "x"], "No pair is left after the filters: 3 read, 3"),
        (["--pairs", "few.tsv", "--run", "x"], "Too few pairs"),
        (["--pairs", "one.tsv", "--run", "x"], "one.tsv, line 2 has 1 column"),
        (["--pairs", "latin.tsv", "--run", "x"], "latin.tsv, line 2: byte 0xE9 is not UTF-8"),
        (["--source", "a.txt", "--run", "x"], "needs a target file beside it"),
        (["--source", "a.txt", "--target", "b.txt", "--run", "x"], "a.txt has 3 lines and b.txt"),
        (["--pairs", "my.tsv", "--run", "a.txt"], "a.txt is a file"),
        (["--pairs", "my.tsv", "--run", "x", "--threads", "0"], "--threads must be 1 or more"),
        (["--pairs", "my.tsv", "--run", "x", "--device", "gpu"], "there is cpu"),
        (["--pairs", "my.tsv", "--run", "x", "--device", "meta"], "there is cpu"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "train.max_step=5"], "train.max_steps?"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "trian.max_steps=5"], "train.max_steps?"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "max_steps=5"], "train.max_steps?"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "train.max_steps"], "section.key=value"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "train.max_steps=0"], "train.max_steps"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "train.max_steps=all"], "(got 'all')"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "model.preset=hug"], "preset 'hug'"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "model.n_heads=3"], "into 3 heads"),
        (["--pairs", "my.tsv", "--run", "x", "--set", "evaluate.tokenize=xx"], "tokenizer 'xx'"),
        (["broken.toml", "--run", "x"], "broken.toml is not valid TOML"),
        (["latin.toml", "--run", "x"], "latin.toml"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_folder(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "my.tsv", *("\t".join(row) for row in rows()))
    lines(tmp_path / "few.tsv", *("\t".join(row) for row in rows()[:5]))
    lines(tmp_path / "empty.tsv")
    lines(tmp_path / "blank.tsv", "", "", " \t ")
    lines(tmp_path / "one.tsv", "a\tb", "c")
    (tmp_path / "latin.tsv").write_bytes(b"a\tb\ncaf\xe9\tb\n")
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"\n')
    lines(tmp_path / "a.txt", "1", "2", "3")
    lines(tmp_path / "b.txt", "1", "2")
    lines(tmp_path / "broken.toml", "[train", "x")
    before = everything_in(tmp_path)
    assert words in refused("train", *arguments)
    assert everything_in(tmp_path) == before and not (tmp_path / "x").exists()


def test_an_existing_run_is_refused_and_stays_as_it_was(copy: Path, pairs: Path):
    before = everything_in(copy)
    words = refused("train", "--pairs", pairs, "--run", copy, *changes())
    assert all(way in words for way in ("--resume", "--overwrite", "another --run"))
    assert everything_in(copy) == before
    for broken in (["--device", "gpu"], ["--set", "train.max_steps=0"], ["--threads", "0"]):
        refused("train", "--pairs", pairs, "--run", copy, "--overwrite", *broken)
        refused("train", "--pairs", pairs, "--run", copy, "--resume", *broken)
    refused("train", "--pairs", copy / "none.tsv", "--run", copy, "--overwrite")
    assert everything_in(copy) == before


def test_a_model_without_a_recipe_is_not_trained_over_either(copy: Path, pairs: Path):
    (copy / "recipe.toml").unlink()
    for checkpoint in (copy / "checkpoints").rglob("*.*"):
        checkpoint.unlink()
    (copy / "checkpoints" / "step-6").rmdir()
    before = everything_in(copy)
    assert "holds a model already" in refused("train", "--pairs", pairs, "--run", copy)
    assert everything_in(copy) == before


def test_overwrite_begins_anew_and_leaves_nothing_of_the_older_run(copy: Path, pairs: Path):
    for name in ("index.html", "scores.json", "DATA-LICENCE.txt"):
        (copy / name).write_bytes(b"of the older run")
    (copy / "notes.txt").write_bytes(b"mine")
    more = changes("train.max_steps=2", "train.evaluate_every=2", "tokenizer.vocab_size=300")
    assert everyhead("train", "--pairs", pairs, "--run", copy, "--overwrite", *more).code == 0
    assert {p.name for p in copy.iterdir()} == {*RUN_FILES, "checkpoints", "notes.txt"}
    assert max(row["step"] for row in read_rows(copy)) == 2
    assert everyhead("translate", copy, "I see", "--max-len", 3).code == 0


def test_an_older_runs_weights_are_gone_before_the_new_tokenizer_comes(
    copy: Path, pairs: Path, monkeypatch
):
    def die(*_: object, **__: object):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs.Trainer, "fit", die)
    more = changes("tokenizer.vocab_size=300")
    assert everyhead("train", "--pairs", pairs, "--run", copy, "--overwrite", *more).code == 130
    assert "no weights to use yet" in refused("translate", copy, "I see")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_says_how_to_go_on_and_going_on_gives_the_same_run(
    number: signal.Signals, run: Path, pairs: Path, tmp_path: Path, monkeypatch
):
    def stepped(self: progress.TrainingDisplay, state, report, rate):
        if state.step == 3:
            signal.raise_signal(number)

    stopped = tmp_path / "a run" / "mine"
    with monkeypatch.context() as patch:
        patch.setattr(progress.TrainingDisplay, "stepped", stepped)
        code, out, err = everyhead("train", "--pairs", pairs, "--run", stopped, *changes())
    assert (code, out) == (128 + number, "")
    last = err.splitlines()[-1]
    assert last.startswith("Stopped at step 3; everything is saved.")
    assert f"everyhead train '{stopped}/recipe.toml' --run '{stopped}' --resume" in last
    assert "training stopped before its first evaluation" in refused("translate", stopped, "x")
    code, _, err = everyhead("train", stopped / "recipe.toml", "--resume")
    assert code == 0 and "3 steps to go" in err
    whole, gone_on = everything_in(run), everything_in(stopped)
    assert gone_on.keys() == whole.keys()
    assert [name for name in whole if gone_on[name] != whole[name]] == []


def test_a_run_that_stopped_before_its_first_checkpoint_is_resumed_too(
    run: Path, pairs: Path, tmp_path: Path, monkeypatch
):
    def die(*_: object, **__: object):
        raise KeyboardInterrupt

    stopped = tmp_path / "mine"
    with monkeypatch.context() as patch:
        patch.setattr(runs.Trainer, "fit", die)
        assert everyhead("train", "--pairs", pairs, "--run", stopped, *changes()).code == 130
    assert everyhead("train", "--pairs", pairs, "--run", stopped, "--resume").code == 0
    assert (stopped / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()


def test_resume_keeps_the_runs_recipe_and_set_changes_it(copy: Path, pairs: Path):
    code, _, err = everyhead("train", "--pairs", pairs, "--run", copy, "--resume")
    assert code == 0 and "All steps are trained already" in err
    code, _, err = everyhead(
        "train", copy / "recipe.toml", "--resume", "--set", "train.max_steps=8"
    )
    assert code == 0 and "2 steps to go" in err
    recipe = tomllib.loads((copy / "recipe.toml").read_text(encoding="utf-8"))
    assert recipe["train"]["max_steps"] == 8 and recipe["model"]["d_model"] == 32
    assert max(row["step"] for row in read_rows(copy)) == 8


def test_a_resumed_run_whose_pairs_have_changed_is_refused(copy: Path, tmp_path: Path):
    other = lines(tmp_path / "other.tsv", *("\t".join(row) for row in reversed(rows())))
    before = everything_in(copy)
    change = ["--set", f"data.pairs={json.dumps(str(other))}", "--set", "train.max_steps=9"]
    words = refused("train", copy / "recipe.toml", "--resume", *change)
    assert "not those that" in words and "--overwrite" in words
    assert everything_in(copy) == before


def test_two_files_with_byte_order_marks_and_blank_lines_stay_in_step(tmp_path: Path):
    mark = "\ufeff"
    english, chinese = zip(*rows(), strict=True)
    source = [mark + english[0], "", *english[1:], "no translation"]
    target = [mark + chinese[0], "这里没有", *chinese[1:], ""]
    files = [lines(tmp_path / "a.txt", *source), lines(tmp_path / "b.txt", *target, ending="\r\n")]
    more = changes("train.max_steps=1", "train.evaluate_every=1")
    run = tmp_path / "x"
    code, _, err = everyhead(
        "train", "--source", files[0], "--target", files[1], "--run", run, *more
    )
    assert code == 0 and "152 read, 2 blank, 150 kept" in err
    data = read_json(run / "data.json")
    assert data["filters"]["blank"] == 2 and data["origin"]["source"] == str(files[0].resolve())
    splits = read_splits(runs.run_recipe(run).data)[0]
    found = {row for part in splits for row in part.rows()}
    assert found == set(rows())


def test_a_recipes_path_and_a_run_of_its_name(pairs: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = lines(tmp_path / "nice.toml", 'name = "nice"', "[data]", f"pairs = '{pairs}'")
    more = changes("train.max_steps=1", "train.evaluate_every=1")
    assert everyhead("train", recipe, *more).code == 0
    assert (tmp_path / "runs" / "nice" / "model.safetensors").is_file()


def test_without_sacrebleu_the_loss_chooses(pairs: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(train, "find_spec", lambda name: None)
    more = changes("train.max_steps=1", "train.evaluate_every=1")
    code, _, err = everyhead("train", "--pairs", pairs, "--run", tmp_path / "x", *more)
    assert code == 0 and "the loss alone chooses" in err
    assert [("bleu" in row) for row in read_rows(tmp_path / "x")] == [False, False]
    assert not (tmp_path / "x" / "learning-curve.png").exists()


def test_a_log_that_cannot_be_written_does_not_end_the_training(monkeypatch):
    class Full:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

        def flush(self) -> None: ...
        def isatty(self) -> bool:
            return False

    class Gone(Full):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    for stream in (Full(), Gone()):
        monkeypatch.setattr("sys.stderr", stream)
        display = progress.TrainingDisplay(10)
        display.say("one")
        display.say("two")
        assert display.console.quiet
