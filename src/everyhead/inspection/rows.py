"""A matrix of attention some rows at a time, so that its size never has to fit into memory.

A source is a `Place` of a trace, which computes the rows it is asked for, or weights (H, T, S) that
exist already: an array or a tensor, NaN (or a numpy mask) where a query may not look.
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

# Weights computed at once, heads included; 2²¹ of them in float32 are 8 MB.
AT_ONCE = 1 << 21


@runtime_checkable
class Computed(Protocol):
    """What a `Place` offers: the shape (B, H, T, S), the kind, and any rows of it."""

    @property
    def shape(self) -> tuple[int, int, int, int]: ...

    @property
    def kind(self) -> str: ...

    def weights(
        self, heads: list[int] | slice | None = None, rows: slice | Tensor | None = None
    ) -> Tensor: ...


Source = Computed | ArrayLike | Tensor


class Matrix:
    """The heads of one attention for one text of the batch: (H, T, S)."""

    def __init__(self, source: Source, *, batch: int = 0) -> None:
        self._batch, self._texts = batch, 1
        self._place: Computed | None = None
        if not isinstance(source, Computed):
            self._given = _given(source)
            self.n_heads, self.n_queries, self.n_keys = self._given.shape
            return
        self._place = source
        self._texts, self.n_heads, self.n_queries, self.n_keys = source.shape
        if not 0 <= batch < self._texts:
            raise ValueError(f"there is no text {batch}; the batch has {self._texts}")

    @property
    def kind(self) -> str | None:
        """`self` or `cross` where the source knows."""
        return None if self._place is None else self._place.kind

    def rows(self, start: int, end: int) -> Tensor:
        """(H, end − start, S) on the source's device, 0 where a query may not look."""
        if self._place is None:
            return self._given[:, start:end]
        return self._place.weights(rows=slice(start, end))[self._batch].detach()

    def chunks(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, rows (H, t, S)) from the top to the bottom."""
        size = max(1, AT_ONCE // max(1, self._texts * self.n_heads * self.n_keys))
        for start in range(0, self.n_queries, size):
            yield start, self.rows(start, min(start + size, self.n_queries))


def _given(source: ArrayLike | Tensor) -> Tensor:
    """
    Raises:
        ValueError: not (H, T, S), or empty.
    """
    if isinstance(source, Tensor):
        given = source.detach()
    else:
        given = torch.from_numpy(np.ma.asarray(source, dtype=np.float64).filled(np.nan))
    if given.dim() != 3 or 0 in given.shape:
        raise ValueError(
            f"weights are (heads, queries, keys), none of them 0; got {tuple(given.shape)}. Take "
            "one text of a batch: weights[0]"
        )
    return given.to(torch.promote_types(given.dtype, torch.float32)).nan_to_num(0.0)
