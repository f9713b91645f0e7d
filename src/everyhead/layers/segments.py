"""The memory of a model that reads segment after segment: the last M positions of each layer.

    h̃ = [SG(h of the M positions before) ; h]        k, v of h̃, q of h        SG: no gradient

Dai et al. 2019 (1901.02860) section 3.2. `SegmentStates` keeps h itself, so W^K and W^V learn from
the memory; `RecentKeys` keeps its keys and values, the same numbers at less work while decoding.
Both are bounded by M, whatever the length.
"""

import torch
from torch import Tensor

from everyhead.layers.cache import KeyValueCache, Move, TextCache


class RecentKeys(KeyValueCache):
    """Keys and values of the last M positions; twice as many have room, so that few are moved."""

    def __init__(self, capacity: int, reach: int) -> None:
        super().__init__(capacity)
        self.reach = reach
        self._used = self._shown = 0  # rows of the memory in use; what the last call sees

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, K, T, D); the new ones and at most M before them come back.

        Raises:
            ValueError: more positions than there is room for.
        """
        n = k.shape[2]
        self._check(self.length + n)
        self._make_room(k, v)
        assert self._k is not None and self._v is not None
        rows = slice(self._used, self._used + n)
        self._k[:, :, rows], self._v[:, :, rows] = k, v
        self._shown = min(self._used, self.reach) + n
        self._used, self.length = rows.stop, self.length + n
        return self.read()

    def read(self) -> tuple[Tensor, Tensor]:
        """The keys and values that the last call sees."""
        if self._k is None or self._v is None:
            return super().read()
        rows = slice(self._used - self._shown, self._used)
        return self._k[:, :, rows], self._v[:, :, rows]

    def _make_room(self, k: Tensor, v: Tensor) -> None:
        """For T more: what is older than M leaves when the memory is full."""
        need = k.shape[2] + self._used
        if self._k is None or self._v is None:
            size = min(self.capacity, max(2 * self.reach, k.shape[2]))
            room = (*k.shape[:2], size)
            self._k, self._v = k.new_empty(*room, k.shape[3]), v.new_empty(*room, v.shape[3])
        elif need > self._k.shape[2]:
            kept = min(self._used, self.reach)
            size = max(self._k.shape[2], kept + k.shape[2])
            self._k = _moved(self._k, self._used, kept, size)
            self._v = _moved(self._v, self._used, kept, size)
            self._used = kept

    def move(self, move: Move) -> None:
        if self._k is not None and self._v is not None:
            self._k, self._v = move.apply(self._k, self._used), move.apply(self._v, self._used)

    def crop(self, n: int) -> None:
        left = self._used - (self.length - min(n, self.length))
        if n and left < min(n, self.reach):
            raise ValueError(
                f"the memory holds the last {self._used} positions of {self.length}; what position "
                f"{n} saw is gone: crop it to 0 and read the text again"
            )
        self._used, self.length = max(left, 0), min(n, self.length)


class SegmentStates(KeyValueCache):
    """States of the last M positions, which keys and values are made of anew."""

    def __init__(self, capacity: int, reach: int) -> None:
        super().__init__(capacity)
        self.reach = reach
        self._states: Tensor | None = None  # (B, ≤ M, C)

    def extended(self, x: Tensor) -> Tensor:
        """The memory with x (B, T, C) behind it, (B, ≤ M + T, C); x enters the memory.

        Raises:
            ValueError: more positions than there is room for.
        """
        self._check(self.length + x.shape[1])
        whole = x if self._states is None else torch.cat([self._states, x], 1)
        self._states = whole[:, max(0, whole.shape[1] - self.reach) :].detach()
        self.length += x.shape[1]
        return whole

    def move(self, move: Move) -> None:
        if self._states is not None:
            self._states = self._states.index_select(0, move.rows)

    def crop(self, n: int) -> None:
        if n >= self.length:
            return
        if n and self.length > self.reach:
            raise ValueError(f"the memory of {self.reach} positions cannot go back to {n}")
        self._states = None if self._states is None or not n else self._states[:, :n]
        self.length = n


class SegmentCache(TextCache):
    """Of a decoder without memory of its own: the last M positions; states: keep h, not k and v."""

    def __init__(self, n_layers: int, capacity: int, *, reach: int, states: bool = False) -> None:
        super().__init__(n_layers, capacity)
        kind = SegmentStates if states else RecentKeys
        self.reach = reach
        self.self_attn = [kind(capacity, reach) for _ in range(n_layers)]

    def note(self, real: Tensor | None, ids: Tensor) -> Tensor | None:
        """Before new ids (B, T) enter: which of them and the M before are tokens; None: all."""
        before = min(self.length, self.reach)
        seen = super().note(real, ids)
        return None if seen is None else seen[:, seen.shape[1] - before - ids.shape[1] :]


def _moved(x: Tensor, used: int, kept: int, size: int) -> Tensor:
    """The last `kept` of `used` rows at the beginning of a memory of so many."""
    rows = x[:, :, used - kept : used].clone()
    if size > x.shape[2]:
        x = x.new_empty(*x.shape[:2], size, x.shape[3])
    x[:, :, :kept] = rows
    return x
