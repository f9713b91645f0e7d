"""Relative positions as a term of the scores: one number for each head and bucket of distances.

    B[h, i, j] = table[bucket(j − i), h]

Near distances have a bucket each, farther ones share buckets that widen logarithmically up to
max_distance, and all beyond share the last. Where a query sees both ways half of the buckets are
for keys after it; where it sees no later key, all are for keys before it. Raffel et al. 2020
(1910.10683) section 2.1. Only differences count, so padding at either end moves nothing.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def buckets(distance: Tensor, n_buckets: int, *, max_distance: int = 128, causal: bool) -> Tensor:
    """The bucket of each distance j − i: int64 (…) → int64 (…) below n_buckets.

    Raises:
        ValueError: too few buckets, or a max_distance that the exact ones reach already.
    """
    n = n_buckets if causal else n_buckets // 2
    exact = n // 2  # distances below it have a bucket each
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"{n_buckets} buckets up to distance {max_distance} leave none for far distances: "
            f"take {2 if causal else 4} buckets or more, and a max_distance beyond {exact}"
        )
    far = (-distance).clamp_min(0) if causal else distance.abs()
    # In float32, as the published models were trained: at a bucket's edge rounding decides.
    share = (far.float() / exact).log() / math.log(max_distance / exact)
    wide = exact + (share * (n - exact)).clamp_min(0).long()
    found = torch.where(far < exact, far, wide.clamp_max(n - 1))
    return found if causal else found + n * (distance > 0)


class RelativeBias(nn.Module):
    """The table (n_buckets, H) of one stack, which all its layers share."""

    def __init__(
        self, n_buckets: int, n_heads: int, *, max_distance: int = 128, causal: bool
    ) -> None:
        super().__init__()
        self.n_buckets, self.max_distance, self.causal = n_buckets, max_distance, causal
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        nn.init.normal_(self.weight, std=0.02)
        self.buckets: Tensor
        self.register_buffer("buckets", self._buckets(), persistent=False)

    def _buckets(self) -> Tensor:
        """Of the distances −max_distance … max_distance: (2·max_distance + 1,)."""
        distance = torch.arange(-self.max_distance, self.max_distance + 1)
        return buckets(distance, self.n_buckets, max_distance=self.max_distance, causal=self.causal)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "RelativeBias":
        before = self.buckets
        super()._apply(fn, recurse)
        if before.is_meta and not self.buckets.is_meta:  # there were no numbers
            self.buckets = self._buckets().to(self.buckets.device)
        return self

    def forward(self, n_queries: int, n_keys: int) -> Tensor:
        """The bias (1, H, T, S) of the last n_queries of n_keys places."""
        m, device = self.max_distance, self.weight.device
        distance = torch.arange(1 - n_keys, n_queries, device=device)  # (S + T − 1,)
        rows = self.buckets[distance.clamp(-m, m) + m]
        values = F.embedding(rows, self.weight).t()  # (H, S + T − 1)
        # The last query reads values 0 … S − 1, the one before it begins one later.
        return values.unfold(1, n_keys, 1).flip(1)[None]  # (1, H, T, S)
