"""Linear maps laid out once for inference: y = f(x Wᵀ + b), the same equation in another layout.

oneDNN multiplies by a weight whose blocks lie in the order in which it reads them; PyTorch has the
two operators for its own compiler and calls them private. So they are tried once before they are
used, and where they fail the plain product is taken. The product of a few rows waits for memory and
for the operator's start, so it has a form of its own.

bf16 weights: on a processor that multiplies bf16 the whole product is bf16. Elsewhere only a single
row gains from it; several rows are multiplied in float32, by the same rounded weights.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.compiled import CompiledRows, library
from everyhead.layers.linear import Linear

# Smaller maps gain nothing from oneDNN's layout: the operator's start costs as much. From that size
# on it is the faster one for several rows too; a smaller map has a form for up to FEW rows.
SMALL, FEW = 2**18 + 1, 32
SMALLEST = 2**15


class FewRows:
    """A form of the product for at most `most` rows."""

    most: int

    def __init__(self, weight: Tensor, relu: bool) -> None:
        self.n_in, self.relu = weight.shape[1], relu

    def reads(self, x: Tensor) -> bool:
        """Is it made for so many rows of this type?"""
        return 0 < x.numel() <= self.most * self.n_in

    def __call__(self, x: Tensor) -> Tensor:
        y = self.product(x)
        return y.relu_() if self.relu else y

    def product(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        raise NotImplementedError


class NarrowRow(FewRows):
    """y = x Wᵀ + b for one row or two, W in bf16: half the bytes to wait for."""

    most = 2

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool) -> None:
        super().__init__(weight, relu)
        self.weight, self.bias = weight, bias

    def product(self, x: Tensor) -> Tensor:
        return F.linear(x.to(torch.bfloat16), self.weight, self.bias).to(x.dtype)


class SplitRows(FewRows):
    """y = x Wᵀ + b for few rows, as two products side by side, because one runs on one thread.

    Each half of the outputs is one of a batch of products. A wide map is read along its outputs,
    a narrow one along its inputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool) -> None:
        super().__init__(weight, relu)
        n_out = weight.shape[0]
        parts = 1 if n_out % 2 else 2
        halves = weight.reshape(parts, -1, self.n_in).transpose(1, 2)  # (2, in, out / 2)
        self.weight = halves.contiguous() if n_out > self.n_in else halves
        bias = weight.new_zeros(n_out) if bias is None else bias
        self.bias = bias.view(parts, 1, -1)
        self.most = FEW if weight.numel() < SMALL else 1

    def product(self, x: Tensor) -> Tensor:
        rows = x.numel() // self.n_in
        x_twice = x.reshape(1, rows, self.n_in).expand(self.weight.shape[0], -1, -1)
        y = torch.baddbmm(self.bias, x_twice, self.weight)  # (2, rows, out / 2)
        y = y if rows == 1 else y.transpose(0, 1).reshape(rows, -1)
        return y.view(*x.shape[:-1], -1)


RowMap = CompiledRows | FewRows


def few_rows(weight: Tensor, bias: Tensor | None, *, relu: bool) -> RowMap | None:
    """The best form of x Wᵀ + b for few rows here; None: it has none of its own."""
    wide = weight.dtype == torch.float32
    if weight.device.type != "cpu" or not (wide or narrow(weight)):
        return None
    if library() is not None:
        return CompiledRows(weight, bias, relu=relu)
    if not wide:
        return NarrowRow(weight, bias, relu=relu)
    large = weight.numel() >= SMALLEST and torch.backends.mkl.is_available()
    return SplitRows(weight, bias, relu=relu) if large else None


def narrow(weight: Tensor) -> bool:
    """bf16 on a processor that multiplies in float32."""
    return weight.dtype == torch.bfloat16 and not multiplies_bf16()


class PackedLinear(Linear):
    """y = f(x Wᵀ + b) for inference; f is "none" or "relu"."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        f: str = "none",
    ) -> None:
        nn.Module.__init__(self)
        self.n_out, self.n_in = weight.shape
        self.f = f
        whole, offset = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        self.row = few_rows(whole, offset, relu=f == "relu")
        if whole.device.type == "cpu" and narrow(whole):
            whole, offset = whole.float(), None if offset is None else offset.float()
        self.packed, self.offset = packed(whole), offset
        self.plain = whole if self.packed is None else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) → (…, out)."""
        if self.row is not None and self.row.reads(x):
            return self.row(x)
        if self.plain is None:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.offset, self.f, [], "")
        y = F.linear(x, self.plain, self.offset)
        return y.relu_() if self.f == "relu" else y

    def _apply(self, fn: Any, recurse: bool = True) -> "PackedLinear":
        raise RuntimeError(
            "a prepared model stays on the device and in the type it was prepared for: move or "
            "convert the model first, and prepare it then"
        )

    def _save_to_state_dict(self, *_: Any) -> None:
        raise RuntimeError("a prepared model is for inference: save the model it was made from")

    def extra_repr(self) -> str:
        return f"{self.n_in} → {self.n_out}"


def packed_map(plain: Linear, *, dtype: torch.dtype, f: str = "none") -> PackedLinear:
    """The same map, packed, with f after it."""
    return PackedLinear(plain.weight, plain.bias, dtype=dtype, f=f)


def packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own layout, which only `_linear_pointwise` reads; None: not here."""
    if weight.device.type != "cpu" or weight.numel() < SMALL or not packs(weight.dtype):
        return None
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())


@cache
def packs(dtype: torch.dtype) -> bool:
    """Do the private operators exist here, and do they give the plain product?"""
    x = torch.linspace(-1, 1, 3 * 32).view(3, 32).to(dtype)
    weight = torch.linspace(1, -1, 48 * 32).view(48, 32).sin().to(dtype)
    bias = torch.linspace(0, 1, 48).to(dtype)
    try:
        with torch.inference_mode():
            layout = torch.ops.mkldnn._reorder_linear_weight(weight)
            y = torch.ops.mkldnn._linear_pointwise(x, layout, bias, "relu", [], "")
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    tolerance = 1e-4 if dtype == torch.float32 else 5e-2
    return bool(torch.allclose(y.float(), F.linear(x, weight, bias).relu().float(), atol=tolerance))


def multiplies_bf16() -> bool:
    """Has the processor instructions for products of bf16?"""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in tests)
