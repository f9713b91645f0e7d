"""Words as pieces, beside transformers' word numbers."""

import pytest
from transformers import AutoTokenizer

from everyhead.data.conll import Tagged
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.data.word_rows import TaggedRows, pieces_of, tag_names, words_of
from everyhead.errors import UserError
from everyhead.weights.fetch import fetch

WORDS = ["@Obama", "visits", "unbelievably", "\u200b", "北京", ":)", "Zürich"]


@pytest.fixture(scope="module")
def minilm():
    folder = fetch("minilm").folder
    return TextTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("longest", [6, 9, 64])
def test_first_pieces_are_transformers(minilm, longest):
    ours, theirs = minilm
    found = pieces_of(ours, WORDS, longest)
    told = theirs(WORDS, is_split_into_words=True, truncation=True, max_length=longest)
    assert found.ids == told["input_ids"]
    numbers = told.word_ids()
    wanted = [numbers.index(i) if i in numbers else None for i in range(len(WORDS))]
    assert found.first == wanted


def test_tags_come_back_and_cut_words_are_outside(minilm):
    tags = ["B-per", "O", "O", "O", "B-loc", "O", "I-loc"]
    names = tag_names([[Tagged(WORDS, tags)]])
    assert names == ("O", "B-loc", "I-loc", "B-per", "I-per")
    rows = TaggedRows(minilm[0], [Tagged(WORDS, tags)], tags=names, longest=64)
    batch = rows.rows.batch([0])
    assert [names[i] for i in batch.labels.tolist()] == [
        t for t, w in zip(tags, WORDS, strict=True) if w != "\u200b"
    ]
    numbers = [0] * batch.ids.shape[1]
    for place, label in zip(batch.places[0].nonzero()[:, 0], batch.labels, strict=True):
        numbers[place] = int(label)
    assert rows.read(0, numbers) == tags and rows.n_cut == 1
    short = TaggedRows(minilm[0], [Tagged(WORDS, tags)], tags=names, longest=6)
    assert short.n_cut > 1 and set(short.read(0, [1] * 6)[-2:]) == {"O"}


def test_texts_are_cut_into_words():
    text = "@joe's in New-York: http://x.y/z  我们走!"
    words = words_of(text)
    assert [word.text for word in words] == [
        "@joe",
        "'s",
        "in",
        "New",
        "-",
        "York",
        ":",
        "http://x.y/z",
        "我",
        "们",
        "走",
        "!",
    ]
    assert all(text[word.start : word.end] == word.text for word in words)


def test_tags_without_an_entity_are_refused():
    with pytest.raises(UserError, match="every tag is O"):
        tag_names([[Tagged(["a"], ["O"])]])
