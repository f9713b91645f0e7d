"""The endless row of batches, whose place is two numbers: epoch and batch.

The order inside an epoch follows from (seed, epoch) alone, so a resumed run finds its place by
those numbers and not by replaying or skipping random draws. Whatever else is random in a batch
(which words are masked) must follow from the seed, the epoch and the row as well.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate


class Position(NamedTuple):
    """The batch that comes next."""

    epoch: int = 0
    batch: int = 0


class Stream:
    """Batches, epoch after epoch.

    order: the rows of each batch of an epoch, like BatchPlan.epoch. collate: (rows, epoch) → the
    batch. fingerprint: changes with the data and with the rule that cuts them into batches.
    """

    def __init__(
        self,
        order: Callable[[int], list[list[int]]],
        collate: Callable[[list[int], int], Any],
        *,
        fingerprint: str,
    ) -> None:
        self.order, self.collate, self.fingerprint = order, collate, fingerprint
        self.position = Position()
        self._epoch: tuple[int, list[list[int]]] | None = None

    def take(self) -> Any:
        """The next batch; moves on by one."""
        epoch, index = self.position
        batches = self._batches(epoch)
        batch = self.collate(batches[index], epoch)
        last = index + 1 == len(batches)
        self.position = Position(epoch + 1, 0) if last else Position(epoch, index + 1)
        return batch

    def peek(self) -> Any:
        """The next batch, without moving on."""
        epoch, index = self.position
        return self.collate(self._batches(epoch)[index], epoch)

    def _batches(self, epoch: int) -> list[list[int]]:
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self.order(epoch))
        return self._epoch[1]


class BatchStream(Stream):
    """Batches of training pairs; `config` has pad_id, source_pad_id and eos_id."""

    def __init__(self, ids: EncodedPairs, plan: BatchPlan, *, config: Any) -> None:
        self.ids, self.plan, self.config = ids, plan, config
        rule = (plan.batch_tokens, plan.batch_sentences, plan.seed, plan.sort)
        found = fingerprint_of(rule, (plan.source.tobytes(), plan.target.tobytes()))
        super().__init__(plan.epoch, self._pairs, fingerprint=found)

    def _pairs(self, rows: list[int], epoch: int) -> Batch:
        c = self.config
        return collate(
            self.ids, rows, pad_id=c.pad_id, source_pad_id=c.source_pad_id, eos_id=c.eos_id
        )


def shuffled(n_rows: int, size: int, seed: int) -> Callable[[int], list[list[int]]]:
    """The order for rows of one length: every row once an epoch, `size` in a batch."""

    def order(epoch: int) -> list[list[int]]:
        rows = np.random.default_rng([seed, epoch]).permutation(n_rows).tolist()
        return [rows[start : start + size] for start in range(0, n_rows, size)]

    return order


def fingerprint_of(rule: object, content: Iterable[bytes]) -> str:
    """16 hexadecimal digits of the rule that cuts batches and of what is cut."""
    total = hashlib.sha256(repr(rule).encode("utf-8"))
    for each in content:
        total.update(each)
    return total.hexdigest()[:16]
