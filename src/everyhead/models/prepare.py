"""An inference copy of a model: the same equations with joint and packed maps (law 10).

[Q K V] = x [W^Q W^K W^V] as one product; weights laid out as the kernels read them; ReLU inside
"""

import copy
from typing import TypeVar, cast

import torch
from torch import nn

from everyhead.layers.blocks import Block
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packed import (
    JointAttention,
    PackedLinear,
    StepBlock,
    multiplies_bf16,
    packed_map,
)

Model = TypeVar("Model", bound=nn.Module)


def prepare(model: Model, dtype: torch.dtype | None = None) -> Model:
    """A copy of the model for inference on its device; the model itself stays as it is.

    dtype: of the weights, the model's own by default. bf16 on a processor without bf16 products
    rounds the weights and leaves everything between them in float32 (layers/packed.py). The copy
    cannot be trained, moved, converted or saved.
    """
    if any(isinstance(module, PackedLinear) for module in model.modules()):
        return model
    prepared = copy.deepcopy(model).eval().requires_grad_(False)
    own = next(prepared.parameters())
    dtype = own.dtype if dtype is None else dtype
    if dtype != torch.bfloat16 or own.device.type != "cpu" or multiplies_bf16():
        prepared.to(dtype)
    return cast(Model, _prepared(prepared, dtype))


def _prepared(part: nn.Module, dtype: torch.dtype, cross: bool = False) -> nn.Module:
    """The part for inference; what has no faster form stays."""
    if isinstance(part, MultiHeadAttention):
        return JointAttention(part, cross=cross, dtype=dtype)
    if isinstance(part, VocabularyHead):
        return PackedLinear(part.weight, part.bias, dtype=dtype)
    if isinstance(part, FeedForward):
        return _prepared_feed_forward(part, dtype)
    for name, child in list(part.named_children()):
        setattr(part, name, _prepared(child, dtype, name == "cross_attn"))
    return StepBlock(part) if isinstance(part, Block) and part.cross_attn is not None else part


def _prepared_feed_forward(part: FeedForward, dtype: torch.dtype) -> FeedForward:
    inside = part.activation is torch.nn.functional.relu
    part.up_proj = packed_map(part.up_proj, dtype=dtype, f="relu" if inside else "none")
    part.down_proj = packed_map(part.down_proj, dtype=dtype)
    if inside:
        part.activation = nn.Identity()
    return part
