"""Decoding by random features: what came before is one sum a head, however long it was.

    S ← S + φ(k_t)ᵀ [v_t, 1]        (m, D + 1) numbers a head, and a peak

Choromanski et al. 2021 (2009.14794) section 2.5.1; Katharopoulos et al. 2020 (2006.16236) section
3.4. A sum cannot be taken apart, so the cache goes back to its beginning only. Where somebody looks
from the beginning on (layers/probe.py), keys are kept as elsewhere, so that there is a matrix.
"""

from typing import Any, cast

import torch
from torch import Tensor

from everyhead.layers import probe
from everyhead.layers.cache import KeyValueCache, Move, TextCache
from everyhead.layers.feature_attention import FeatureParts, summed, widened
from everyhead.layers.prefix_sums import Sums


class FeatureSums(KeyValueCache):
    """The sums of one attention; `real` (B, T): which of the keys that enter now are tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.sums: Sums | None = None
        self.real: Tensor | None = None

    @property
    def bias(self) -> None:
        """Earlier padding never entered."""
        return None

    def entered(self, parts: Any) -> Any:
        """The parts with the sums before them; their own keys are summed for the next call.

        Raises:
            ValueError: more positions than there is room for.
        """
        end = self.length + parts.k.shape[2]
        self._check(end)
        parts = parts._replace(before=self.sums)
        self.sums, self.length = self._with(parts), end
        return parts

    def _with(self, parts: FeatureParts) -> Sums:
        if self.real is not None:
            hidden = ~self.real[:, None, :, None]
            parts = parts._replace(k=parts.k.masked_fill(hidden, 0))
            parts = parts._replace(v=parts.v.masked_fill(hidden, 0))
        with torch.autocast(parts.q.device.type, enabled=False):
            return summed(widened(parts), self.real, slice(0, parts.k.shape[2]))

    def move(self, move: Move) -> None:
        if self.sums is not None:
            self.sums = Sums(*(x.index_select(0, move.rows) for x in self.sums))

    def crop(self, n: int) -> None:
        if n == 0:
            self.sums, self.length = None, 0
        elif n < self.length:
            raise ValueError(
                f"the cache holds the sum of {self.length} positions, of which none can be taken "
                "away: crop it to 0 and read the text again"
            )


class FeatureCache(TextCache):
    """Of a decoder without memory: its size does not depend on how much was read."""

    def __init__(self, n_layers: int, capacity: int) -> None:
        super().__init__(n_layers, capacity)
        self.capacity, self.looked = capacity, False
        self._tokens: Tensor | int = 0
        self._begin()

    def _begin(self) -> None:
        kind = KeyValueCache if self.looked else FeatureSums
        self.self_attn = [kind(self.capacity) for _ in self.self_attn]

    def note(self, real: Tensor | None, ids: Tensor) -> Tensor | None:
        """Before new ids (B, T) enter: which of the keys that stay are tokens; None: all."""
        if self.length == 0 and self.looked != probe.active():
            self.looked = probe.active()
            self._begin()
        if self.looked:
            return super().note(real, ids)
        for sums in cast(list[FeatureSums], self.self_attn):
            sums.real = real
        self._tokens = self._tokens + (ids.shape[1] if real is None else real.sum(1, keepdim=True))
        return real

    @property
    def counts(self) -> Tensor | int:
        return super().counts if self.looked else self._tokens

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        if isinstance(self._tokens, Tensor):
            self._tokens = self._tokens.index_select(0, index)

    def crop(self, n: int) -> None:
        super().crop(n)
        if self.length == 0:
            self._tokens = 0
