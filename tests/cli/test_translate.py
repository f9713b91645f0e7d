"""everyhead translate: as many lines out as in, in order, and nothing else on stdout."""

import sys
from pathlib import Path

import pytest

from everyhead.cli.app import main
from everyhead.generation import translate as translating
from everyhead.generation.hypotheses import Hypothesis
from everyhead.generation.translate import Options, translate, translate_stream
from everyhead.weights.folder import load
from tests.cli.conftest import everyhead, refused, rows, streams

SENTENCES = [source for source, _ in rows()]
SHORT = ("--max-len", "6")


@pytest.fixture
def echo(monkeypatch) -> None:
    """A model that translates every sentence into itself, and so tells them apart."""

    def search(model, source, real, **_: object):
        ids = [row[keep].tolist()[:-1] for row, keep in zip(source, real, strict=True)]
        return [[Hypothesis(row, 0.0, 0.0, True)] for row in ids]

    monkeypatch.setattr(translating, "search", search)


def test_a_sentence_is_answered_with_its_translation_alone(lively: Path):
    model, tokenizer = load(lively)
    for line in SENTENCES[:2]:
        (wanted,) = translate(model, tokenizer, [line], beam=2)
        assert everyhead("translate", lively, line) == (0, wanted + "\n", "")
        (wanted,) = translate(model, tokenizer, [line], beam=3, length_penalty=0.2, max_len=4)
        options = ("--beam", 3, "--length-penalty", 0.2, "--max-len", 4)
        assert everyhead("translate", lively, line, *options) == (0, wanted + "\n", "")


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_lines_in_are_lines_out_in_order_and_blank_ones_stay_blank(
    run: Path, echo: None, ending: str, last: bool
):
    lines = ["I see  it. ", "", " \t", *SENTENCES[:9], "", "我看见猫。"]
    text = ending.join(lines) + (ending if last else "")
    code, out, err = everyhead("translate", run, stdin=text.encode("utf-8"))
    assert (code, err) == (0, "")
    assert out.split("\n") == [line if line.strip() else "" for line in lines] + [""]


def test_ten_thousand_lines_come_out_as_ten_thousand_in_order(run: Path, echo: None):
    lines = [f"{'red ' * (i * 7 % 13)}cat {i}" if i % 11 else "" for i in range(10_000)]
    text = "\n".join(lines) + "\n"
    found = everyhead("translate", run, "--batch-tokens", 999, stdin=text.encode("utf-8"))
    assert (found.code, found.err) == (0, "")
    assert found.out == text


def test_a_thousand_lines_through_a_model_stay_a_thousand(lively: Path):
    text = "".join(f"{SENTENCES[i % 50]}\n" if i % 9 else "\n" for i in range(1000))
    code, out, err = everyhead("translate", lively, *SHORT, stdin=text.encode("utf-8"))
    assert (code, err) == (0, "")
    lines = out.split("\n")
    assert len(lines) == 1001
    assert [not line for line in lines[:-1]] == [i % 9 == 0 for i in range(1000)]
    assert lines[1:50] == [lines[i] or lines[i + 450] for i in range(1, 50)]


def test_a_byte_order_mark_and_other_line_separators_do_not_count(run: Path, echo: None):
    text = "\ufeffone\ntwo\n\ufeffthree\na\u2028b\x0bc\x85d\n"
    code, out, _ = everyhead("translate", run, stdin=text.encode("utf-8"))
    assert (code, out) == (0, text.replace("\ufeff", ""))


def test_a_text_that_is_typed_is_read_as_standard_input_is(run: Path, echo: None):
    text = "\ufeffone\r\ntwo\n\ufeffthree"
    typed = everyhead("translate", run, text)
    assert typed == everyhead("translate", run, stdin=text.encode("utf-8"))
    assert typed == (0, "one\ntwo\nthree\n", "")


def test_no_input_gives_no_output(lively: Path):
    assert everyhead("translate", lively) == (0, "", "")
    assert everyhead("translate", lively, "") == (0, "\n", "")


def test_n_best_is_number_score_text_best_first_and_blank_lines_once(lively: Path):
    model, tokenizer = load(lively)
    lines = [SENTENCES[0], "", SENTENCES[1]]
    text = "\n".join(lines).encode("utf-8")
    code, out, err = everyhead("translate", lively, "--n-best", 3, *SHORT, stdin=text)
    assert (code, err) == (0, "")
    table = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in table] == ["1"] * 3 + ["2"] + ["3"] * 3
    assert table[3] == ["2", "0.0000", ""]
    scores = [float(row[1]) for row in table]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    options = Options(beam=3, n_best=3, max_len=6)
    for places, best in zip(
        (table[:3], table[3:4], table[4:]),
        translate_stream(model, tokenizer, lines, options),
        strict=True,
    ):
        assert [row[2] for row in places] == [each.text for each in best]


def test_a_translation_is_one_line_whatever_the_model_writes(lively: Path, monkeypatch):
    tokenizer = load(lively)[1]
    broken = [
        Hypothesis(tokenizer.target.encode(text), 0.0, 0.0, True) for text in ("a\nb\r", "\n")
    ]
    monkeypatch.setattr(translating, "search", lambda model, source, real, **_: [broken])
    assert everyhead("translate", lively, "x").out == "a b \n"
    out = everyhead("translate", lively, "x", "--n-best", 2).out
    assert out == "1\t0.0000\ta b \n1\t0.0000\t \n"


def test_what_is_too_long_is_cut_and_said_with_its_line(lively: Path):
    text = f"{SENTENCES[0]}\n{'red cat ' * 100}\n"
    code, out, err = everyhead("translate", lively, *SHORT, stdin=text.encode("utf-8"))
    assert code == 0 and out.count("\n") == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("everyhead: line 2 has ") and "cut to 63" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--n-best", "5", "--beam", "2"], "n_best is 5 and beam is 2"),
        (["--n-best", "0"], "n_best is 0"),
        (["--beam", "0"], "beam is 0"),
        (["--max-len", "0"], "max_len is 0"),
        (["--batch-tokens", "0"], "batch_tokens"),
        (["--length-penalty", "nan"], "length_penalty is nan"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], words: str, lively: Path):
    assert words in refused("translate", lively, "I see the cat.", *options)


def test_what_is_not_utf8_is_named_by_its_line(lively: Path):
    words = refused("translate", lively, stdin=b"I see.\ncaf\xe9\n")
    assert words.startswith("Line 2 of standard input is not UTF-8")
    assert "is not UTF-8; set the terminal" in refused("translate", lively, "caf\udce9")


def test_the_name_of_a_file_is_a_sentence_but_the_likely_mistake_is_said(lively: Path, pairs: Path):
    code, out, err = everyhead("translate", lively, pairs, *SHORT)
    assert code == 0 and out.count("\n") == 1
    assert f"everyhead translate {lively} < {pairs}" in err


def test_a_terminal_is_asked_and_answered_line_by_line(lively: Path, monkeypatch):
    with streams(b"I see the cat.\nI buy the book.\n") as (out, err):
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        assert main(["translate", str(lively), *SHORT]) == 0
        assert out.getvalue().count(b"\n") == 2
        sys.stderr.flush()
        assert err.getvalue() == b"Type a sentence and Enter; Ctrl-D ends.\n"
