"""Packed rows: one row for each real token, so that padding costs nothing and can leak nothing.

    pack:   (B, T, C) → (N, C)          unpack: (N, C) → (B, T, C), zeros at padding
    spread: (N, h·D)  → (B, h, T, D)    join:   (B, h, T, D) → (N, h·D)

Everything but attention treats each token alone (B456), so it runs on N real rows; only attention
needs the rectangle. There a padded place repeats the first row of its own sentence: finite, hidden
from every query by the key mask, and its own output is dropped by `join`.
"""

from typing import Any

import torch
from torch import Tensor


class _Repeat(torch.autograd.Function):
    """rows[index], where repeated rows get no gradient but at their own place `home`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor, home: Tensor) -> Tensor:
        ctx.save_for_backward(home)
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (home,) = ctx.saved_tensors
        return grad.index_select(0, home), None, None


class _Select(torch.autograd.Function):
    """rows[index] for distinct indices: the gradient is copied, not added up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.n_rows = rows.shape[0]
        return rows.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        whole = grad.new_zeros((ctx.n_rows, *grad.shape[1:]))
        return whole.index_copy_(0, index, grad), None


class Packing:
    """Where the real tokens of a (B, T) rectangle stand. Built from a mask that has some."""

    def __init__(self, real: Tensor) -> None:
        """real: bool (B, T), True = token; at least one True."""
        self.real = real
        self.batch, self.length = real.shape
        self.index = real.flatten().nonzero()[:, 0]  # (N,) places in the flat rectangle
        self.positions = (real.long().cumsum(1) - 1).flatten()[self.index]  # (N,) from 0
        counts = real.sum(1)  # (B,)
        ends = counts.cumsum(0)
        self.starts = torch.cat([ends.new_zeros(1), ends])  # (B + 1,) of each sentence's rows
        first = self.starts[:-1].clamp_max(self.index.numel() - 1)  # (B,)
        row = first[:, None].expand(real.shape).flatten().clone()
        row[self.index] = torch.arange(self.index.numel(), device=real.device)
        self._row = row  # (B·T,) which packed row stands at a place
        self._spreads: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self._joins: dict[int, Tensor] = {}

    def pack(self, x: Tensor) -> Tensor:
        """(B, T, …) → (N, …)."""
        return _Select.apply(x.flatten(0, 1), self.index)

    def unpack(self, x: Tensor) -> Tensor:
        """(N, …) → (B, T, …), zeros at padding."""
        whole = x.new_zeros((self.batch * self.length, *x.shape[1:]))
        return whole.index_copy(0, self.index, x).unflatten(0, (self.batch, self.length))

    def spread(self, x: Tensor, heads: tuple[int, ...], d_head: int) -> list[Tensor]:
        """(N, sum(heads)·D) → one contiguous (B, h, T, D) for each h of `heads`."""
        if heads not in self._spreads:
            self._spreads[heads] = self._spread_index(heads)
        index, home = self._spreads[heads]
        flat = _Repeat.apply(x.reshape(-1, d_head), index, home)
        parts = flat.split([self.batch * h * self.length for h in heads])
        return [
            part.view(self.batch, h, self.length, d_head)
            for part, h in zip(parts, heads, strict=True)
        ]

    def join(self, x: Tensor) -> Tensor:
        """(B, h, T, D) → (N, h·D)."""
        heads = x.shape[1]
        if heads not in self._joins:
            self._joins[heads] = self._places(heads).flatten()
        rows = _Select.apply(x.reshape(-1, x.shape[-1]), self._joins[heads])
        return rows.view(self.index.numel(), -1)

    def _places(self, heads: int) -> Tensor:
        """(N, h): the flat place (b, h, t) of each packed row's heads."""
        row, column = self.index // self.length, self.index % self.length
        head = torch.arange(heads, device=self.index.device)
        return (row[:, None] * heads + head) * self.length + column[:, None]

    def _spread_index(self, heads: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Source row of each place, and place of each source row, for all groups of heads."""
        total, device = sum(heads), self.index.device
        index, home, start, begin = [], [], 0, 0
        for h in heads:
            head = start + torch.arange(h, device=device)
            rows = self._row.view(self.batch, 1, self.length) * total + head[:, None]
            index.append(rows.flatten())  # (B·h·T,)
            home.append(self._places(h) + begin)  # (N, h)
            start, begin = start + h, begin + self.batch * h * self.length
        return torch.cat(index), torch.cat(home, 1).flatten()


def packing_of(real: Tensor | None) -> Packing | None:
    """Packed rows where there is padding to leave out; a traced graph keeps the rectangle."""
    if real is None or torch.compiler.is_compiling():
        return None
    n_real = int(real.sum())
    return Packing(real) if 0 < n_real < real.numel() else None


def only_right(real: Tensor, packing: Packing | None) -> bool:
    """Is all padding on the right, where the causal rule hides it from every real query?"""
    if torch.compiler.is_compiling():
        return False
    return packing is None or bool((packing.positions == packing.index % packing.length).all())
