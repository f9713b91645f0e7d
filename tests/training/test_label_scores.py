"""Scores of labels, entities and answers, beside scikit-learn's, seqeval's and SQuAD's own."""

import collections
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from sklearn.metrics import accuracy_score
from sklearn.metrics import f1_score as class_f1

from everyhead.training.answer_scores import answer_scores, exact, words_f1
from everyhead.training.label_scores import class_scores, entity_scores

NAMES = ("a", "b", "c", "d")
PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30)
TAGS = st.sampled_from(["O", "O", "B-x", "I-x", "B-y", "I-y"])


@given(PAIRS)
@settings(deadline=None, max_examples=40)
def test_classes_as_scikit_learn_scores_them(pairs):
    found, wanted = zip(*pairs, strict=True)
    scores = class_scores(found, wanted, NAMES, 1)
    assert scores["accuracy"] == pytest.approx(accuracy_score(wanted, found))
    assert scores["macro_f1"] == pytest.approx(class_f1(wanted, found, average="macro"))
    assert scores["majority"] == pytest.approx(accuracy_score(wanted, [1] * len(wanted)))
    each = class_f1(wanted, found, average=None, labels=range(4), zero_division=0)
    for k, name in enumerate(NAMES):
        assert scores.get(f"f1 {name}", 0.0) == pytest.approx(each[k])


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=8), min_size=1, max_size=5))
@settings(deadline=None, max_examples=60)
def test_entities_as_seqeval_scores_them(rows):
    found = [[a for a, _ in row] for row in rows]
    wanted = [[b for _, b in row] for row in rows]
    scores = entity_scores(found, wanted)
    given = {"zero_division": 0}
    assert scores["f1"] == pytest.approx(f1_score(wanted, found, **given))
    assert scores["precision"] == pytest.approx(precision_score(wanted, found, **given))
    assert scores["recall"] == pytest.approx(recall_score(wanted, found, **given))


# ------------------------------------------------------- the definitions of SQuAD's page, by hand


def normal(text):
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def overlap(found, wanted):
    a, b = normal(found).split(), normal(wanted).split()
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    if not a or not b:
        return float(a == b)
    if not same:
        return 0.0
    precision, recall = same / len(a), same / len(b)
    return 2 * precision * recall / (precision + recall)


WORDS = st.lists(st.sampled_from(["the", "a", "cat", "Cat!", "sat", "on", "mat.", "Θ"]), max_size=5)


@given(WORDS, WORDS)
def test_answers_as_squad_defines_them(mine, theirs):
    mine, theirs = " ".join(mine), " ".join(theirs)
    assert words_f1(mine, theirs) == pytest.approx(overlap(mine, theirs))
    assert exact(mine, theirs) == float(normal(mine) == normal(theirs))


def test_the_best_of_several_answers_and_no_answer():
    found = ["the cat", "", "x", ""]
    wanted = [["dog", "cat sat", "Cat."], [], [], ["cat"]]
    scores = answer_scores(found, wanted)
    assert scores["exact"] == scores["f1"] == 0.5 and scores["majority"] == 0.5
    assert scores["answered exact"] == 0.5 and scores["unanswerable f1"] == 0.5
    only = answer_scores(["a b c"], [["b c d"]])
    assert only["f1"] == pytest.approx(overlap("a b c", "b c d"))
    assert "unanswerable f1" not in only
