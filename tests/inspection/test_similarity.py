"""One word across contexts: beside loops in float64, and vectors whose senses are known."""

import math
import re

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

from everyhead.inspection.similarity import (
    cosines,
    sense_agreement,
    sense_gap,
    word_pieces,
    word_vectors,
)
from everyhead.inspection.trace import record

SENSES = ["river", "money", "river", "money", "river", "money"]


def vectors(layers: int = 3) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((layers, 6, 5)))


def naive_cosine(x: np.ndarray, y: np.ndarray) -> float:
    dot = sum(float(a) * float(b) for a, b in zip(x, y, strict=True))
    return dot / math.sqrt(sum(float(a) ** 2 for a in x) * sum(float(b) ** 2 for b in y))


def test_cosines_agreement_and_gap_are_those_of_the_naive_loops() -> None:
    given = vectors()
    near = cosines(given)
    gaps, shares = sense_gap(given, SENSES), sense_agreement(given, SENSES)
    for number, layer in enumerate(given.numpy()):
        right, within, between = 0, [], []
        for i, x in enumerate(layer):
            others = []
            for j, y in enumerate(layer):
                cosine = naive_cosine(x, y)
                assert near[number, i, j] == pytest.approx(cosine, abs=1e-12)
                if i != j:
                    others.append((cosine, SENSES[j]))
                    (within if SENSES[i] == SENSES[j] else between).append(cosine)
            right += max(others)[1] == SENSES[i]
        assert shares[number] == pytest.approx(right / 6)
        assert gaps[number] == pytest.approx((np.mean(within), np.mean(between)))


def test_senses_apart_agree_wholly_and_equal_vectors_as_chance() -> None:
    apart = torch.tensor(
        [[1.0, 0.01 * i] if s == "river" else [0.01 * i, 1.0] for i, s in enumerate(SENSES)]
    )
    same = torch.ones(6, 2)
    assert sense_agreement(torch.stack([same, apart]), SENSES) == pytest.approx([2 / 5, 1.0])
    assert cosines(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).tolist() == [[0, 0], [0, 1]]


def spans(text: str, size: int) -> list[tuple[int, int]]:
    """Pieces of `size` characters between two special tokens."""
    cut = [(a, min(a + size, len(text))) for a in range(0, len(text), size)]
    return [(0, 0), *cut, (0, 0)]


def test_the_pieces_of_a_word() -> None:
    text = "A bank, the Bank; embankment."
    assert word_pieces(text, "bank", spans(text, 1)) == [3, 4, 5, 6]
    assert word_pieces(text, "bank", spans(text, 1), occurrence=1) == [13, 14, 15, 16]
    assert word_pieces(text, "bank", spans(text, 4)) == [1, 2]
    with pytest.raises(ValueError, match="stands 2 times"):
        word_pieces(text, "bank", spans(text, 1), occurrence=2)
    with pytest.raises(ValueError, match="stands 0 times"):
        word_pieces(text, "river", spans(text, 1))


def test_vectors_of_a_word_are_means_of_the_models_hidden_states() -> None:
    torch.manual_seed(0)
    config = BertConfig(
        *(),
        vocab_size=20,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model, ids = BertModel(config).eval(), torch.tensor([[1, 5, 6, 7, 2]])
    with torch.no_grad(), record(model) as trace:
        states = model(ids, output_hidden_states=True).hidden_states
    expected = torch.stack([(x[0, 2] + x[0, 3]) / 2 for x in states])
    torch.testing.assert_close(word_vectors(trace, [2, 3]), expected)
    with pytest.raises(ValueError, match="places of the 5"):
        word_vectors(trace, [5])
    with pytest.raises(LookupError, match="no layers in 'decoder'"):
        word_vectors(trace, [1], "decoder")


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="one sense a word"):
        sense_agreement(vectors(), SENSES[:5])
    with pytest.raises(ValueError, match="two senses at least"):
        sense_gap(vectors(), ["river"] * 6)
    with pytest.raises(ValueError, match="two words at least"):
        sense_gap(vectors(), ["river"] * 5 + ["money"])


def test_a_capital_whose_small_letter_is_longer_moves_no_place() -> None:
    text = "In İstanbul the Bank is open."
    spans = [(m.start(), m.end()) for m in re.finditer(r"\w+|\.", text)]
    assert word_pieces(text, "bank", spans) == [3]
