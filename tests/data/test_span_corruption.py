"""Text with stretches missing: nothing is lost, shares and lengths are the paper's."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.data.span_corruption import (
    SpanRows,
    corrupted,
    longest_text,
    sentinels_of,
)
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError

SENTINELS = list(range(1099, 999, -1))
TEXTS = [
    "the cat sat on the mat and the dog looked at the cat\n" * 6,
    "回家的路上，我买了面包。他在路上买了12本书。\n" * 4,
    "<extra_id_0> is text here\n",
]


@cache
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(TEXTS, kind="unigram", vocab_size=200)


def restored(source: list[int], target: list[int], marks: list[int]) -> list[int]:
    """The text that both were made of, by reading them alone."""
    missing: dict[int, list[int]] = {}
    for i in target:
        if i in marks:
            missing[i] = []
        else:
            missing[next(reversed(missing))].append(i)
    text: list[int] = []
    for i in source:
        text += missing.pop(i) if i in marks else [i]
    assert list(missing.values()) == [[]]  # the last sentinel, behind everything
    return text


@settings(deadline=None, max_examples=200)
@given(n=st.integers(2, 700), seed=st.integers(0, 10**6), n_marks=st.sampled_from([2, 5, 100]))
def test_source_and_target_together_are_the_text(n: int, seed: int, n_marks: int) -> None:
    ids, marks = list(range(n)), SENTINELS[:n_marks]
    source, target = corrupted(ids, marks, np.random.default_rng(seed))
    assert restored(source, target, marks) == ids
    used = [i for i in target if i in marks]
    assert used == marks[: len(used)] and [i for i in source if i in marks] == used[:-1]
    assert len(used) >= 2
    both = [i in marks for i in target]
    assert not any(a and b for a, b in pairwise(both))  # no empty span


def test_fifteen_percent_are_missing_three_a_span_on_average_anywhere_alike() -> None:
    n, rounds = 512, 400
    missing, lengths = np.zeros(n), []
    for seed in range(rounds):
        _, target = corrupted(list(range(n)), SENTINELS, np.random.default_rng(seed))
        marks = [i for i, piece in enumerate(target) if piece >= 1000]
        lengths += np.diff(marks).tolist()
        missing[[i for i in target if i < 1000]] += 1
    assert missing.sum() == rounds * round(0.15 * n)
    assert np.mean(lengths) - 1 == pytest.approx(3, abs=0.05)
    thirds = missing.reshape(8, -1).mean(1) / rounds
    assert np.allclose(thirds, 0.15, atol=0.02)
    assert missing[0] > 0 and missing[-1] > 0


def test_sentinels_descend_from_the_end_of_the_vocabulary() -> None:
    marks = sentinels_of(tokenizer())
    size = tokenizer().vocab_size
    assert marks == list(range(size - 1, size - 101, -1))
    with pytest.raises(UserError, match="no sentinels"):
        sentinels_of(TextTokenizer.train(TEXTS, kind="byte-level", vocab_size=300))


@pytest.mark.parametrize("max_len", [5, 6, 17, 64, 512])
def test_rows_fill_the_model_and_never_more(max_len: int) -> None:
    for n_marks in (2, 100):
        n = longest_text(max_len, n_marks)
        made = corrupted(list(range(n)), SENTINELS[:n_marks], np.random.default_rng(0))
        assert max(map(len, made)) + 1 <= max_len
        more = corrupted(list(range(n + 1)), SENTINELS[:n_marks], np.random.default_rng(0))
        assert max(map(len, more)) + 1 > max_len
    with pytest.raises(UserError, match="max_len 3 is too short"):
        longest_text(3, 100)


def test_batches_follow_from_seed_epoch_and_row() -> None:
    rows = SpanRows(TEXTS, tokenizer(), max_len=24, seed=3)
    numbers = list(range(len(rows.rows)))
    batch, again = rows.batch(numbers, 1), SpanRows(TEXTS, tokenizer(), max_len=24, seed=3)
    assert torch.equal(batch.source, again.batch(numbers, 1).source)
    alone = rows.batch([4], 1)
    assert torch.equal(alone.labels[0], batch.labels[4][batch.target_mask[4]])
    for other in (rows.batch(numbers, 2), SpanRows(TEXTS, tokenizer(), max_len=24, seed=4)):
        other = other if not isinstance(other, SpanRows) else other.batch(numbers, 1)
        assert other.source.shape != batch.source.shape or not torch.equal(
            other.source, batch.source
        )
    lengths = batch.source_mask.sum(1).tolist(), batch.target_mask.sum(1).tolist()
    assert lengths == (rows.source_lengths, rows.target_lengths)
    assert max(max(side) for side in lengths) <= 24
    assert batch.n_target == sum(rows.target_lengths)


@pytest.mark.parametrize("max_len", [*range(6, 16), 24])
def test_batches_hold_every_piece_of_the_documents(max_len: int) -> None:
    rows = SpanRows(TEXTS, tokenizer(), max_len=max_len, seed=3)
    batch = rows.batch(range(len(rows.rows)), 0)
    marks, pieces = sentinels_of(tokenizer()), []
    for i in range(batch.source.shape[0]):
        source = batch.source[i, batch.source_mask[i]].tolist()
        target = batch.labels[i, batch.target_mask[i]].tolist()
        assert source.pop() == target.pop() == tokenizer().eos_id
        assert batch.target_in[i, 0] == tokenizer().pad_id
        pieces.append(restored(source, target, marks))
    text = [i for ids in pieces for i in ids]
    wanted = tokenizer().encode_batch(TEXTS, special=False, literal=True)
    assert text == [i for ids in wanted for i in ids]  # a sentinel typed in a text is text


def test_too_little_text_is_told() -> None:
    with pytest.raises(UserError, match="two pieces or more"):
        SpanRows([""], tokenizer(), max_len=24, seed=0)
    with pytest.raises(ValueError, match="too few"):
        corrupted([7], SENTINELS, np.random.default_rng(0))
