"""Attention in O(n) by features φ of queries and keys instead of the n×n matrix.

    out_i = φ(q_i) Σ_j φ(k_j)ᵀ v_j / φ(q_i) Σ_j φ(k_j)ᵀ         causal: sums over j ≤ i

Choromanski et al. 2021 (2009.14794) section 2 and algorithm 1; φ: layers/random_features.py, the
sums: layers/prefix_sums.py. It has a matrix as any attention, φ(q_i)·φ(k_j) with rows divided by
their sums, which `weights` makes where somebody looks. Hidden keys leave after φ: before it, a
hidden key of zeros would still count, as φ(0) > 0. All is computed in at least float32.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from everyhead.layers import attention
from everyhead.layers.attention import Parts, filled, grouped
from everyhead.layers.masks import Mask, keys
from everyhead.layers.prefix_sums import BLOCK, Keyed, Sums, added, read_causal, read_sums
from everyhead.layers.random_features import LOW, Features, features
from everyhead.layers.rules import Causal, Documents, Keys

CHUNK = 512  # keys whose features are held at once
NO_BIAS = (
    "random features cannot honour a bias: it would be added to scores that are never made; use a "
    "family without one, or exact attention"
)


class FeatureParts(NamedTuple):
    """Parts of layers/attention.py, the projection ω (m, D), φ's kind, and sums of earlier keys."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    bias: Tensor | None = None
    cap: None = None
    sinks: None = None
    projection: Tensor = torch.empty(0, 0)
    kernel: str = "softmax"
    before: Sums | None = None

    def features(self, x: Tensor) -> Features:
        """φ of queries or keys (B, H, n, D)."""
        return features(x, self.projection, scale=self.scale, kernel=self.kernel)


def attend(parts: FeatureParts, mask: Mask | None) -> Tensor:
    """(B, H, T, Dv) in O(n): prefix sums where the mask is causal, one sum where it is not."""
    if not is_fast(mask):
        return _attend_plain(parts, mask)
    wide, mask = _wide(parts, mask)
    rules = () if mask is None else mask.rules
    kept = None if mask is None else mask.key_mask  # (B, S)
    n_before = wide.k.shape[2] - wide.q.shape[2]
    causal = any(isinstance(rule, Causal) for rule in rules)
    first = n_before if causal else wide.k.shape[2]
    total = summed(wide, kept, slice(0, first))
    if not causal:
        blocks = wide.q.split(CHUNK, 2)
        out = torch.cat([read_sums(wide.features(q).values, total) for q in blocks], 2)
        return out.to(parts.v.dtype)
    rule = next((rule for rule in rules if isinstance(rule, Documents)), None)
    out = read_causal(
        (wide.features(q).values for q in wide.q.split(BLOCK, 2)),
        keyed(wide, kept, slice(first, None), BLOCK),
        wide.q.shape[2],
        before=total,
        documents=None if rule is None else rule.queries,
    )
    return out.to(parts.v.dtype)


def weights(
    parts: FeatureParts,
    mask: Mask | None,
    heads: list[int] | slice | None = None,
    rows: slice | Tensor | None = None,
) -> Tensor:
    """The matrix that the features stand for, (B, h, t, S), rows summing to 1 or 0.

    Behind a cache of sums, which holds no keys, the earlier ones show as m columns before the
    others: the share that comes through each feature.
    """
    wide, mask = _wide(parts, mask)
    heads = slice(None) if heads is None else heads
    rows = slice(None) if rows is None else rows
    phi = wide.features(wide.q[:, heads][:, :, rows]).values  # (B, h, t, m)
    scores, peaks = [phi[..., :0]], [phi[:, :, 0, :0]]
    for k in wide.k[:, heads].split(CHUNK, 2):
        of = wide.features(k)
        scores.append(phi @ of.values.transpose(-2, -1))  # (B, h, t, s)
        peaks.append(of.peak)
    peak = torch.cat(peaks, -1)[:, :, None]  # (B, h, 1, S)
    if mask is not None:
        seen = mask.rows(wide.q.shape[2], wide.k.shape[2], phi.device, rows)
        seen = seen if seen.shape[1] == 1 else seen[:, heads]
        peak = peak.masked_fill(~seen, LOW)
    shares = torch.cat(scores, -1)
    if wide.before is not None:
        sums, before = (x[:, heads] for x in wide.before)
        shares = torch.cat([phi * sums[..., -1][:, :, None], shares], -1)
        before = before[..., None, None].expand(*before.shape, peak.shape[2], phi.shape[-1])
        peak = torch.cat([before, peak.expand(*before.shape[:3], -1)], -1)
    top = peak.amax(-1, keepdim=True)  # of an empty row LOW
    powers = shares * (peak - top).exp().masked_fill(peak == LOW, 0)
    return powers / powers.sum(-1, keepdim=True).clamp_min(torch.finfo(powers.dtype).tiny)


