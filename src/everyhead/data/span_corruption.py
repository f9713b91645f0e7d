"""Text with stretches missing, and what is missing: T5's objective.

    text      Thank you [for inviting] me to your party [last] week
    source    Thank you <X> me to your party <Y> week </s>
    target    <X> for inviting <Y> last <Z> </s>              <X>, <Y>, <Z>: sentinels

Raffel et al. 2020 (1910.10683) section 3.1.4 and figure 2; 15 % of the pieces, 3 a span on average
(sections 3.3.3 and 3.3.4). Together the two hold every piece, in order. Sentinels descend from the
last id of the vocabulary. Spans never touch, so each has a sentinel of its own; where they lie
follows from (seed, epoch, row), so each epoch has others.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from everyhead.data.batching import Batch, EncodedPairs, collate
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError

SHARE, SPAN = 0.15, 3.0  # of the pieces; pieces a span on average
LEAST = 2  # pieces of a row: one that is missing and one that is not


class Corrupted(NamedTuple):
    """Ids without `</s>`."""

    source: list[int]
    target: list[int]


def sentinels_of(tokenizer: TextTokenizer) -> list[int]:
    """Ids of <extra_id_0>, <extra_id_1>, …

    Raises:
        UserError: the tokenizer has fewer than two, one for a span and one for the end.
    """
    found: list[int] = []
    while (number := tokenizer.id(f"<extra_id_{len(found)}>")) is not None:
        found.append(number)
    if len(found) < 2:
        raise UserError(
            "The tokenizer has no sentinels <extra_id_0>, <extra_id_1>, … that could stand for "
            'what is missing: learn one with tokenizer.kind = "unigram".'
        )
    return found


def sizes(n: int, n_sentinels: int) -> tuple[int, int]:
    """Of n pieces: how many are missing, and in how many spans."""
    missing = min(max(round(SHARE * n), 1), n - 1)
    spans = min(max(round(missing / SPAN), 1), missing, n - missing + 1, n_sentinels - 1)
    return missing, spans


def corrupted(ids: Sequence[int], sentinels: Sequence[int], rng: Generator) -> Corrupted:
    """ids: n ≥ 2 pieces of text → source and target.

    Raises:
        ValueError: fewer than 2 pieces.
    """
    if len(ids) < LEAST:
        raise ValueError(f"{len(ids)} pieces are too few: one is missing and one is not")
    missing, spans = sizes(len(ids), len(sentinels))
    lengths = _parts(missing, spans, rng)
    # Between spans lies a piece at least, before the first and behind the last there may be none.
    between = _parts(len(ids) - missing + 2, spans + 1, rng)
    between[0] -= 1
    between[-1] -= 1
    source, target, at = list(ids[: between[0]]), [], between[0]
    for mark, length, rest in zip(sentinels, lengths, between[1:], strict=False):
        source += [mark, *ids[at + length : at + length + rest]]
        target += [mark, *ids[at : at + length]]
        at += length + rest
    return Corrupted(source, [*target, sentinels[spans]])


def _parts(total: int, n: int, rng: Generator) -> list[int]:
    """n whole numbers from 1 with this sum, every such row of numbers alike likely."""
    cuts = np.sort(rng.choice(total - 1, n - 1, replace=False)) + 1
    return np.diff([0, *cuts.tolist(), total]).tolist()


def longest_text(max_len: int, n_sentinels: int) -> int:
    """Most pieces of a text whose source and target, `</s>` included, have at most max_len.

    Raises:
        UserError: not even the shortest text would fit.
    """
    n = LEAST
    while max(_lengths(n + 1, n_sentinels)) <= max_len:
        n += 1
    if max(_lengths(n, n_sentinels)) > max_len:
        raise UserError(f"model.max_len {max_len} is too short for text with gaps; give 5 or more.")
    return n


def _lengths(n: int, n_sentinels: int) -> tuple[int, int]:
    missing, spans = sizes(n, n_sentinels)
    return n - missing + spans + 1, missing + spans + 2


def _rows(ids: Sequence[int], length: int) -> list[list[int]]:
    """Stretches of `length` pieces; the last is shorter, and takes one over if it had only one."""
    starts = list(range(0, len(ids), length))
    if len(ids) % length == 1 and len(starts) > 1:
        starts[-1] -= 1
    rows = [list(ids[a:b]) for a, b in pairwise([*starts, len(ids)])]
    return [row for row in rows if len(row) >= LEAST]


class SpanRows:
    """Documents cut into rows of at most max_len, source and target alike, and their batches."""

    def __init__(
        self, texts: Sequence[str], tokenizer: TextTokenizer, *, max_len: int, seed: int
    ) -> None:
        self.tokenizer, self.seed = tokenizer, seed
        self.sentinels = sentinels_of(tokenizer)
        length = longest_text(max_len, len(self.sentinels))
        self.rows: list[list[int]] = []
        for ids in tokenizer.encode_batch(texts, special=False, literal=True):
            self.rows += _rows(ids, length)
        if not self.rows:
            raise UserError("There is no text of two pieces or more to learn from.")

    @property
    def source_lengths(self) -> list[int]:
        """As they stand in a batch: with `</s>`; the targets are shorter, or hardly longer."""
        return [_lengths(len(row), len(self.sentinels))[0] for row in self.rows]

    @property
    def target_lengths(self) -> list[int]:
        return [_lengths(len(row), len(self.sentinels))[1] for row in self.rows]

    def row(self, number: int, epoch: int) -> Corrupted:
        rng = np.random.default_rng([self.seed, epoch, number])
        return corrupted(self.rows[number], self.sentinels, rng)

    def batch(self, numbers: Sequence[int], epoch: int) -> Batch:
        """Padded ids; the decoder starts from padding."""
        made = [self.row(number, epoch) for number in numbers]
        ids = EncodedPairs([row.source for row in made], [row.target for row in made])
        pad_id, eos_id = self.tokenizer.pad_id, self.tokenizer.eos_id
        assert pad_id is not None and eos_id is not None  # as who has sentinels has them
        return collate(ids, range(len(made)), pad_id=pad_id, eos_id=eos_id)
