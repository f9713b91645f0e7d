"""An inference copy of a model: the same equations, faster (law 10).

Joint maps and short steps: layers/inference.py; weights laid out for the kernels: layers/packed.py;
a whole step of a decoder: layers/compiled_step.py.
"""

import copy
from typing import TypeVar

import torch
from torch import nn

from everyhead.layers.blocks import Block, Stack
from everyhead.layers.compiled_step import CompiledStack, can_compile
from everyhead.layers.feed_forward import FeedForward, GatedFeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.inference import JointAttention, JointSlidingAttention, StepBlock
from everyhead.layers.linear import WideLinear
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packed import PackedLinear, multiplies_bf16
from everyhead.layers.packed_feed_forward import PackedFeedForward, PackedGatedFeedForward
from everyhead.layers.sliding import SlidingAttention

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
    _forget_observers(prepared)
    own = next(prepared.parameters())
    dtype = own.dtype if dtype is None else dtype
    if dtype != torch.bfloat16 or own.device.type != "cpu" or multiplies_bf16():
        prepared.to(dtype)
    _prepare_children(prepared, dtype)
    return prepared


def _forget_observers(model: nn.Module) -> None:
    """A model that is recorded meanwhile has hooks of the recording; nobody looks at its copy."""
    for module in model.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if getattr(hook, "looks", False)]:
                del hooks[key]


def _prepare_children(parent: nn.Module, dtype: torch.dtype) -> None:
    for name, part in list(parent.named_children()):
        setattr(parent, name, _prepared(part, dtype, cross=name == "cross_attn"))


def _prepared(part: nn.Module, dtype: torch.dtype, cross: bool) -> nn.Module:
    """The part for inference; what has no faster form stays."""
    if type(part) is MultiHeadAttention:  # a variant has equations of its own
        return JointAttention(part, cross=cross, dtype=dtype)
    if type(part) is SlidingAttention:
        return JointSlidingAttention(part, cross=cross, dtype=dtype)
    if isinstance(part, VocabularyHead):
        return PackedLinear(part.weight, part.bias, dtype=dtype)
    if isinstance(part, FeedForward):
        return PackedFeedForward(part, dtype=dtype)
    if isinstance(part, GatedFeedForward):
        return PackedGatedFeedForward(part, dtype=dtype)
    _prepare_children(part, dtype)
    if type(part) is Stack and can_compile(part):
        return CompiledStack(part)
    # a block of a family's own has equations of its own
    return StepBlock(part) if type(part) is Block and _can_step(part) else part


def _can_step(block: Block) -> bool:
    """A block of attentions that step; with a memory, queries, keys and values have equal heads.

    A stream that is wider than what the sublayers add to it takes the long way.
    """
    own, cross = block.self_attn, block.cross_attn
    if any(isinstance(part, WideLinear) for part in block.feed_forward.children()):
        return False
    if cross is None:
        return isinstance(own, JointAttention)
    both = isinstance(own, JointAttention) and isinstance(cross, JointAttention)
    return both and all(part.n_heads == part.n_kv_heads for part in (own, cross))
