"""The parts of a compiled step one at a time, for who looks at them: no bit comes out otherwise.

A step as one program (layers/compiled_step.py) cannot be looked into. These are its own norms,
activations and attentions, called one after another, so that looking changes no bit (law 9).
"""

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everyhead.layers.beam_cache import BeamCache
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.compiled import library, takes
from everyhead.layers.compiled_types import Decoder, History, keys_of
from everyhead.layers.inference import JointAttention, StepBlock
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packed_feed_forward import PackedFeedForward

Map = Callable[[Tensor], Tensor]


def take_parts(block: StepBlock, function: int) -> None:
    """Let a block step by the programs' own parts; function: of its feed-forward, 0 for ReLU."""
    norms = (block.self_attn_norm, block.cross_attn_norm, block.feed_forward_norm)
    block.norm_steps = tuple(_norm(norm) for norm in norms if isinstance(norm, LayerNorm))
    inner = block.feed_forward
    if function and isinstance(inner, PackedFeedForward):
        block.feed_forward_step = _feed_forward(inner, function)
    for attention in (block.self_attn, block.cross_attn):
        if isinstance(attention, JointAttention):
            attention.short = _attention(attention)  # type: ignore[method-assign]


def _norm(plain: LayerNorm) -> Map:
    def norm(x: Tensor) -> Tensor:
        """x (…, C)."""
        programs = library()
        if programs is None or not takes(x):
            return plain(x)
        x = x.contiguous()
        y, d = torch.empty_like(x), x.shape[-1]
        gain, shift = plain.weight.data_ptr(), plain.bias.data_ptr()
        rows = x.numel() // d
        programs.norm_rows(gain, shift, plain.eps, rows, d, x.data_ptr(), y.data_ptr())
        return y

    return norm


def _feed_forward(plain: PackedFeedForward, function: int) -> Map:
    def feed_forward(x: Tensor) -> Tensor:
        """x (…, C)."""
        programs = library()
        if programs is None or not takes(x):
            return plain(x)
        up, down = plain.maps
        inner = up(x).contiguous()
        programs.activate_rows(function, inner.numel(), inner.data_ptr())
        return down(inner)

    return feed_forward


def _attention(plain: JointAttention) -> Callable[..., Tensor]:
    def short(q: Tensor, k: Tensor, v: Tensor, cache: KeyValueCache) -> Tensor:
        """q (n, H, T, D), k and v (n, H, S, D) → (n, H, T, D)."""
        programs, own = library(), not cache.fixed
        biased = cache.ancestry.step_bias if isinstance(cache, BeamCache) else cache.step_bias
        several = own and q.shape[2] != cache.beams
        if programs is None or not takes(q) or biased is not None or several:
            return JointAttention.short(plain, q, k, v, cache)
        (n, heads, rows, d), q = q.shape, q.contiguous()
        ancestors = hidden = None
        if isinstance(cache, BeamCache):
            ancestors = cache.ancestry.history(n, cache.length, q.device).contiguous()
        elif cache.bias is not None:
            hidden = cache.bias.contiguous()
        history = History(n, rows, cache.length, k.shape[2], _address(ancestors), _address(hidden))
        history.own = history.memory = keys_of([cache])
        decoder, out = Decoder(n_heads=heads, d_head=d), torch.empty_like(q)
        scores = q.new_empty(k.shape[2] + 64)
        told = (ctypes.byref(decoder), ctypes.byref(history), int(cache.fixed))
        programs.attend_rows(*told, q.data_ptr(), scores.data_ptr(), out.data_ptr())
        return out

    return short


def _address(x: Tensor | None) -> Any:
    return None if x is None else x.data_ptr()
