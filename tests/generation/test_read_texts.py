"""What is said of texts that are longer than the model reads."""

import warnings
from typing import Any

import pytest

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.generation.read_texts import classify, tag
from everyhead.models.tasks import (
    SequenceClassifier,
    SequenceClassifierConfig,
    TokenClassifier,
    TokenClassifierConfig,
)

LINES = ["we walk home", "we walk home and then we walk home again", "we walk"]
BODY = {"d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 8, "max_len": 7, "pooler": True,
        "gap_head": False, "next_sentence_head": False}  # fmt: skip


@pytest.fixture(scope="module")
def words() -> TextTokenizer:
    return TextTokenizer.train(LINES, kind="wordpiece", vocab_size=120)


def fields(words: TextTokenizer, **more: Any) -> dict[str, Any]:
    body = BODY | {"vocab_size": words.vocab_size} | more
    return {"family": "bert", "body": body}


def test_a_text_that_is_classified_by_its_beginning_alone_is_told(words: TextTokenizer) -> None:
    config = SequenceClassifierConfig(**fields(words), labels=("a", "b"), pooling="pooler")
    model = SequenceClassifier(config).eval()
    with pytest.warns(UserWarning, match="1 of 3 lines are longer than 7 .* line 2.*is not read"):
        found = classify(model, words, LINES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert classify(model, words, LINES[:1]) == found[:1]


def test_words_that_are_not_tagged_are_told(words: TextTokenizer) -> None:
    labels = ("O", "B-x", "I-x")
    model = TokenClassifier(TokenClassifierConfig(**fields(words, pooler=False), labels=labels))
    with pytest.warns(UserWarning, match="1 of 3 lines are longer than 7 .* line 2.*is not read"):
        found = tag(model.eval(), words, LINES)
    assert len(found[1].tags) == 9 and set(found[1].tags[5:]) == {"O"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tag(model, words, LINES[::2])
