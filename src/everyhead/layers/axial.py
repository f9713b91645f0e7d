"""Axial positions: a long table as a grid, a place's vector joined from its row's and its column's.

    E_p = [A_{p div n₂} ; B_{p mod n₂}]        p < n₁·n₂, A (n₁, d₁), B (n₂, d₂), d₁ + d₂ = d

Kitaev et al. 2020 (2001.04451), published code (their "axial position embeddings"): n₁·d₁ + n₂·d₂
numbers instead of n₁·n₂·d, 2¹⁹ positions in the size of 2,048. Any number of axes.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AxialPositions(nn.Module):
    """One trained table for each axis of the grid; there is no position beyond their product."""

    def __init__(self, shape: Sequence[int], widths: Sequence[int], *, std: float = 1.0) -> None:
        super().__init__()
        if not shape or len(shape) != len(widths) or min(*shape, *widths) < 1:
            raise ValueError(
                f"axial positions need a length and a width for each axis, all at least 1; got "
                f"lengths {tuple(shape)} and widths {tuple(widths)}"
            )
        self.shape, self.max_len = tuple(shape), math.prod(shape)
        self.tables = nn.ParameterList(
            nn.Parameter(nn.init.normal_(torch.empty(n, width), std=std))
            for n, width in zip(shape, widths, strict=True)
        )

    def forward(self, positions: Tensor | slice) -> Tensor:
        """positions int64 (…), or a range of them → (…, Σ widths).

        Raises:
            ValueError: a range goes beyond the grid.
            IndexError: a position does.
        """
        device = self.tables[0].device
        if isinstance(positions, slice):
            start, stop = positions.start or 0, positions.stop
            stop = self.max_len if stop is None else stop
            if stop > self.max_len:
                raise ValueError(
                    f"{stop} positions were asked for, and a grid of "
                    f"{'×'.join(map(str, self.shape))} has {self.max_len}"
                )
            positions = torch.arange(start, stop, positions.step or 1, device=device)
        parts, rest = [], positions
        for i in range(len(self.shape) - 1, 0, -1):  # the last axis runs fastest
            parts.append(F.embedding(rest % self.shape[i], self.tables[i]))
            rest = rest.div(self.shape[i], rounding_mode="floor")
        parts.append(F.embedding(rest, self.tables[0]))
        return torch.cat(parts[::-1], -1)  # (…, C)
