"""One position more of a whole decoder in one call: the stack of layers/blocks.py, csrc/step.c.

It reads and writes the caches that PyTorch's calls use (layers/cache.py, layers/beam_cache.py), so
that every other step may go the usual way: the first one, what has a form of its own, and a part at
a time for who looks (layers/compiled_parts.py).
"""

import ctypes
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.layers import probe
from everyhead.layers.beam_cache import BeamCache
from everyhead.layers.blocks import Memory, Stack
from everyhead.layers.cache import DecoderCache, KeyValueCache
from everyhead.layers.compiled import CompiledRows, library, takes
from everyhead.layers.compiled_parts import take_parts
from everyhead.layers.compiled_types import MAPS, Decoder, Floats, History, Layer, keys_of
from everyhead.layers.feed_forward import ACTIVATIONS
from everyhead.layers.inference import JointAttention, StepBlock
from everyhead.layers.masks import Mask
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packed import PackedLinear
from everyhead.layers.packed_feed_forward import PackedFeedForward
from everyhead.layers.packing import Packing
from everyhead.layers.rotary import Rotation

# csrc/attention.h; ReLU is in the product.
FUNCTIONS = {"silu": 1, "gelu": 2, "gelu_tanh": 3}


class CompiledStack(Stack):
    """A prepared decoder's blocks, one program where one position is added to a cache."""

    def __init__(self, plain: Stack) -> None:
        """plain: of blocks of which `can_compile` holds."""
        nn.Module.__init__(self)
        self.__dict__.update(plain.__dict__)
        self._decoder: Decoder | None = None  # addresses of this copy's own weights
        blocks: list[Any] = list(self.blocks)
        for block in blocks:
            take_parts(block, _function(block.feed_forward) or 0)
        self.most = min(part.row.most for block in blocks for part in _maps(block) if part.row)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        memory: Memory | None = None,
        *,
        packing: Packing | None = None,
        cache: DecoderCache | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """As `Stack.forward`."""
        plain = bias is None and rotation is None and (mask is None or mask.only_causal)
        if not plain or cache is None or not self._goes_on(x, memory, cache):
            return super().forward(
                x, mask, memory, packing=packing, cache=cache, bias=bias, rotation=rotation
            )
        y = self._step(x, cache)
        return y if self.norm is None else self.norm(y)

    def _goes_on(self, x: Tensor, memory: Memory | None, cache: DecoderCache) -> bool:
        """One position, all rows see their whole history, and nobody looks."""
        if x.shape[1] != 1 or not x.numel() or not takes(x) or probe.active():
            return False
        own, cross = cache.self_attn[0], cache.cross_attn[0]
        begun = own.length > 0 and own.width == own.beams and cross.length > 0
        if not begun or x.shape[0] > self.most or not _one_history_each(x, cache):
            return False
        whole = cross.bias is not None or memory is None or memory.mask is None
        if type(own) not in (KeyValueCache, BeamCache) or not whole:
            return False
        biased = own.ancestry.step_bias if isinstance(own, BeamCache) else own.step_bias
        hooked = any(block._forward_hooks or block._forward_pre_hooks for block in self.blocks)
        return biased is None and not hooked

    def _step(self, x: Tensor, cache: DecoderCache) -> Tensor:
        """x (rows, 1, C) → (rows, 1, C), before a last norm."""
        programs = library()
        assert programs is not None
        if self._decoder is None:
            self._decoder = _described(list(self.blocks))
        threads, kept = torch.get_num_threads(), _entered(cache, x)
        own, cross = cache.self_attn[0], cache.cross_attn[0]
        keys = [keys_of(part) for part in (cache.self_attn, cache.cross_attn)]
        ancestors, hidden = (None if part is None else part.data_ptr() for part in kept)
        history = History(
            x.shape[0] // own.beams, own.beams, own.length, cross.length, ancestors, hidden, *keys
        )
        decoder, asked = ctypes.byref(self._decoder), ctypes.byref(history)
        scratch = x.new_empty(programs.step_scratch(decoder, asked, threads))
        y = x.clone(memory_format=torch.contiguous_format)
        programs.step(decoder, asked, y.data_ptr(), scratch.data_ptr(), threads)
        return y


