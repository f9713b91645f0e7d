"""Dropout: y = x · m / (1 − p), m Bernoulli(1 − p), in training only.

Srivastava et al. 2014. On a processor, drawing a Bernoulli number for each entry costs more than
the products around it; here sixteen random bits are drawn for each entry and compared with
p · 2¹⁶, so p is exact to 1/65,536 and the mean is kept by dividing by the share really kept.

With a compiler (layers/compiled.py) that is one pass of csrc/dropout.c, which draws the bits from a
seed: the gradient draws them again, and no mask is kept.
"""

import ctypes
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.compiled import library, lies_here

_LEVELS = 1 << 16
_TYPES = (torch.float32, torch.bfloat16)


class Dropping(ctypes.Structure):
    """csrc/dropout.c, Dropping."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "y", "z")),
        ("n", ctypes.c_int64),
        ("seed", ctypes.c_uint64),
        ("threshold", ctypes.c_uint32),
        ("y_half", ctypes.c_int32),
        ("z_half", ctypes.c_int32),
    )


def _threshold(p: float) -> int:
    return min(round(p * _LEVELS), _LEVELS - 1)


def kept(x: Tensor, p: float) -> Tensor:
    """The mask m / (1 − p) for x on a processor: 0 or the scale, in x's type and shape."""
    threshold = _threshold(p)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64)
    words.random_(torch.iinfo(torch.int64).min, None)
    bits = words.view(torch.int16)[: x.numel()].view(x.shape)
    mask = bits.ge(threshold - _LEVELS // 2).to(x.dtype)
    return mask.mul_(_LEVELS / (_LEVELS - threshold))


def dropout(x: Tensor, p: float) -> Tensor:
    """x with a share p of its entries dropped; p = 0 leaves x as it is.

    Raises:
        ValueError: p outside [0, 1).
    """
    if not 0 <= p < 1:
        raise ValueError(f"dropout is a share in [0, 1); got {p}")
    if p == 0:
        return x
    if _is_compiled(x):
        return _Dropped.apply(None, x, _threshold(p), _seed())
    return x * kept(x, p) if x.device.type == "cpu" else F.dropout(x, p)


def add_dropped(x: Tensor, y: Tensor, p: float) -> Tensor:
    """x + dropout(y) in one pass over memory."""
    if p == 0:
        return x + y
    if x.device.type != "cpu":
        return x + F.dropout(y, p)
    if x.dtype == torch.float32 and x.shape == y.shape and _is_compiled(x) and _is_compiled(y):
        return _Dropped.apply(x, y, _threshold(p), _seed())
    return torch.addcmul(x, y, kept(y, p))


def _is_compiled(x: Tensor) -> bool:
    return x.dtype in _TYPES and library() is not None and lies_here(x)


def _seed() -> int:
    """From PyTorch's generator: `torch.manual_seed` and a checkpoint's state decide it."""
    return int(torch.empty((), dtype=torch.int64, device="cpu").random_())


class _Dropped(torch.autograd.Function):
    """x + dropout(y), or dropout(y) alone in y's type."""

    @staticmethod
    def forward(ctx: Any, x: Tensor | None, y: Tensor, threshold: int, seed: int) -> Tensor:
        ctx.threshold, ctx.seed, ctx.added, ctx.type = threshold, seed, x is not None, y.dtype
        return _drop(x, y, torch.empty_like(y if x is None else x), threshold, seed)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        grad_y = None
        if ctx.needs_input_grad[1]:
            grad_y = _Dropped.apply(None, grad, ctx.threshold, ctx.seed).to(ctx.type)
        return grad if ctx.added else None, grad_y, None, None


def _drop(x: Tensor | None, y: Tensor, z: Tensor, threshold: int, seed: int) -> Tensor:
    """Into z, entry by entry in the order of the shape."""
    programs = library()
    assert programs is not None
    x, y = None if x is None else x.contiguous(), y.contiguous()
    z = z if z.is_contiguous() else torch.empty(z.shape, dtype=z.dtype)
    told = Dropping(None if x is None else x.data_ptr(), y.data_ptr(), z.data_ptr(), y.numel())
    told.seed, told.threshold = seed, threshold
    told.y_half, told.z_half = (each.dtype == torch.bfloat16 for each in (y, z))
    programs.drop(ctypes.byref(told), torch.get_num_threads())
    return z


class Dropout(nn.Module):
    """`dropout` as a module: off in eval."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p if self.training else 0.0)
