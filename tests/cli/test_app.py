"""The program as a whole: help, versions, and how it ends when something fails."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from everyhead import __version__
from everyhead.cli import opened
from everyhead.cli.app import main
from tests.cli.conftest import everyhead, refused

VERBS = ("train", "translate", "evaluate", "look", "demo", "models")


def test_help_names_every_verb_and_an_example_of_each_use():
    code, out, err = everyhead("--help")
    assert (code, err) == (0, "")
    for verb in VERBS:
        (line,) = [line for line in out.splitlines() if line.startswith(f"  {verb} ")]
        assert not line.endswith("..."), "cut off"
    for example in ("train --pairs my.tsv --run", "translate runs/mine < in.txt", "--png"):
        assert example in out


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_a_verb_explains_every_option(verb: str, flag: str):
    code, out, _ = everyhead(verb, flag)
    assert code == 0 and f"Usage: everyhead {verb} [OPTIONS]" in out
    assert len(out.splitlines()[2]) > 20
    options = out.partition("\nOptions:\n")[2].splitlines()
    for line, after in zip(options, [*options[1:], ""], strict=True):
        name, _, words = line.strip().partition("  ")
        if name.startswith("-"):
            assert words or after.startswith("      "), f"{name} says nothing"
    assert "list[str]" not in out and "set_" not in out and "[[" not in out


def test_without_a_verb_it_shows_the_help():
    code, out, err = everyhead()
    assert code == 2 and "translate" in out + err


def test_the_version():
    assert everyhead("--version") == (0, f"everyhead {__version__}\n", "")


def test_a_wrong_verb_or_option_names_the_right_one():
    code, out, err = everyhead("trian")
    assert (code, out) == (2, "") and "'train'" in err
    code, out, err = everyhead("train", "--rnu", "x")
    assert (code, out) == (2, "") and "--run" in err


def test_only_debug_shows_a_traceback(tmp_path: Path):
    missing = tmp_path / "none"
    assert "Traceback" not in everyhead("translate", missing, "x").err
    for arguments in (["--debug", "translate"], ["translate", "--debug"]):
        code, _, err = everyhead(*arguments, missing, "x")
        assert code == 2 and "Traceback" in err and err.splitlines()[-1].startswith("everyhead: ")
    assert "Traceback" not in everyhead("translate", missing, "x").err, "--debug stays"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ZeroDivisionError("by zero"), 1, "unexpected ZeroDivisionError: by zero (--debug"),
        (KeyboardInterrupt(), 130, ""),
        (PermissionError(13, "Permission denied", "a/b"), 2, "a/b: Permission denied"),
        (OSError(28, "No space left on device"), 2, "standard output: No space left"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_a_code(monkeypatch, error, code: int, words: str):
    def fail(*_: object, **__: object):
        raise error

    monkeypatch.setattr(opened, "open_run", fail)
    found = everyhead("translate", "runs/x", "hello")
    assert found.code == code and words in found.err and "Traceback" not in found.err
    assert len(found.err.splitlines()) == bool(words)


def test_a_warning_is_one_sentence_without_a_line_of_code(monkeypatch):
    def warn(*_: object, **__: object):
        for _ in range(3):
            warnings.warn("a.txt: removed a byte order mark.", stacklevel=2)
            warnings.warn("a.txt: removed a byte order mark.", stacklevel=2)
        raise opened.UserError("done")

    monkeypatch.setattr(opened, "open_run", warn)
    err = everyhead("evaluate", "x").err
    assert err == "everyhead: a.txt: removed a byte order mark.\neveryhead: done\n"


def test_a_reader_that_goes_away_ends_it_quietly(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["models"]) == 141
        monkeypatch.undo()


def test_models_lists_the_papers_sizes():
    code, out, err = everyhead("models")
    assert (code, err) == (0, "")
    assert "63,082,496" in out and "214,245,376" in out and "174,604,259,328" in out
    assert everyhead("models", "transformer").out in out
    assert "there is transformer" in refused("models", "transfomer")


def program(*arguments: object, **settings: object) -> subprocess.CompletedProcess[bytes]:
    """The program as a process of its own."""
    command = [sys.executable, "-m", "everyhead", *map(str, arguments)]
    return subprocess.run(command, capture_output="stdout" not in settings, timeout=300, **settings)


@pytest.mark.slow
def test_in_a_pipe_whose_reader_went_away_nothing_is_said(lively: Path):
    reading, writing = os.pipe()
    os.close(reading)
    done = program(
        *("translate", lively, "--max-len", 4),
        input=b"I see the cat.\n" * 50,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_output_is_said_once():
    with open("/dev/full", "wb") as full:
        done = program("models", stdout=full, stderr=subprocess.PIPE)
    lines = done.stderr.decode("utf-8").splitlines()
    assert len(lines) == 1 and "standard output: No space left" in lines[0]
    assert done.returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="locales are of POSIX systems")
def test_a_locale_that_knows_ascii_alone_takes_and_gives_chinese(lively: Path):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    arguments = ("translate", lively, "我看见红猫。", "--max-len", 9)
    done = program(*arguments, env={**os.environ, **plain})
    wanted = everyhead(*arguments).out
    assert (done.returncode, done.stdout.decode("utf-8"), done.stderr) == (0, wanted, b"")
    assert any("\u4e00" <= c <= "\u9fff" for c in wanted)
