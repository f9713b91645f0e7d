"""A picture as a row of patches.

    z_0 = [x_class; x_p¹ E; …; x_pᴺ E] + E_pos        N = (H / P)·(W / P) patches of P × P pixels

Dosovitskiy et al. 2020 (2010.11929) equation 1. Patches are read from the top, each row from left
to right; a patch is (channel, row, column), so that E is a convolution's kernel laid flat and the
whole picture is one product.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.linear import Linear

Size = tuple[int, int]  # height and width, or rows and columns


def sides(value: Any) -> Any:
    """One number stands for both sides of a square."""
    return (value, value) if isinstance(value, int) else value


def grid_of(size: Size, patch: Size) -> Size:
    """Rows and columns of patches.

    Raises:
        ValueError: the picture does not divide into whole patches.
    """
    if size[0] % patch[0] or size[1] % patch[1] or min(size) < 1:
        raise ValueError(
            f"a picture of {size[0]} × {size[1]} pixels does not divide into patches of "
            f"{patch[0]} × {patch[1]}: resize or crop it to a multiple"
        )
    return size[0] // patch[0], size[1] // patch[1]


def cut(pixels: Tensor, patch: Size) -> Tensor:
    """pixels (B, ch, H, W) → patches (B, N, ch·P·P); raises as `grid_of`."""
    rows, columns = grid_of((pixels.shape[2], pixels.shape[3]), patch)
    grid = pixels.unflatten(3, (columns, patch[1])).unflatten(2, (rows, patch[0]))
    # (B, ch, rows, P, columns, P)
    return grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, N, ch·P·P)


class Patches(nn.Module):
    """E: each patch through one linear map."""

    def __init__(self, n_channels: int, d_model: int, *, patch: Size, bias: bool = True) -> None:
        super().__init__()
        self.n_channels, self.patch = n_channels, patch
        self.proj = Linear(n_channels * patch[0] * patch[1], d_model, bias=bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → (B, N, C).

        Raises:
            ValueError: another number of axes or channels, or no whole patches.
        """
        if pixels.dim() != 4 or pixels.shape[1] != self.n_channels:
            raise ValueError(
                f"pictures are (batch, {self.n_channels} channels, height, width); got "
                f"{tuple(pixels.shape)}"
            )
        return self.proj(cut(pixels.to(self.proj.weight.dtype), self.patch))


class GridPositions(nn.Module):
    """E_pos: a trained vector for what stands before the patches and for each place of the grid.

    A grid of another size takes vectors between them, bicubically (2010.11929 section 3.2).
    """

    def __init__(self, grid: Size, d_model: int, *, before: int = 1) -> None:
        super().__init__()
        self.grid, self.before = grid, before
        self.weight = nn.Parameter(torch.empty(before + grid[0] * grid[1], d_model))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, grid: Size) -> Tensor:
        """(before + rows·columns, C) for a grid of that many rows and columns."""
        if grid == self.grid:
            return self.weight
        table = self.weight[self.before :].unflatten(0, self.grid).permute(2, 0, 1)[None]
        table = F.interpolate(table, size=grid, mode="bicubic", align_corners=False)  # (1, C, …)
        return torch.cat([self.weight[: self.before], table[0].flatten(1).t()])
