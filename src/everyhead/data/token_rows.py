"""Documents as one long row of ids, cut into rows of T for learning what comes next.

    ids     … w_k  w_{k+1} | <end> w_1 w_2 …        document: <end> w_1 … w_n <end>
    labels  … w_{k+1} <end> | w_1   w_2 w_3 …

Every id is a label once, but the first of a document, which follows from nothing. `documents` says
whose each id is, so that attention can keep to its own; where a model cannot, rows are cut where a
document ends. While training, each epoch cuts at another offset, which follows from (seed, epoch).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from everyhead.errors import UserError

END_OF_TEXT = "<|endoftext|>"


class PackedBatch(NamedTuple):
    """B rows of T ids.

    ids and labels int64 (B, T); learnt bool (B, T), True where the label counts; documents int64
    (B, T), None where no row has two; mask bool (B, T), True = token, None where none is padding.
    """

    ids: Tensor
    labels: Tensor
    learnt: Tensor
    documents: Tensor | None
    mask: Tensor | None
    n_target: int

    def to(self, device: torch.device | str) -> Self:
        moved = {k: x.to(device) for k, x in self._asdict().items() if isinstance(x, Tensor)}
        return type(self)(**(self._asdict() | moved))


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    bos_id: int | None
    eos_id: int | None

    def encode_batch(self, texts: Sequence[str], *, special: bool = True) -> list[list[int]]: ...
    def id(self, piece: str) -> int | None: ...


def edges(tokenizer: Encoder) -> tuple[int, int]:
    """The ids before and behind a document: <|endoftext|> where there is one, else bos and eos.

    Raises:
        UserError: the tokenizer has none of them.
    """
    end = tokenizer.id(END_OF_TEXT)
    first = end if end is not None else tokenizer.bos_id
    last = end if end is not None else tokenizer.eos_id
    if first is None:
        first = last
    if first is None or last is None:
        raise UserError("The tokenizer has no piece that ends a text, so documents have no end.")
    return first, last


class TokenRows:
    """All ids of the documents one after the other, and the rows that are cut of them.

    whole: rows may hold several documents, told apart by `documents`; else no row goes beyond the
    end of its document, and short ones are padded.
    """

    def __init__(
        self, texts: Sequence[str], tokenizer: Encoder, *, length: int, whole: bool = True
    ) -> None:
        first, self.last = edges(tokenizer)
        encoded = tokenizer.encode_batch(texts, special=False)
        rows = [np.array([first, *ids, self.last], dtype=np.int64) for ids in encoded if ids]
        if not rows:
            raise UserError("There is no text to make rows of.")
        self.ids = np.concatenate(rows)  # (N,)
        self.ends = np.cumsum([len(row) for row in rows])
        self.documents = np.repeat(np.arange(len(rows)), [len(row) for row in rows])  # (N,)
        self.length, self.whole = length, whole
        self._epoch: tuple[tuple[int, int], np.ndarray] | None = None

    @property
    def n_labels(self) -> int:
        """Ids that are predicted when every row is read once."""
        return len(self.ids) - len(self.ends)

    def spans(self, offset: int = 0) -> np.ndarray:
        """Where each row begins and ends, (R, 2); with an offset the first of a stretch is so long.

        The last id of a stretch is a label only.
        """
        if self.whole:
            stretches = [(0, len(self.ids) - 1)]
        else:
            stretches = list(
                zip([0, *self.ends[:-1].tolist()], (self.ends - 1).tolist(), strict=True)
            )
        rows = []
        for begin, end in stretches:
            cuts = np.arange(begin + offset, end, self.length)
            starts = cuts if offset == 0 else np.append(begin, cuts)
            rows.append(np.stack([starts, np.append(starts[1:], end)], 1))
        return np.concatenate(rows)

    def epoch(self, seed: int, number: int) -> np.ndarray:
        """The rows of an epoch, whose offset follows from (seed, number) alone."""
        if self._epoch is None or self._epoch[0] != (seed, number):
            offset = int(np.random.default_rng([seed, number, 1]).integers(self.length))
            self._epoch = (seed, number), self.spans(offset)
        return self._epoch[1]

    def order(self, size: int, seed: int, number: int) -> list[list[int]]:
        """The rows of an epoch in a random order, `size` in a batch; from (seed, number) alone."""
        rows = np.random.default_rng([seed, number]).permutation(len(self.epoch(seed, number)))
        return [rows[start : start + size].tolist() for start in range(0, len(rows), size)]

    def batch(self, spans: np.ndarray) -> PackedBatch:
        """These rows (B, 2), padded on the right where they differ in length."""
        widths = spans[:, 1] - spans[:, 0]
        real = np.arange(widths.max()) < widths[:, None]  # (B, T)
        place = np.where(real, spans[:, :1] + np.arange(widths.max()), 0)
        documents = np.where(real, self.documents[place], -1)
        learnt = real & (self.documents[place + 1] == documents)
        several = bool(((documents != documents[:, :1]) & real).any())
        ids, labels = (np.where(real, self.ids[x], self.last) for x in (place, place + 1))
        return PackedBatch(
            torch.from_numpy(ids),
            torch.from_numpy(labels),
            torch.from_numpy(learnt),
            torch.from_numpy(documents) if several else None,
            None if real.all() else torch.from_numpy(real),
            int(learnt.sum()),
        )

    def batches(self, size: int) -> list[PackedBatch]:
        """Every id once, in order, at most `size` rows in a batch: for judging."""
        spans = self.spans()
        return [self.batch(spans[start : start + size]) for start in range(0, len(spans), size)]
