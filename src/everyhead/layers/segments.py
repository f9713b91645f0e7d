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
        self._used = 0  # rows of the memory in use

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add (B, K, T, D); the new ones and at most M before them come back.

        Raises:
            ValueError: more positions than there is room for.
        """
        self._check(self.length + k.shape[2])
        if self._k is None or self._v is None:
            room = (*k.shape[:2], 2 * self.reach)
            self._k, self._v = k.new_empty(*room, k.shape[3]), v.new_empty(*room, v.shape[3])
        before = self._used
        both = self._entered(self._k, k, before), self._entered(self._v, v, before)
        self._used = min(before + k.shape[2], 2 * self.reach)
        if before + k.shape[2] > 2 * self.reach:  # what is older than M left
            self._used = min(min(before, self.reach) + k.shape[2], 2 * self.reach)
        self.length += k.shape[2]
        return both

    def _entered(self, memory: Tensor, new: Tensor, used: int) -> Tensor:
        """The last M of `used` rows and the new ones, which the memory then ends with."""
        n, size = new.shape[2], memory.shape[2]
        if used + n <= size:
            memory[:, :, used : used + n] = new
            return memory[:, :, max(0, used - self.reach) : used + n]
        whole = torch.cat([memory[:, :, max(0, used - self.reach) : used], new], 2)
        kept = min(whole.shape[2], size)
        memory[:, :, :kept] = whole[:, :, whole.shape[2] - kept :]
        return whole

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
