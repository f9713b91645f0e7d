"""Sums over keys that came before, in fixed-size blocks, with exponents that never overflow.

    S_i = Σ_j≤i e^(p_j − c_i) φ_jᵀ [v_j, 1]      c_i = max_j≤i p_j      out_i = φ(q_i) S_i, divided

Choromanski et al. 2021 (2009.14794) section 2.5.1 has the sums. Their published code takes the peak
over all keys, through which the future is seen; here c_i runs, and sums made under an earlier one
are multiplied by e^(c_before − c_i) ≤ 1. A block's own keys meet its queries as a small matrix; the
sums before it come from blocks that are full, wherever the text ends, so nothing that is later
changes a bit of what is earlier.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers.random_features import LOW

BLOCK = 128


class Keyed(NamedTuple):
    """Keys as features (B, H, n, m) with peaks (B, H, n), values (B, H, n, D), which are real."""

    values: Tensor
    peak: Tensor
    v: Tensor
    real: Tensor | None  # (B, 1, n)

    @property
    def with_one(self) -> Tensor:
        """[v, 1]: what is summed for the numerator, and for the denominator."""
        return torch.cat([self.v, self.v.new_ones(*self.v.shape[:-1], 1)], -1)


class Sums(NamedTuple):
    """Σ e^(p_j − peak) φ_jᵀ [v_j, 1]: (B, H, m, D + 1), and the peak (B, H)."""

    sums: Tensor
    peak: Tensor

    @classmethod
    def empty(cls, v: Tensor, n_features: int) -> "Sums":
        """Of no keys; v (B, H, n, D) tells sizes and type."""
        batch, heads, _, width = v.shape
        sums = v.new_zeros(batch, heads, n_features, width + 1)
        return cls(sums, v.new_full((batch, heads), LOW))

    def rescaled(self, peak: Tensor) -> Tensor:
        """The sums under another peak."""
        return self.sums * (self.peak - peak).exp()[..., None, None]


def added(total: Sums, new: Keyed, of: Tensor | None = None) -> Sums:
    """The sums with more keys; `of` (B, 1, n): those of them that count."""
    if new.real is not None:
        of = new.real if of is None else of & new.real
    own = new.peak if of is None else new.peak.masked_fill(~of, LOW)
    peak = torch.maximum(total.peak, own.detach().amax(-1))  # (B, H)
    share = (own - peak[..., None]).exp()  # (B, H, n)
    share = share if of is None else share.masked_fill(~of, 0)
    shared = new.with_one * share[..., None]  # (B, H, n, D + 1)
    return Sums(total.rescaled(peak) + new.values.transpose(-2, -1) @ shared, peak)


def read_sums(phi: Tensor, total: Sums) -> Tensor:
    """What queries φ (B, H, t, m) take from the same sums: (B, H, t, D)."""
    return divided(phi @ total.sums)


def divided(both: Tensor) -> Tensor:
    """[numerator, denominator] → their quotient, 0 where nothing was summed."""
    return both[..., :-1] / both[..., -1:].clamp_min(torch.finfo(both.dtype).tiny)


def read_causal(
    queries: Iterable[Tensor],
    keys: Iterable[Keyed],
    n: int,
    *,
    before: Sums,
    documents: Tensor | None = None,
) -> Tensor:
    """What n queries take from the keys up to their own, and from the sums before: (B, H, n, D).

    queries and keys: features, BLOCK rows at a time; documents int64 (B, n): a query sees its own.
    """
    total, blocks = before, []
    last = None if documents is None else documents[:, :1]  # whose keys the sums are
    for start, phi, new in zip(range(0, n, BLOCK), queries, keys, strict=False):
        whose = None if documents is None else documents[:, start : start + BLOCK]  # (B, t)
        blocks.append(divided(_read(phi, new, total, whose, last)))
        if whose is None or last is None:
            total = added(total, new)
            continue
        ends = whose[:, -1:]  # (B, 1): sums go on with the last document alone
        total = added(_kept(total, ends == last), new, (whose == ends)[:, None])
        last = ends
    return torch.cat(blocks, 2) if blocks else before.sums[..., :0, :-1]


def _read(
    phi: Tensor, new: Keyed, total: Sums, whose: Tensor | None, last: Tensor | None
) -> Tensor:
    """Numerator and denominator of a block's queries: (B, H, t, D + 1)."""
    n = phi.shape[2]
    seen = torch.ones(n, n, dtype=torch.bool, device=phi.device).tril()[None, None]
    before = total.peak[..., None]  # (B, H, 1)
    peaks = new.peak.detach()
    goes_on = None if whose is None or last is None else (whose == last)[:, None]  # (B, 1, t)
    if whose is None or goes_on is None:
        top = torch.maximum(peaks.cummax(-1).values, before)  # (B, H, t)
    else:
        seen = seen & (whose[:, None, :, None] == whose[:, None, None, :])  # (B, 1, t, t)
        before = torch.where(goes_on, before, LOW)  # (B, H, t)
        top = torch.maximum(peaks[:, :, None].masked_fill(~seen, LOW).amax(-1), before)
    if new.real is not None:
        seen = seen & new.real[:, :, None]
    shares = (new.peak[:, :, None] - top[..., None]).masked_fill(~seen, LOW).exp()  # (B, H, t, t)
    inside = (phi @ new.values.transpose(-2, -1) * shares) @ new.with_one
    earlier = (before - top).exp()
    if goes_on is not None:
        earlier = earlier.masked_fill(~goes_on, 0)
    return inside + phi @ total.sums * earlier[..., None]


def _kept(total: Sums, goes_on: Tensor) -> Sums:
    """The sums of rows that go on (B, 1), nothing in the others."""
    sums = total.sums.masked_fill(~goes_on[..., None, None], 0)
    return Sums(sums, total.peak.masked_fill(~goes_on, LOW))
