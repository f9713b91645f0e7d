"""Linear maps laid out once for inference: y = f(x Wᵀ + b), the same equation in another layout.

oneDNN multiplies by a weight whose blocks lie in the order in which it reads them; PyTorch has the
two operators for its own compiler and calls them private. So they are tried once before they are
used, and where they fail the plain product is taken.

bf16 weights: on a processor that multiplies bf16 the whole product is bf16. Elsewhere only the
product of few rows gains from it, because it waits for memory and half the bytes come twice as
fast; many rows are multiplied in float32, by the same rounded weights.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers.linear import Linear, stacked
from everyhead.layers.multi_head import MultiHeadAttention

# Up to so many rows a bf16 product without bf16 instructions is faster than a float32 one.
FEW = 2


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
        self.few: tuple[Tensor, Tensor | None] | None = None  # bf16 weights beside float32 sums
        whole, offset = weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)
        if dtype == torch.bfloat16 and weight.device.type == "cpu" and not multiplies_bf16():
            self.few = whole, offset
            whole, offset = whole.float(), None if offset is None else offset.float()
        self.packed, self.offset = packed(whole), offset
        self.plain = whole if self.packed is None else None

    def forward(self, x: Tensor) -> Tensor:
        """x (…, in) → (…, out)."""
        if self.few is not None and x.numel() <= FEW * self.n_in:
            y = F.linear(x.to(torch.bfloat16), *self.few).to(x.dtype)
        elif self.plain is not None:
            y = F.linear(x, self.plain, self.offset)
        else:
            return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.offset, self.f, [], "")
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


class JointAttention(MultiHeadAttention):
    """Multi-head attention for inference: the maps of one x are one packed product."""

    def __init__(self, plain: MultiHeadAttention, *, cross: bool, dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.n_heads, self.n_kv_heads, self.d_head = plain.n_heads, plain.n_kv_heads, plain.d_head
        self.scale, self.dropout = plain.scale, 0.0
        maps = (plain.k_proj, plain.v_proj) if cross else (plain.q_proj, plain.k_proj, plain.v_proj)
        joint = PackedLinear(*stacked(maps), dtype=dtype)
        self.q_proj = packed_map(plain.q_proj, dtype=dtype) if cross else joint
        self.k_proj = self.v_proj = joint
        self.o_proj = packed_map(plain.o_proj, dtype=dtype)

    def _joined(self, x: Tensor, *maps: Linear) -> Tensor:
        return maps[0](x)  # all of them


def packed_map(plain: Linear, *, dtype: torch.dtype, f: str = "none") -> PackedLinear:
    """The same map, packed, with f after it."""
    return PackedLinear(plain.weight, plain.bias, dtype=dtype, f=f)


def packed(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's own layout, which only `_linear_pointwise` reads; None: not here."""
    if weight.device.type != "cpu" or not packs(weight.dtype):
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
