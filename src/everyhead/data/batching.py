"""Ids to padded batches: which sentences go together, and the tensors they become.

A batch of a token budget holds rows × longest ≤ budget, the longest of either side. Sentences
are sorted by length so that little of that is padding, and the batches are shuffled. Order is a
function of (seed, epoch) alone: a resumed run finds its place by recomputing it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.pairs import Pairs
from everyhead.errors import UserError


class EncodedPairs(NamedTuple):
    """Ids of both sides, without `</s>`."""

    source: list[list[int]]
    target: list[list[int]]

    @property
    def size(self) -> int:
        return len(self.source)

    @property
    def source_lengths(self) -> list[int]:
        """As they stand in a batch: with `</s>`."""
        return [len(ids) + 1 for ids in self.source]

    @property
    def target_lengths(self) -> list[int]:
        return [len(ids) + 1 for ids in self.target]

    def within(self, max_len: int) -> tuple["EncodedPairs", int]:
        """Pairs of at most `max_len` ids a side, `</s>` counted, and how many are left out."""
        kept = [row for row in zip(*self, strict=True) if max(map(len, row)) < max_len]
        short = EncodedPairs([source for source, _ in kept], [target for _, target in kept])
        return short, self.size - short.size


def encode_pairs(pairs: Pairs, tokenizer: PairTokenizer) -> EncodedPairs:
    return EncodedPairs(
        tokenizer.source.encode_batch(pairs.source), tokenizer.target.encode_batch(pairs.target)
    )


class Batch(NamedTuple):
    """Padded ids, int64, and masks, True at tokens; masks follow from lengths, not from ids."""

    source: Tensor  # (B, S), ends in </s>
    source_mask: Tensor  # (B, S)
    target_in: Tensor  # (B, T), <pad> and the target: <pad> is the decoder's start
    labels: Tensor  # (B, T), the target and </s>
    target_mask: Tensor  # (B, T), True where labels are real
    n_target: int  # real labels in the batch
    n_sentences: int

    def to(self, device: torch.device | str) -> "Batch":
        tensors = {name: getattr(self, name).to(device) for name in self._fields[:5]}
        return self._replace(**tensors)


def collate(
    ids: EncodedPairs,
    indices: Sequence[int],
    *,
    pad_id: int,
    source_pad_id: int | None = None,
    eos_id: int = 0,
) -> Batch:
    """The batch of these sentences. `source_pad_id` is the target's `pad_id` unless given."""
    source_pad_id = pad_id if source_pad_id is None else source_pad_id
    source, source_mask = pad_rows([[*ids.source[i], eos_id] for i in indices], source_pad_id)
    labels, target_mask = pad_rows([[*ids.target[i], eos_id] for i in indices], pad_id)
    target_in, _ = pad_rows([[pad_id, *ids.target[i]] for i in indices], pad_id)
    n_target = int(target_mask.sum())
    return Batch(source, source_mask, target_in, labels, target_mask, n_target, len(indices))


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows padded on the right: ids (B, T) int64 and mask (B, T) bool, True = token."""
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(lengths.max(initial=0)) < lengths[:, None]
    padded = np.full(mask.shape, pad_id, dtype=np.int64)
    padded[mask] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return torch.from_numpy(padded), torch.from_numpy(mask)


class BatchPlan:
    """Which sentences make up which batch of which epoch.

    Exactly one of `batch_tokens` (budget of rows × longest) and `batch_sentences` (rows) is given.
    `sort` puts like lengths together; by default it is on with a token budget and off with a number
    of rows. Lengths are those in a batch, `</s>` counted.
    """

    def __init__(
        self,
        source_lengths: Sequence[int],
        target_lengths: Sequence[int],
        *,
        batch_tokens: int | None = None,
        batch_sentences: int | None = None,
        seed: int,
        sort: bool | None = None,
    ):
        if (batch_tokens is None) == (batch_sentences is None):
            raise UserError("Give either batch_tokens or batch_sentences, and not both.")
        if (batch_tokens or batch_sentences or 0) < 1:
            raise UserError("batch_tokens and batch_sentences must be 1 or more.")
        self.source = np.asarray(source_lengths, dtype=np.int64)
        self.target = np.asarray(target_lengths, dtype=np.int64)
        if not len(self.source) or len(self.source) != len(self.target):
            raise UserError(
                f"Cannot batch {len(self.source)} sources with {len(self.target)} targets."
            )
        self.longest = np.maximum(self.source, self.target)
        self.batch_tokens, self.batch_sentences = batch_tokens, batch_sentences
        self.seed = seed
        self.sort = batch_tokens is not None if sort is None else sort

    def epoch(self, number: int) -> list[list[int]]:
        """Every sentence once, in batches of indices; from (seed, number) alone."""
        rng = np.random.default_rng([self.seed, number])
        order = rng.permutation(len(self.longest))
        if not self.sort:
            return self._cut(order)
        order = order[np.lexsort((self.target[order], self.longest[order]))]
        batches = self._cut(order)
        return [batches[i] for i in rng.permutation(len(batches))]

    def _cut(self, order: np.ndarray) -> list[list[int]]:
        """Consecutive stretches within the budget; an over-long sentence is a batch by itself."""
        batches: list[list[int]] = [[]]
        width = 0
        for index in order.tolist():
            width = max(width, int(self.longest[index]))
            if batches[-1] and self._over(len(batches[-1]) + 1, width):
                batches.append([])
                width = int(self.longest[index])
            batches[-1].append(index)
        return batches

    def _over(self, rows: int, width: int) -> bool:
        if self.batch_sentences is not None:
            return rows > self.batch_sentences
        return rows * width > (self.batch_tokens or 0)
