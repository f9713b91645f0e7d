"""everyhead predict: inputs in, an answer for each out, whatever the job; mistakes as sentences."""

import json
from pathlib import Path

import pytest

from everyhead.cli.predicting import PREDICTING, Answer, Asked, Predicting
from everyhead.training.jobs import JOBS
from tests.cli.conftest import everyhead, refused


def measure(opened, asked: Asked):
    assert opened.model is not None
    for row in asked.rows:
        words = "|".join(row)
        yield Answer(f"{words}: {len(words)}", {"size": len(words), "labels": list(asked.labels)})


ONE = Predicting(("text",), measure)
TWO = Predicting(("picture", "question"), measure, labels=True, top=True)


@pytest.fixture
def one(run: Path, monkeypatch) -> Path:
    """A run whose job is said to predict from one text."""
    monkeypatch.setitem(PREDICTING, "translate", f"{__name__}:ONE")
    return run


@pytest.fixture
def two(run: Path, monkeypatch) -> Path:
    monkeypatch.setitem(PREDICTING, "translate", f"{__name__}:TWO")
    return run


def test_arguments_a_file_and_standard_input_give_the_same(one: Path, tmp_path: Path):
    texts = ["How far is it?", "多远", "a\u2028b"]
    expected = "".join(f"{text}: {len(text)}\n" for text in texts)
    assert everyhead("predict", one, *texts) == (0, expected, "")
    lines = "\ufeff" + "\r\n".join(texts)
    assert everyhead("predict", one, stdin=lines.encode())[:2] == (0, expected)
    (tmp_path / "in.txt").write_bytes("\n".join(texts).encode())
    assert everyhead("predict", one, "--file", tmp_path / "in.txt")[:2] == (0, expected)


def test_a_blank_line_gives_a_blank_line(one: Path):
    """Defect: a blank line shifts what follows, or is answered with invention."""
    code, out, _ = everyhead("predict", one, stdin=b"a\n\n  \nb\n")
    assert code == 0 and out.split("\n") == ["a: 1", "", "", "b: 1", ""]
    code, out, _ = everyhead("predict", one, "--json", stdin=b"a\n\nb\n")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == ["a", "", "b"]
    assert [row.get("size") for row in rows] == [1, None, 1]


def test_inputs_of_two_parts(two: Path):
    labels = ("--labels", " red, blau ,红 ")
    code, out, _ = everyhead("predict", two, "a.png", "what?", "b.png", "how?", *labels)
    assert code == 0 and out == "a.png|what?: 11\nb.png|how?: 10\n"
    code, out, _ = everyhead("predict", two, *labels, "--json", stdin=b"a.png\twhat?\n")
    assert json.loads(out) == {
        **{"picture": "a.png", "question": "what?", "size": 11},
        "labels": ["red", "blau", "红"],
    }


def test_mistakes_are_sentences(one: Path, run: Path, tmp_path: Path, monkeypatch):
    assert "knows its labels" in refused("predict", one, "x", "--labels", "a")
    assert "leave --top out" in refused("predict", one, "x", "--top", "3")
    assert "input is empty" in refused("predict", one)
    assert "not both" in refused("predict", one, "x", "--file", "y")
    assert "no file none.txt" in refused("predict", one, "--file", "none.txt")
    assert "Line 1 of standard input is not UTF-8" in refused("predict", one, stdin=b"\xff\n")
    assert "no run or model folder" in refused("predict", tmp_path / "none", "x")
    monkeypatch.setitem(PREDICTING, "translate", f"{__name__}:TWO")
    assert "Say what to choose from" in refused("predict", run, "a", "b")
    words = refused("predict", run, "a", "--labels", "x")
    assert "picture and question, so 1 arguments do not divide" in words
    words = refused("predict", run, "--labels", "x", stdin=b"a\tb\nc\n")
    assert "Line 2 has 1 columns where 2 are needed" in words


def test_a_run_of_another_kind_names_its_verb(run: Path):
    assert f"everyhead translate {run}" in refused("predict", run, "x")


def test_every_line_of_the_table_is_a_job_and_can_be_imported():
    from everyhead.cli.predicting import predicting_of

    assert set(PREDICTING) <= set(JOBS)
    for job in PREDICTING:
        assert predicting_of(job).parts
