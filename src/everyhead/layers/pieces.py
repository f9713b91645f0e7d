"""Many pieces of one tensor, whose gradient is gathered once.

    out_i = x[:, :, index_i]        ∂x = Σ_i  ∂out_i put back at index_i

The gradient of a slice is as long as what it was cut from, so a hundred slices of a long text are
a hundred tensors of its length to add. Here each piece is added where it stood, in one tensor.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

Index = slice | Tensor


def pieces(x: Tensor, wanted: Sequence[Index]) -> Iterator[Tensor]:
    """x (B, H, T, D) → (B, H, t_i, D), one by one: a view for a slice, a copy for numbers."""
    if torch.is_grad_enabled() and x.requires_grad:
        return iter(_Pieces.apply(x, *wanted))
    return (piece(x, index) for index in wanted)


def piece(x: Tensor, index: Index) -> Tensor:
    """The asked-for entries of axis 2."""
    return x.index_select(2, index) if isinstance(index, Tensor) else x[:, :, index]


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, *wanted: Index) -> tuple[Tensor, ...]:
        return tuple(piece(x, index) for index in wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.shape, ctx.wanted = inputs[0].shape, inputs[1:]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        whole = grads[0].new_zeros(ctx.shape)
        for index, grad in zip(ctx.wanted, grads, strict=True):
            if isinstance(index, Tensor):
                whole.index_add_(2, index, grad)
            else:
                whole[:, :, index] += grad
        return whole, *[None] * len(ctx.wanted)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *none: None) -> tuple[Tensor, ...]:
        return tuple(piece(tangent, index) for index in ctx.wanted)
