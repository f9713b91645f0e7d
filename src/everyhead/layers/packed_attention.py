"""Attention on packed rows themselves, where sentences are short: csrc/packed_attention.c.

    O = softmax(s·Q Kᵀ) V        of each sentence and head, from rows (N, H·D) to rows (N, H·D)

1706.03762 equation 1. What layers/packing.py spreads into a rectangle for PyTorch's products, and
joins afterwards, is read and written here where it lies; the gradient of a joint product of q, k
and v is written as one. In float32 on a processor, with a compiler; every other attention goes by
layers/attention.py.
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.attention import Parts, attend
from everyhead.layers.compiled import library
from everyhead.layers.masks import Mask
from everyhead.layers.packing import Packing
from everyhead.layers.rules import Causal, Keys

LONGEST = 128  # rows of a sentence; above, the rectangle's products are as fast
WIDEST = 256  # numbers of a head


class Packed(ctypes.Structure):
    """csrc/packed_attention.c, Packed."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("grad_q", "grad_k", "grad_v")),
        *((name, ctypes.c_void_p) for name in ("q_starts", "k_starts")),
        *((name, ctypes.c_int64) for name in ("q_stride", "k_stride")),
        *((name, ctypes.c_int64) for name in ("sentences", "heads", "d_head")),
        ("causal", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class Shape(NamedTuple):
    """Which rows ask which, and how."""

    queries: Packing
    keys: Packing
    heads: int
    d_head: int
    scale: float
    causal: bool

    @property
    def longest(self) -> int:
        return max(self.queries.length, self.keys.length)


def can_attend(mask: Mask | None, queries: Packing | None, keys: Packing | None) -> bool:
    """Are both sides packed, of short sentences, and is the mask their padding and no more?

    The causal rule may join it in self-attention.
    """
    if queries is None or keys is None or library() is None:
        return False
    if max(queries.length, keys.length) > LONGEST or queries.batch != keys.batch:
        return False
    for rule in () if mask is None else mask.rules:
        own = isinstance(rule, Causal) and rule.offset is None and queries is keys
        if not own and not (isinstance(rule, Keys) and rule.real is keys.real):
            return False
    return mask is not None and bool(mask.rules)


def attend_packed(q: Tensor, kv: Tensor | None, shape: Shape) -> Tensor:
    """Rows to rows: q (N, H·D) and kv (M, 2·H·D), or q (N, 3·H·D) of both → (N, H·D).

    Raises:
        ValueError: there are more or fewer rows than the packing has tokens.
    """
    given = (q.shape[0], (q if kv is None else kv).shape[0])
    wanted = (shape.queries.index.numel(), shape.keys.index.numel())
    if given != wanted:
        raise ValueError(f"packed rows are one a token, {wanted} of both sides; got {given}")
    return _Attend.apply(q, kv, shape)


def spread_parts(q: Tensor, kv: Tensor | None, shape: Shape) -> list[Tensor]:
    """The same q, k and v as rectangles, (B, H, T or S, D), for who looks."""
    one = (shape.heads,)
    if kv is None:
        return shape.queries.spread(q, one * 3, shape.d_head)
    return [
        *shape.queries.spread(q, one, shape.d_head),
        *shape.keys.spread(kv, one * 2, shape.d_head),
    ]


class _Attend(torch.autograd.Function):
    """O and, from dO, the gradients of the rows as they lay."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor | None, shape: Shape) -> Tensor:
        q, kv = q.contiguous(), None if kv is None else kv.contiguous()
        ctx.save_for_backward(q, kv)
        ctx.shape = shape
        out = q.new_empty(q.shape[0], shape.heads * shape.d_head)
        _run("packed_forward", _described(q, kv, shape, out), q, shape)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        q, kv = ctx.saved_tensors
        shape, grad = ctx.shape, grad.contiguous()
        if torch.is_grad_enabled():  # the gradient's own gradient is asked for
            return *_plain_gradients(q, kv, grad, shape), None
        told = _described(q, kv, shape, grad)
        grad_q, grad_kv = torch.empty_like(q), None if kv is None else torch.empty_like(kv)
        told.grad_q, told.grad_k, told.grad_v = _places(grad_q, grad_kv, shape)
        _run("packed_backward", told, q, shape)
        return grad_q, grad_kv, None


def _plain_gradients(
    q: Tensor, kv: Tensor | None, grad: Tensor, shape: Shape
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of q and kv by PyTorch's calls, which have gradients of their own."""
    real = masks.keys(shape.keys.real, zeroed=True)
    queries, keys, values = spread_parts(q, kv, shape)
    parts = Parts(queries, keys, values, shape.scale)
    out = attend(parts, masks.causal() & real if shape.causal else real)
    asked = [x for x in (q, kv) if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(shape.queries.join(out), asked, grad, create_graph=True))
    wanted = [x is not None and x.requires_grad for x in (q, kv)]
    return next(found) if wanted[0] else None, next(found) if wanted[1] else None


def _places(q: Tensor, kv: Tensor | None, shape: Shape) -> tuple[int, int, int]:
    """Where the first row's q, k and v lie."""
    width = shape.heads * shape.d_head * q.element_size()
    first = q.data_ptr() + width if kv is None else kv.data_ptr()
    return q.data_ptr(), first, first + width


def _described(q: Tensor, kv: Tensor | None, shape: Shape, out: Tensor) -> Packed:
    told = Packed(*_places(q, kv, shape), out.data_ptr())
    told.q_starts = shape.queries.starts.data_ptr()
    told.k_starts = shape.keys.starts.data_ptr()
    told.q_stride, told.k_stride = q.shape[1], (q if kv is None else kv).shape[1]
    told.sentences, told.heads, told.d_head = shape.queries.batch, shape.heads, shape.d_head
    told.causal, told.scale = shape.causal, shape.scale
    return told


def _run(name: str, told: Packed, like: Tensor, shape: Shape) -> None:
    programs, threads = library(), torch.get_num_threads()
    assert programs is not None
    scratch = like.new_empty(programs.packed_scratch(shape.longest, shape.d_head, threads))
    getattr(programs, name)(ctypes.byref(told), shape.longest, scratch.data_ptr(), threads)
