"""everyhead embed and fill: what comes in, what goes out, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.generation.embed import embed
from everyhead.models.bert import Bert, BertConfig
from everyhead.weights.folder import load, save
from tests.cli.conftest import everyhead, refused

LINES = ["the cat sat", "", "我们 the 家", "the dog"]
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    """A random BERT over a few words."""
    tokenizer = TextTokenizer.train(
        ["the cat sat on the mat", "the dog"], kind="wordpiece", vocab_size=200
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=16,
        n_heads=2,
        n_layers=1,
        d_ff=16,
        max_len=32,
        pad_id=tokenizer.pad_id,
    )
    folder = tmp_path_factory.mktemp("bert") / "bert"
    save(Bert(config).eval(), tokenizer, folder)
    return folder


def numbers(text: str) -> np.ndarray:
    return np.array([[float(x) for x in line.split("\t")] for line in text.splitlines()])


def test_vectors_in_every_form(bert, tmp_path):
    wanted = embed(*load(bert), LINES).numpy()
    stdin = "\n".join(LINES).encode("utf-8") + b"\n"
    code, out, err = everyhead("embed", bert, stdin=stdin)
    assert (code, err) == (0, "") and np.allclose(numbers(out), wanted, atol=1e-6)
    file = tmp_path / "in.txt"
    file.write_bytes(b"\xef\xbb\xbf" + stdin.replace(b"\n", b"\r\n"))
    for name in ("a.npy", "a.tsv", "a.jsonl"):
        result = everyhead("embed", bert, "--file", file, "--out", tmp_path / name)
        assert result == (0, "", "")
    assert np.allclose(np.load(tmp_path / "a.npy"), wanted, atol=1e-6)
    assert (tmp_path / "a.tsv").read_text(encoding="utf-8") == out
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").open(encoding="utf-8")]
    assert [row["text"] for row in rows] == LINES
    assert np.allclose([row["vector"] for row in rows], wanted, atol=1e-6)
    assert (
        everyhead("embed", bert, LINES[2], "--json").out
        == everyhead("embed", bert, "--json", stdin=LINES[2].encode("utf-8")).out
    )


def test_similarity(bert):
    wanted = embed(*load(bert), LINES)
    out = everyhead("embed", bert, "--similarity", "matrix", stdin="\n".join(LINES).encode()).out
    assert np.allclose(numbers(out), (wanted @ wanted.T).numpy(), atol=1e-5)
    stdin = f"{LINES[0]}\t{LINES[3]}\n{LINES[2]}\t{LINES[2]}\n".encode()
    first, second = everyhead("embed", bert, "--similarity", "pairs", stdin=stdin).out.splitlines()
    cosine, *texts = first.split("\t")
    assert texts == [LINES[0], LINES[3]]
    assert abs(float(cosine) - float(wanted[0] @ wanted[3])) < 1e-5
    assert second == f"1.000000\t{LINES[2]}\t{LINES[2]}"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("embed", "BERT", "--similarity", "cosine"), "matrix or pairs"),
        (("embed", "BERT", "--similarity", "pairs"), "Line 1 has 1 columns"),
        (("embed", "BERT", "--out", "x.csv"), ".npy"),
        (("embed", "BERT", "--out", "x.npy", "--json"), "--json writes .jsonl"),
        (("embed", "BERT", "--batch-tokens", "0"), "1 or more"),
        (("embed", "BERT", "a", "--file", "b"), "not both"),
        (("embed", "BERT", "--file", "nowhere.txt"), "nowhere.txt"),
        (("embed", "nowhere/x", "a"), "nowhere/x"),
        (("fill", "BERT"), "Line 1 has no [MASK]"),
        (("fill", "BERT", "--top", "0"), "1 or more"),
        (("fill", "nowhere/x", "a"), "nowhere/x"),
    ],
)
def test_refusals(arguments, words, bert):
    given = [str(bert) if each == "BERT" else each for each in arguments]
    assert words in refused(*given, stdin=b"a line\n")


def test_nothing_in_is_said(bert):
    assert "empty" in refused("embed", bert)
    assert "empty" in refused("fill", bert)
    assert "Line 2 of standard input is not UTF-8" in refused("embed", bert, stdin=b"a\n\xff\n")


def test_fill_shows_candidates(bert):
    code, out, err = everyhead("fill", bert, "the [MASK] sat", "--top", 3)
    rows = [line.split("\t") for line in out.splitlines()]
    assert (code, err, len(rows)) == (0, "", 3)
    chances = [float(row[0]) for row in rows]
    assert chances == sorted(chances, reverse=True) and sum(chances) < 1
    for _, piece, line in rows:
        assert piece.removeprefix("##") in line
    stdin = "the [MASK] sat on [MASK]\n我 [MASK]\n".encode()
    out = everyhead("fill", bert, "--top", 2, stdin=stdin).out
    assert [line.split("\t")[:2] for line in out.splitlines()] == [
        [n, gap] for n, gap in (("1", "1"), ("1", "2"), ("2", "1")) for _ in range(2)
    ]
    told = [json.loads(x) for x in everyhead("fill", bert, "--json", stdin=stdin).out.splitlines()]
    assert [len(each["gaps"]) for each in told] == [2, 1]
    assert told[1]["text"] == "我 [MASK]" and len(told[1]["gaps"][0]) == 5
