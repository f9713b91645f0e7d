"""The parts of a compiled step one at a time, for who looks at them: no bit comes out otherwise.

A step as one program (layers/compiled_step.py) cannot be looked into. These are its own norms,
activations and attentions, called one after another, so that looking changes no bit (law 9).
"""

import ctypes
from types import MethodType

import torch
from torch import Tensor

from everyhead.layers.cache import KeyValueCache
from everyhead.layers.compiled import library, takes
from everyhead.layers.compiled_history import ancestors_of, can_read, keys_of
from everyhead.layers.compiled_types import Decoder, History
from everyhead.layers.inference import JointAttention, NormStep, StepBlock
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packed_feed_forward import PackedFeedForward


def take_parts(block: StepBlock, function: int) -> None:
    """Let a block step by the programs' own parts; function: of its feed-forward, 0 for ReLU."""
    norms = (block.self_attn_norm, block.cross_attn_norm, block.feed_forward_norm)
    block.norm_steps = tuple(CompiledNorm(each).step for each in norms if type(each) is LayerNorm)
    inner = block.feed_forward
    if function and isinstance(inner, PackedFeedForward):
        block.feed_forward_step = CompiledFeedForward(inner, function).step
    for attention in (block.self_attn, block.cross_attn):
        if isinstance(attention, JointAttention):
            attention.short = MethodType(_short, attention)  # type: ignore[method-assign]


class CompiledNorm(NormStep):
    """A `LayerNorm` by the program's own function."""

    def step(self, x: Tensor) -> Tensor:
        """x (…, C)."""
        programs, weight, bias = library(), self.held["weight"], self.held["bias"]
        assert weight is not None and bias is not None
        if programs is None or not takes(x) or weight.dtype != torch.float32:
            return self.centred(x)
        x = x.contiguous()
        y, d = torch.empty_like(x), x.shape[-1]
        told = weight.data_ptr(), bias.data_ptr(), self.norm.eps
        programs.norm_rows(*told, x.numel() // d, d, x.data_ptr(), y.data_ptr())
        return y


class CompiledFeedForward:
    """A feed-forward whose activation is the program's own."""

    def __init__(self, plain: PackedFeedForward, function: int) -> None:
        self.plain, self.function = plain, function

    def step(self, x: Tensor) -> Tensor:
        """x (…, C)."""
        programs = library()
        if programs is None or not takes(x):
            return self.plain(x)
        up, down = self.plain.maps
        inner = up(x).contiguous()
        programs.activate_rows(self.function, inner.numel(), inner.data_ptr())
        return down(inner)


def _short(
    attention: JointAttention, q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache
) -> Tensor:
    """q (n, H, T, D), k and v (n, H, S, D) → (n, H, T, D)."""
    programs, (n, heads, rows, d) = library(), q.shape
    several = not cache.fixed and rows != cache.beams
    if programs is None or several or not takes(q) or not can_read(cache, n, heads, d):
        return JointAttention.short(attention, q, k, v, cache)
    q, ancestors = q.contiguous(), ancestors_of(cache, n)
    history = History(n, rows, cache.length, k.shape[2])
    history.ancestors = None if ancestors is None else ancestors.data_ptr()
    history.own = history.memory = keys_of([cache])
    decoder, out = Decoder(n_heads=heads, d_head=d), torch.empty_like(q)
    scores = q.new_empty(k.shape[2] + 64)
    told = (ctypes.byref(decoder), ctypes.byref(history), int(cache.fixed))
    programs.attend_rows(*told, q.data_ptr(), scores.data_ptr(), out.data_ptr())
    return out