def mix(weights: Tensor, parts: FeatureParts, mask: Mask | None = None) -> Tensor:
    """What the matrix takes from the values, and from the sums of earlier ones: (B, H, t, Dv)."""
    v = _filled(parts, mask).v
    if parts.before is not None:
        sums = parts.before.sums
        earlier = sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(sums.dtype).tiny)
        v = torch.cat([earlier.to(v.dtype), v], 2)
    return attention.mix(weights, Parts(parts.q, v, v, 1.0))


def summed(parts: FeatureParts, kept: Tensor | None, columns: slice) -> Sums:
    """The sums of some keys, with those before them; parts at least float32, heads grouped."""
    total = parts.before or Sums.empty(parts.v, parts.projection.shape[0])
    for some in keyed(parts, kept, columns, CHUNK):
        total = added(total, some)
    return total


def keyed(parts: FeatureParts, kept: Tensor | None, columns: slice, size: int) -> Iterator[Keyed]:
    """Features, peaks and values of some keys, `size` at a time; `kept` (B, S): hidden ones leave.

    They are cut once: the gradient of a slice is as long as what it was cut from.
    """
    k, v = parts.k[:, :, columns], parts.v[:, :, columns]
    if k.shape[2] == 0:
        return
    real = None if kept is None else kept[:, None, columns]  # (B, 1, s)
    n = -(-k.shape[2] // size)
    reals = [None] * n if real is None else real.split(size, 2)
    for k_some, v_some, own in zip(k.split(size, 2), v.split(size, 2), reals, strict=True):
        of = parts.features(k_some)
        peak = of.peak if own is None else of.peak.masked_fill(~own, LOW)
        yield Keyed(of.values, peak, v_some, own)


def widened(parts: FeatureParts) -> FeatureParts:
    """Parts in at least float32, in which all sums are kept; grouped heads beside their queries."""
    parts = cast(FeatureParts, grouped(cast(Parts, parts)))
    wide = torch.promote_types(parts.q.dtype, torch.float32)
    return parts._replace(q=parts.q.to(wide), k=parts.k.to(wide), v=parts.v.to(wide))


def _wide(parts: FeatureParts, mask: Mask | None) -> tuple[FeatureParts, Mask | None]:
    """`widened` and filled; a bias that hides keys (a step behind left padding) is a mask again.

    Raises:
        ValueError: any other bias.
    """
    if parts.bias is not None:
        real = parts.bias == 0
        if parts.bias.shape[1:3] != (1, 1) or not bool((real | parts.bias.isneginf()).all()):
            raise ValueError(NO_BIAS)
        seen = real[:, 0, 0].expand(parts.k.shape[0], -1)
        mask, parts = keys(seen, zeroed=True) & mask, parts._replace(bias=None)
    return widened(_filled(parts, mask)), mask


def _filled(parts: FeatureParts, mask: Mask | None) -> FeatureParts:
    return cast(FeatureParts, filled(grouped(cast(Parts, parts)), mask))


def is_fast(mask: Mask | None) -> bool:
    """Padding alone, or the causal rule with padding and documents."""
    rules = () if mask is None else mask.rules
    known = all(isinstance(rule, Causal | Keys | Documents) for rule in rules)
    causal = [rule for rule in rules if isinstance(rule, Causal)]
    apart = sum(isinstance(rule, Documents) for rule in rules)
    return known and all(rule.offset is None for rule in causal) and apart <= min(1, len(causal))


def _attend_plain(parts: FeatureParts, mask: Mask | None) -> Tensor:
    """Some rows of the matrix at a time, for what an observer hides."""
    step = max(1, CHUNK * 8 // max(1, parts.k.shape[2]))
    rows = [slice(start, start + step) for start in range(0, parts.q.shape[2], step)]
    return torch.cat([mix(weights(parts, mask, rows=r), parts, mask) for r in rows], 2)
