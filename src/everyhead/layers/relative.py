"""Relative attention: a score of what the key is, and one of how far back it stands.

    A_ij = s·[(q_i + u)·k_j + (q_i + w)·r_{i−j}]      r_d = W^R R_d, R the sinusoid, 0 ≤ i − j ≤ M

Dai et al. 2019 (1901.02860) section 3.3; w is v there, which is a value here. The second term is
made for each distance once, and its rows are shifted into the columns of the keys (appendix B). A
query sees itself and the M positions before it, as their code has it for evaluation ("same
length"), so what it sees does not depend on how a text is cut into segments. Computed 256 queries
at a time: never an n×n tensor. Distances are counted in columns, so padding stands at an end.
"""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from everyhead.layers.attention import Parts, filled, grouped
from everyhead.layers.dropout import dropout
from everyhead.layers.linear import Linear
from everyhead.layers.masks import Mask, window
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.positions import SinusoidalPositions
from everyhead.layers.rotary import Rotation
from everyhead.layers.segments import SegmentStates

ROWS = 256  # queries of a block


class RelativeParts(NamedTuple):
    """Parts of layers/attention.py; u and w (H, D); W^R (H·D, C); R (M + 1, C), row d: distance."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    bias: Tensor | None = None
    cap: None = None
    sinks: None = None
    u: Tensor = torch.empty(0)
    w: Tensor = torch.empty(0)
    r_weight: Tensor = torch.empty(0)
    table: Tensor = torch.empty(0)

    def distances(self, n: int) -> Tensor:
        """r of distances 0 … n − 1, at most M: (H, n, D)."""
        heads, width = self.u.shape
        return (self.table[:n] @ self.r_weight.T).unflatten(1, (heads, width)).transpose(0, 1)


def shifted(scores: Tensor) -> Tensor:
    """Scores (…, t, n) of distances n − 1 … 0 for each query → of keys: row a moved left t − 1 − a.

    Where a key is later than the query stands what belongs to another; no query may see there.
    """
    *lead, t, n = scores.shape
    padded = torch.cat([scores.new_zeros(*lead, t, 1), scores], -1)  # (…, t, n + 1)
    return padded.flatten(-2)[..., t:].unflatten(-1, (t, n))


def attend(parts: RelativeParts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
    """(B, H, T, D), 256 queries at a time with the keys that they can reach."""
    values, parts = parts.v.dtype, _wide(_filled(parts, mask))
    n, offset = parts.q.shape[2], parts.k.shape[2] - parts.q.shape[2]
    reach = parts.table.shape[0] - 1
    few = parts.q.shape[0] * n < parts.q.shape[3]  # then W^R goes to the queries, not to R
    r = None if few else parts.distances(parts.k.shape[2])
    blocks = []
    for start in range(0, n, ROWS):
        rows = slice(start, min(start + ROWS, n))
        columns = slice(max(0, start + offset - reach), rows.stop + offset)
        weights = _block(parts, mask, rows, columns, r)  # (B, H, t, s)
        blocks.append(dropout(weights, dropout_p) @ parts.v[:, :, columns])
    return torch.cat(blocks, 2).to(values)


def _block(
    parts: RelativeParts, mask: Mask | None, rows: slice, columns: slice, r: Tensor | None
) -> Tensor:
    q = parts.q[:, :, rows]
    far = columns.stop - columns.start - 1  # the distance of the first key from the last query
    picks = torch.arange(far, -1, -1, device=q.device).clamp_max(parts.table.shape[0] - 1)
    placed = q + parts.w[:, None]
    if r is None:
        turned = placed @ parts.r_weight.unflatten(0, parts.w.shape)  # (B, H, t, C)
        by_place = turned @ parts.table[picks].T  # (B, H, t, s)
    else:
        by_place = placed @ r[:, picks].transpose(-2, -1)
    scores = (q + parts.u[:, None]) @ parts.k[:, :, columns].transpose(-2, -1)
    scores = (scores + shifted(by_place)) * parts.scale
    if parts.bias is not None:
        bias = parts.bias[..., columns]
        scores = scores + (bias if bias.shape[2] == 1 else bias[:, :, rows])
    offset = parts.k.shape[2] - parts.q.shape[2]
    i = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
    j = torch.arange(columns.start, columns.stop, device=q.device)[None]
    seen = j <= i + offset
    for rule in () if mask is None else mask.rules:
        seen = seen & rule.visible(i, j, offset)
    powers = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    return powers.masked_fill(~seen, 0)


def weights(
    parts: RelativeParts,
    mask: Mask | None,
    heads: list[int] | slice | None = None,
    rows: slice | Tensor | None = None,
) -> Tensor:
    """The matrix itself, (B, h, t, S): each r is looked up by its distance, in plain code."""
    parts = _wide(_filled(parts, mask))
    heads = slice(None) if heads is None else heads
    rows = slice(None) if rows is None else rows
    n_queries, n_keys = parts.q.shape[2], parts.k.shape[2]
    q, k = parts.q[:, heads][:, :, rows], parts.k[:, heads]
    u, w, r = (x[heads] for x in (parts.u, parts.w, parts.distances(n_keys)))
    i = torch.arange(n_queries, device=q.device)[rows][:, None] + n_keys - n_queries
    distance = (i - torch.arange(n_keys, device=q.device)).clamp(0, r.shape[1] - 1)  # (t, S)
    by_place = (q + w[:, None]) @ r.transpose(-2, -1)  # (B, h, t, n)
    by_place = by_place.gather(-1, distance.expand(*by_place.shape[:2], -1, -1))  # (B, h, t, S)
    scores = ((q + u[:, None]) @ k.transpose(-2, -1) + by_place) * parts.scale
    if parts.bias is not None:
        bias = parts.bias.expand(-1, parts.q.shape[1], n_queries, -1)
        scores = scores + bias[:, heads][:, :, rows]
    seen = torch.ones_like(scores, dtype=torch.bool)
    if mask is not None:
        rule = mask.rows(n_queries, n_keys, q.device, rows)
        seen = seen & (rule if rule.shape[1] == 1 else rule[:, heads])
    powers = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(-1)
    return powers.masked_fill(~seen, 0)


def _filled(parts: RelativeParts, mask: Mask | None) -> RelativeParts:
    return cast(RelativeParts, filled(grouped(cast(Parts, parts)), mask))


def _wide(parts: RelativeParts) -> RelativeParts:
    """Half precision would round scores before the softmax: float32 at least."""
    wide = torch.promote_types(parts.q.dtype, torch.float32)
    names = ("q", "k", "v", "u", "w", "r_weight", "table")
    return parts._replace(**{name: getattr(parts, name).to(wide) for name in names})


class RelativeAttention(MultiHeadAttention):
    """Multi-head attention with relative positions and a memory. 1901.02860 section 3.3."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        distances: SinusoidalPositions,
        biases: tuple[nn.Parameter, nn.Parameter] | None = None,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """distances: R of 0 … M, layers may share it; biases: u and w (H, D), if they share them.

        bias: of the maps q, k, v and o.
        """
        super().__init__(d_model, n_heads, bias=bias, dropout=dropout)
        self.distances = distances
        self.r_proj = Linear(distances.d_model, n_heads * self.d_head, bias=False)
        self.u, self.w = biases or relative_biases(n_heads, self.d_head)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        memory: Tensor | None = None,
        *,
        cache: Any = None,
        bias: Tensor | None = None,
        **how: Any,
    ) -> Tensor:
        """As everywhere; of a cache that keeps states, keys and values are made anew."""
        if isinstance(cache, SegmentStates):
            memory, bias, cache = cache.extended(x), cache.bias, None
        return super().forward(x, mask, memory, cache=cache, bias=bias, **how)

    def visible(self, mask: Mask | None) -> Mask | None:
        """A query sees itself and the M positions before it, where the mask lets it."""
        return window(self.distances.max_len - 1, 0) & mask

    def project(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        rotation: Rotation | None = None,
    ) -> RelativeParts:
        """q of x; k and v of x, or of the memory, which ends with x; what distances need.

        Raises:
            ValueError: a rotation, which would tell positions twice.
        """
        if rotation is not None:
            raise ValueError("relative attention has positions of its own: give it no rotation")
        parts = super().project(x, memory, packing, memory_packing)
        table = self.distances.table.to(parts.q.dtype)
        own = RelativeParts(*parts[:5])
        return own._replace(u=self.u, w=self.w, r_weight=self.r_proj.weight, table=table)

    def attend(  # type: ignore[override]
        self, parts: RelativeParts, mask: Mask | None, dropout_p: float = 0.0
    ) -> Tensor:
        """The fast result (B, H, T, D)."""
        return attend(parts, mask, dropout_p)

    def weights(  # type: ignore[override]
        self,
        parts: RelativeParts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """The matrix that `attend` stands for: `weights` above."""
        return weights(parts, mask, heads, rows)


def relative_biases(n_heads: int, d_head: int) -> tuple[nn.Parameter, nn.Parameter]:
    """u and w (H, D): what every query asks of contents, and of distances; zero at first."""
    u, w = (nn.Parameter(torch.empty(n_heads, d_head)) for _ in range(2))
    nn.init.zeros_(u), nn.init.zeros_(w)
    return u, w
