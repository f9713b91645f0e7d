"""Rows of ids with what is to be learnt from each: padded on the right, like lengths together."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from everyhead.data.batching import BatchPlan, pad_rows

EVALUATED = 8192  # tokens in a batch where nothing is learnt


class TextBatch(NamedTuple):
    """B rows of T ids.

    ids int64 (B, T), mask bool (B, T) True = token, segments int64 (B, T) or None; labels int64:
    (B,) of texts, (B, 2) of spans, or (N,) of the tokens at `places`, bool (B, T).
    """

    ids: Tensor
    mask: Tensor
    segments: Tensor | None
    labels: Tensor
    places: Tensor | None = None

    @property
    def n_target(self) -> int:
        return self.labels.shape[0]

    def to(self, device: torch.device | str) -> Self:
        moved = {name: x.to(device) for name, x in self._asdict().items() if x is not None}
        return self._replace(**moved)


class TextRows:
    """Ids of texts and what is to be learnt of them.

    labels: a number a row, a pair of numbers a row, or a number for each id with −1 where nothing
    is to be learnt. segments: for each id which of two texts it is of.
    """

    def __init__(
        self,
        ids: Sequence[Sequence[int]],
        labels: Sequence[Any],
        *,
        segments: Sequence[Sequence[int]] | None = None,
        by_token: bool = False,
        pad_id: int = 0,
    ) -> None:
        self.ids, self.labels, self.segments = ids, labels, segments
        self.by_token, self.pad_id = by_token, pad_id

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> list[int]:
        return [len(row) for row in self.ids]

    def batch(self, rows: Sequence[int]) -> TextBatch:
        ids, mask = pad_rows([self.ids[i] for i in rows], self.pad_id)
        segments = None
        if self.segments is not None:
            segments, _ = pad_rows([self.segments[i] for i in rows], 0)
        if not self.by_token:
            return TextBatch(ids, mask, segments, torch.tensor([self.labels[i] for i in rows]))
        labels, _ = pad_rows([self.labels[i] for i in rows], -1)
        places = labels >= 0
        return TextBatch(ids, mask, segments, labels[places], places)

    def plan(self, **rule: Any) -> BatchPlan:
        """Which rows go together; see BatchPlan."""
        return BatchPlan(self.lengths, self.lengths, **rule)

    def batches(self) -> tuple[list[list[int]], list[TextBatch]]:
        """Every row once, for judging: which rows each batch holds, and the batches."""
        order = self.plan(batch_tokens=EVALUATED, seed=0).epoch(0)
        return order, [self.batch(rows) for rows in order]

    @property
    def content(self) -> list[bytes]:
        """All that the batches are made of, for a fingerprint."""
        flat = [i for row in self.ids for i in row], self.lengths
        labels = np.concatenate([np.atleast_1d(np.asarray(x, np.int64)) for x in self.labels])
        return [np.asarray(x, np.int64).tobytes() for x in flat] + [labels.tobytes()]
