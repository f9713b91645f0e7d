"""Scores are sacreBLEU's own, said with its signature."""

import random
import sys

import numpy as np
import pytest
import sacrebleu

from everyhead.errors import UserError
from everyhead.training.scoring import score_translations

REFERENCES = [
    "The cat sat on the old mat.",
    "He bought twelve books yesterday.",
    "There's no bread at home today.",
    "She draws a tree and the moon.",
] * 5
FOUND = [
    "The cat sat on a mat.",
    "He bought twelve books.",
    "There is no bread at home today.",
    "She draws the moon and a big tree.",
] * 5


@pytest.mark.parametrize("tokenize", ["13a", "char", "intl", "none"])
def test_bleu_and_chrf_are_sacrebleus(tokenize: str):
    scores = score_translations(FOUND, REFERENCES, tokenize=tokenize)
    bleu = sacrebleu.corpus_bleu(FOUND, [REFERENCES], tokenize=tokenize)
    chrf = sacrebleu.corpus_chrf(FOUND, [REFERENCES])
    assert scores["bleu"] == round(bleu.score, 2) and scores["chrf"] == round(chrf.score, 2)
    assert f"tok:{tokenize}|" in scores["bleu_signature"]
    assert scores["chrf_signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert "bleu_low" not in scores


def test_chinese_is_cut_into_characters():
    scores = score_translations(["我买了新书。"], ["我买了新书。"], tokenize="zh")
    assert scores["bleu"] == scores["chrf"] == 100


def test_the_interval_is_the_bootstraps_and_the_same_every_time():
    rng = random.Random(0)
    found = [" ".join(rng.sample(line.split(), len(line.split()))) for line in FOUND]
    found[::3] = REFERENCES[::3]
    scores = score_translations(found, REFERENCES, tokenize="13a", n_bootstrap=500)
    assert scores == score_translations(found, REFERENCES, tokenize="13a", n_bootstrap=500)
    assert "bs:500|seed:12345" in scores["bleu_signature"]
    assert 0 <= scores["bleu_low"] < scores["bleu"] < scores["bleu_high"] <= 100
    picks = np.random.default_rng(1).integers(0, len(found), (500, len(found)))
    again = sorted(
        sacrebleu.corpus_bleu([found[i] for i in pick], [[REFERENCES[i] for i in pick]]).score
        for pick in picks
    )
    assert scores["bleu_low"] == pytest.approx(again[12], abs=3)
    assert scores["bleu_high"] == pytest.approx(again[487], abs=3)


def test_one_sentence_has_no_interval():
    scores = score_translations(FOUND[:1], REFERENCES[:1], tokenize="13a", n_bootstrap=100)
    assert "bleu_low" not in scores


@pytest.mark.parametrize(("found", "references"), [([], []), (["a"], []), (["a"], ["a", "b"])])
def test_unlike_numbers_of_lines_are_an_error(found: list[str], references: list[str]):
    with pytest.raises(ValueError, match=f"{len(found)} translations and {len(references)}"):
        score_translations(found, references, tokenize="13a")


def test_a_tokenizer_that_is_not_there_is_said_with_those_that_are():
    with pytest.raises(UserError, match="no tokenizer 'xx'; there are 13a, char"):
        score_translations(["a"], ["a"], tokenize="xx")


def test_a_tokenizer_that_needs_what_is_not_installed_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(UserError, match="'ja-mecab' cannot be used here: "):
        score_translations(["a"], ["a"], tokenize="ja-mecab")


def test_without_sacrebleu_it_says_what_to_install(monkeypatch):
    for name in ("sacrebleu.metrics.bleu", "sacrebleu.metrics", "sacrebleu"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=r"pip install 'everyhead\[train\]'"):
        score_translations(["a"], ["a"], tokenize="13a")
