"""Positions: attention alone cannot tell order, so each place adds a vector of its own.

    PE(pos, 2i) = sin(pos / 10000^(2i/d))    PE(pos, 2i+1) = cos(the same)

Vaswani et al. 2017 (1706.03762) section 3.5; B345. Two layouts hold the same numbers: "interleaved"
as in the paper, "halves" (all sines, then all cosines) as in the published translation models.
Learned positions end where their table ends (B391).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYOUTS = ("interleaved", "halves")


def sinusoid(
    n: int, d_model: int, *, layout: str = "interleaved", dtype: torch.dtype = torch.float32
) -> Tensor:
    """The table for positions 0 … n − 1, (n, d_model), computed in float64.

    In a narrow type large positions would fall together. An odd d_model has one sine more than
    cosines.

    Raises:
        ValueError: an unknown layout.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"no layout {layout!r} of the sinusoid; there are {', '.join(LAYOUTS)}")
    position = torch.arange(n, dtype=torch.float64)[:, None]
    channel = torch.arange(0, d_model, 2, dtype=torch.float64)
    angle = position * torch.exp(-math.log(10000.0) * channel / d_model)  # (n, ⌈d/2⌉)
    sine, cosine = angle.sin(), angle.cos()[:, : d_model // 2]
    if layout == "halves":
        return torch.cat([sine, cosine], 1).to(dtype)
    table = torch.empty(n, d_model, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = sine, cosine
    return table.to(dtype)


class SinusoidalPositions(nn.Module):
    """The fixed table, up to max_len; not saved, since it can be computed.

    `.to(dtype)` and `.double()` compute it anew, so no type has another type's rounding in it;
    so does leaving the meta device, where there are no numbers.
    """

    def __init__(self, max_len: int, d_model: int, *, layout: str = "interleaved") -> None:
        super().__init__()
        self.max_len, self.d_model, self.layout = max_len, d_model, layout
        self.table: Tensor
        self.register_buffer("table", sinusoid(max_len, d_model, layout=layout), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "SinusoidalPositions":
        before = self.table
        super()._apply(fn, recurse)
        dtype, device = self.table.dtype, self.table.device
        if device.type != "meta" and (before.is_meta or dtype != before.dtype):
            table = sinusoid(self.max_len, self.d_model, layout=self.layout, dtype=dtype)
            self.table = table.to(device)
        return self

    def forward(self, positions: Tensor | slice) -> Tensor:
        """positions int64 (…), or a range of them → (…, C)."""
        return _rows(self.table, positions)


class LearnedPositions(nn.Module):
    """One trained vector for each position; there is none beyond max_len."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.max_len = max_len
        self.weight = nn.Parameter(torch.empty(max_len, d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, positions: Tensor | slice) -> Tensor:
        """positions int64 (…), or a range of them → (…, C)."""
        return _rows(self.weight, positions)


def _rows(table: Tensor, positions: Tensor | slice) -> Tensor:
    return table[positions] if isinstance(positions, slice) else F.embedding(positions, table)


def places(real: Tensor | None, n: int, start: Tensor | int = 0) -> Tensor:
    """The position of each of n tokens, counted over real ones: int64 (1|B, T); law 3.

    real: bool (B, T), or None where all are; start: how many real ones came before, (B, 1) or one.
    """
    if real is None:
        device = start.device if isinstance(start, Tensor) else None
        return torch.arange(n, device=device)[None] + start
    return (real.long().cumsum(1) - 1).clamp_min(0) + start  # (B, T)


def places_within(documents: Tensor, real: Tensor | None = None) -> Tensor:
    """`places` of each document's tokens, counted from its own first: int64 (B, T).

    documents: int64 (B, T), whose token each is; those of one stand together.
    """
    count = torch.ones_like(documents) if real is None else real.long()  # (B, T)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    before = count.cumsum(1) - count  # real tokens before this one
    first = before.masked_fill(~begins, 0).cummax(1).values
    return (before - first).clamp_min(0)