def _one_history_each(x: Tensor, cache: DecoderCache) -> bool:
    """Has each row, or group of beams, a history and a memory of its own?"""
    own, cross = cache.self_attn[0], cache.cross_attn[0]
    return all(each.whole()[0].shape[0] * own.beams == x.shape[0] for each in (own, cross))


def _entered(cache: DecoderCache, like: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Room for one more position in every layer; → the rows' ancestors, what a memory hides."""
    for each in cache.self_attn:
        each.enter()
    own, hidden = cache.self_attn[0], cache.cross_attn[0].bias
    ancestors = None
    if isinstance(own, BeamCache):
        n = like.shape[0] // own.beams
        ancestors = own.ancestry.history(n, own.length, like.device).contiguous()
    return ancestors, None if hidden is None else hidden.contiguous()


def can_compile(stack: Stack) -> bool:
    """Are all its blocks of the kind that csrc/step.c computes, and is there the program?"""
    programs, blocks = library(), list(stack.blocks)
    if programs is None or not blocks:
        return False
    lanes = programs.lane_width()
    return all(_is_plain(block, lanes) for block in blocks) and _are_alike(blocks)


def _is_plain(block: nn.Module, lanes: int) -> bool:
    if not isinstance(block, StepBlock) or block.cross_step is None:
        return False
    own, cross, inner = block.self_attn, block.cross_attn, block.feed_forward
    if type(own) is not JointAttention or type(cross) is not JointAttention:
        return False
    if type(inner) is not PackedFeedForward or _function(inner) is None:
        return False
    norms = (block.self_attn_norm, block.cross_attn_norm, block.feed_forward_norm)
    if not all(type(norm) is LayerNorm and norm.weight.dtype == torch.float32 for norm in norms):
        return False
    maps = _maps(block)
    compiled = bool(maps) and all(isinstance(part.row, CompiledRows) for part in maps)
    return compiled and not any(
        size % lanes for part in maps for size in (own.d_head, part.n_in, part.n_out)
    )


def _are_alike(blocks: list[Any]) -> bool:
    """Of one shape, one order and one ε."""
    told = [
        (
            block.norm_first,
            block.self_attn.n_heads,
            block.cross_attn.n_heads,
            *(norm.eps for norm in _norms(block)),
            _function(block.feed_forward),
            *((part.n_in, part.n_out) for part in _maps(block)),
        )
        for block in blocks
    ]
    first, eps = blocks[0], {norm.eps for block in blocks for norm in _norms(block)}
    same_heads = first.self_attn.n_heads == first.cross_attn.n_heads
    return len(set(told)) == 1 and len(eps) == 1 and same_heads


def _norms(block: Any) -> tuple[LayerNorm, LayerNorm, LayerNorm]:
    return block.self_attn_norm, block.cross_attn_norm, block.feed_forward_norm


def _maps(block: Any) -> tuple[PackedLinear, ...]:
    own, cross, inner = block.self_attn, block.cross_attn, block.feed_forward
    parts = (own.q_proj, own.o_proj, cross.q_proj, cross.o_proj, inner.up_proj, inner.down_proj)
    return tuple(parts) if all(isinstance(part, PackedLinear) for part in parts) else ()


def _function(inner: PackedFeedForward) -> int | None:
    """The number of what stands between the two maps: 0 where it is in the first one."""
    if inner.up_proj.f == "relu":
        return 0
    names = [name for name, f in ACTIVATIONS.items() if f is inner.activation]
    return FUNCTIONS.get(names[0]) if names else None


def _described(blocks: list[Any]) -> Decoder:
    """The decoder as csrc/step.c reads it."""
    layers = (Layer * len(blocks))()
    for layer, block in zip(layers, blocks, strict=True):
        for name, part in zip(MAPS, _maps(block), strict=True):
            if isinstance(part.row, CompiledRows):
                setattr(layer, name, part.row.map)
        layer.gain = Floats(*(norm.weight.data_ptr() for norm in _norms(block)))
        layer.shift = Floats(*(norm.bias.data_ptr() for norm in _norms(block)))
    first, inner = blocks[0].self_attn, blocks[0].feed_forward
    return Decoder(
        len(blocks),
        inner.up_proj.n_in,
        first.n_heads,
        first.d_head,
        inner.up_proj.n_out,
        layers,
        blocks[0].norm_first,
        _function(inner),
        _norms(blocks[0])[0].eps,
    )
