"""The cache of a model that cannot go on from where it stopped: it keeps the text alone.

Each step reads everything again, so a token costs a whole pass. The protocol is that of keys and
values (layers/cache.py), and a search knows no difference.
"""

import torch
from torch import Tensor


class RereadCache:
    """ids (B, length) so far, and which are real, (B, length) or None while all are."""

    key_mask: Tensor | None = None  # there are no keys
    piece: int | None = None  # it takes any number of positions at once

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self.ids: Tensor | None = None
        self.real: Tensor | None = None

    def append(self, ids: Tensor, real: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """New ids (B, T) at the end; the whole text comes back, and where it is real.

        Raises:
            ValueError: they do not fit into the capacity.
        """
        end = self.length + ids.shape[1]
        if end > self.capacity:
            raise ValueError(
                f"the cache holds {self.capacity} positions and {end} are needed: make it longer"
            )
        if real is not None or self.real is not None:
            shape = (ids.shape[0], self.length)
            old = torch.ones(shape, dtype=torch.bool, device=ids.device)
            new = torch.ones_like(ids, dtype=torch.bool)
            parts = (old if self.real is None else self.real, new if real is None else real)
            self.real = torch.cat(parts, 1)
        self.ids = ids if self.ids is None else torch.cat([self.ids, ids], 1)
        self.length = end
        return self.ids, self.real

    def reorder(self, index: Tensor) -> None:
        """Row i becomes what row index[i] was; rows may repeat or go."""
        if self.ids is not None:
            self.ids = self.ids.index_select(0, index)
        if self.real is not None:
            self.real = self.real.index_select(0, index)

    def crop(self, n: int) -> None:
        """Forget everything after the first n positions."""
        self.length = min(self.length, n)
        self.ids = None if self.ids is None else self.ids[:, :n]
        self.real = None if self.real is None else self.real[:, :n]
