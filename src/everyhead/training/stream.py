"""The endless row of batches, whose place is two numbers: epoch and batch.

The order inside an epoch follows from (seed, epoch) alone, so a resumed run finds its place by
those numbers and not by replaying or skipping random draws.
"""

import hashlib
from typing import NamedTuple

from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate
from everyhead.models.transformer import TransformerConfig


class Position(NamedTuple):
    """The batch that comes next."""

    epoch: int = 0
    batch: int = 0


class BatchStream:
    """Batches of the training pairs, epoch after epoch."""

    def __init__(self, ids: EncodedPairs, plan: BatchPlan, *, config: TransformerConfig) -> None:
        self.ids, self.plan, self.config = ids, plan, config
        self.position = Position()
        self._order: tuple[int, list[list[int]]] | None = None

    @property
    def fingerprint(self) -> str:
        """Changes with the sentences' lengths and with the rule that cuts them into batches."""
        p = self.plan
        rule = repr((p.batch_tokens, p.batch_sentences, p.seed, p.sort)).encode("ascii")
        everything = rule + p.source.tobytes() + p.target.tobytes()
        return hashlib.sha256(everything).hexdigest()[:16]

    def take(self) -> Batch:
        """The next batch; moves on by one."""
        epoch, index = self.position
        batches = self._batches(epoch)
        batch = self._collate(batches[index])
        last = index + 1 == len(batches)
        self.position = Position(epoch + 1, 0) if last else Position(epoch, index + 1)
        return batch

    def peek(self) -> Batch:
        """The next batch, without moving on."""
        return self._collate(self._batches(self.position.epoch)[self.position.batch])

    def _batches(self, epoch: int) -> list[list[int]]:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, self.plan.epoch(epoch))
        return self._order[1]

    def _collate(self, indices: list[int]) -> Batch:
        c = self.config
        return collate(
            self.ids, indices, pad_id=c.pad_id, source_pad_id=c.source_pad_id, eos_id=c.eos_id
        )
