"""Questions and texts: SQuAD's files, windows over long texts, and back to the answer."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from everyhead.data.span_windows import best_span, span_rows, windows_of
from everyhead.data.squad import Question, read_squad
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.weights.fetch import fetch

FIFTY = Path(__file__).parent / "questions.json"


@pytest.fixture(scope="module")
def minilm():
    folder = fetch("minilm").folder
    return TextTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


def test_fifty_questions_over_our_own_docs():
    found = read_squad(FIFTY)
    assert len(found) == 50 and sum(not each.answers for each in found) == 10
    for each in found:
        for text, start in each.answers:
            assert each.context[start : start + len(text)] == text


def test_version_one_has_no_word_of_impossible(tmp_path):
    qas = [{"id": 7, "question": "Who?", "answers": [{"text": "she", "answer_start": 0}] * 2}]
    path = tmp_path / "a.json"
    data = {"data": [{"paragraphs": [{"context": "she did", "qas": qas}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    assert read_squad(path) == [Question("7", "Who?", "she did", (("she", 0), ("she", 0)))]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"answers": [{"text": "x", "answer_start": 3}]}, "does not stand at character 3"),
        ({"question": " "}, "is empty"),
        ({"id": None}, "no question|JSON|None"),
    ],
)
def test_mistakes_are_sentences(change, words, tmp_path):
    each = {"id": "1", "question": "Q?", "answers": [{"text": "she", "answer_start": 0}]} | change
    if change.get("id", 0) is None:
        del each["id"]
    path = tmp_path / "a.json"
    data = {"data": [{"paragraphs": [{"context": "she did", "qas": [each]}]}]}
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(UserError, match="not SQuAD" if "id" not in each else words):
        read_squad(path)


@pytest.mark.parametrize("text", ["[1]", "{", '{"data": []}', '{"data": 3}'])
def test_other_files_are_refused(text, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"SQuAD|no question"):
        read_squad(path)


def test_windows_are_transformers(minilm):
    ours, theirs = minilm
    pairs = [(each.question, each.context * 3) for each in read_squad(FIFTY)]
    found = windows_of(ours, pairs, longest=64, stride=16)
    told = theirs(
        [q for q, _ in pairs],
        [c for _, c in pairs],
        truncation="only_second",
        max_length=64,
        stride=16,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    assert [window.ids for window in found] == told["input_ids"]
    assert [window.segments for window in found] == told["token_type_ids"]
    assert [window.row for window in found] == told["overflow_to_sample_mapping"]
    for i, window in enumerate(found):
        of_text = [part == 1 for part in told.sequence_ids(i)]
        assert [place is not None for place in window.offsets] == of_text
        wanted = told["offset_mapping"][i]
        assert all(p is None or p == w for p, w in zip(window.offsets, wanted, strict=True))


@pytest.mark.parametrize("longest", [40, 64, 384])
def test_the_right_logits_give_the_answer_back(minilm, longest):
    """A reader that points at the labels answers every question of the fifty exactly."""
    tokenizer, _ = minilm
    questions = read_squad(FIFTY)
    pairs = [(each.question, each.context) for each in questions]
    windows = windows_of(tokenizer, pairs, longest=longest, stride=longest)
    rows = span_rows(tokenizer, windows, questions)
    assert max(rows.lengths) <= longest
    for row, each in enumerate(questions):
        mine = [i for i, window in enumerate(windows) if window.row == row]
        logits = []
        for i in mine:
            scores = np.zeros((len(windows[i].ids), 2))
            for side, place in enumerate(rows.labels[i]):
                scores[place, side] += 5
            logits.append(scores)
        found = best_span(each.context, [windows[i] for i in mine], logits)
        wanted = each.answers[0][0] if each.answers else ""
        assert found.text == wanted
        assert each.context[found.start : found.end] == found.text


def test_the_best_span_against_all_pairs(minilm):
    tokenizer, _ = minilm
    text = "one two three four five six"
    windows = windows_of(tokenizer, [("which?", text)], longest=64, stride=8)
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.normal(size=(len(windows[0].ids), 2))
        places = [i for i, place in enumerate(windows[0].offsets) if place]
        pairs = [(a, b) for a in places for b in places if a <= b < a + 3]
        a, b = max(pairs, key=lambda pair: scores[pair[0], 0] + scores[pair[1], 1])
        best = scores[a, 0] + scores[b, 1]
        none = scores[0].sum()
        found = best_span(text, windows, [scores], longest=3)
        assert found.margin == pytest.approx(best - none)
        wanted = text[windows[0].offsets[a][0] : windows[0].offsets[b][1]]
        assert found.text == (wanted if best > none else "")
        certain = best_span(text, windows, [scores], longest=3, may_be_none=False)
        assert certain.text == wanted


def test_a_question_as_long_as_a_text_leaves_room(minilm):
    tokenizer, _ = minilm
    windows = windows_of(tokenizer, [("why " * 500, "a b c " * 40)], longest=48, stride=100)
    assert max(len(window.ids) for window in windows) <= 48
    seen = {place for window in windows for place in window.offsets if place}
    assert len(seen) == 120  # every word of the text is in some window
