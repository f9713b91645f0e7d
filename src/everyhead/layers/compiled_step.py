"""One position more of a whole decoder in one call: the stack of layers/blocks.py, csrc/step.c.

It reads and writes the caches that PyTorch's calls use (layers/cache.py, layers/beam_cache.py), so
that every other step may go the usual way: the first one, what has a form of its own, and a part at
a time for who looks (layers/compiled_parts.py).
"""

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.layers import probe
from everyhead.layers.blocks import Memory, Stack
from everyhead.layers.cache import DecoderCache
from everyhead.layers.compiled import CompiledRows, library, takes
from everyhead.layers.compiled_history import can_go_on, entered
from everyhead.layers.compiled_parts import take_parts
from everyhead.layers.compiled_types import MAPS, Decoder, Floats, Layer
from everyhead.layers.feed_forward import ACTIVATIONS
from everyhead.layers.inference import JointAttention, StepBlock
from everyhead.layers.masks import Mask
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packed import PackedLinear
from everyhead.layers.packed_feed_forward import PackedFeedForward

# csrc/attention.h; ReLU is in the product.
FUNCTIONS = {"silu": 1, "gelu": 2, "gelu_tanh": 3}


class Watched(NamedTuple):
    """A tensor or a module whose address a program was told, and where it is exchanged."""

    holder: dict[str, Any]
    name: str
    thing: Any
    address: int = 0  # of a tensor's numbers

    def stands(self) -> bool:
        now = self.holder.get(self.name)
        return now is self.thing and (not self.address or now.data_ptr() == self.address)


class CompiledStack(Stack):
    """A prepared decoder's blocks, one program where one position is added to a cache."""

    def __init__(self, plain: Stack) -> None:
        """plain: of blocks of which `can_compile` holds."""
        nn.Module.__init__(self)
        self.__dict__.update(plain.__dict__)
        self._decoder: Decoder | None = None  # addresses of this copy's own weights
        self._watched: tuple[Watched, ...] = ()
        blocks: list[Any] = list(self.blocks)
        for block in blocks:
            take_parts(block, _function(block.feed_forward) or 0)
        self.most = min(part.row.most for block in blocks for part in _maps(block) if part.row)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None, "_watched": ()}

    def at_once(
        self, x: Tensor, mask: Mask | None, memory: Memory | None, cache: DecoderCache
    ) -> Tensor | None:
        """One position more, if the caches and the blocks are such and nobody looks."""
        if x.dim() != 3 or x.shape[1] != 1 or not x.numel() or not takes(x) or probe.active():
            return None
        if x.shape[0] > self.most or not (mask is None or mask.only_causal):
            return None
        decoder = self._described()
        if decoder is None or x.shape[2] != decoder.d_model:
            return None
        hides = memory is not None and memory.mask is not None
        hooked = any(block._forward_hooks or block._forward_pre_hooks for block in self.blocks)
        if hooked or not can_go_on(cache, decoder, x.shape[0]):
            return None
        return None if hides and cache.cross_attn[0].bias is None else _step(decoder, x, cache)

    def _described(self) -> Decoder | None:
        """The decoder as the program reads it, described anew where a part was exchanged."""
        blocks = list(self.blocks)
        whole = self._decoder is not None and self._decoder.n_layers == len(blocks)
        if whole and all(each.stands() for each in self._watched):
            return self._decoder
        self._decoder, self._watched = None, ()
        if can_compile(self):
            self._decoder, self._watched = _decoder(blocks), _watched(self, blocks)
        return self._decoder


def _step(decoder: Decoder, x: Tensor, cache: DecoderCache) -> Tensor:
    """x (rows, 1, C) → (rows, 1, C), before a last norm."""
    programs, threads = library(), torch.get_num_threads()
    assert programs is not None
    history, ancestors = entered(cache, x.shape[0])
    told, asked = ctypes.byref(decoder), ctypes.byref(history)
    scratch = x.new_empty(programs.step_scratch(told, asked, threads))
    y = x.clone(memory_format=torch.contiguous_format)
    programs.step(told, asked, y.data_ptr(), scratch.data_ptr(), threads)
    del ancestors  # until here the program has read them
    return y


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
            *(size for each in (block.self_attn, block.cross_attn) for size in _heads(each)),
            *(norm.eps for norm in _norms(block)),
            _function(block.feed_forward),
            *((part.n_in, part.n_out) for part in _maps(block)),
        )
        for block in blocks
    ]
    first, eps = blocks[0], {norm.eps for block in blocks for norm in _norms(block)}
    same_heads = _heads(first.self_attn) == _heads(first.cross_attn)
    return len(set(told)) == 1 and len(eps) == 1 and same_heads


def _heads(attention: JointAttention) -> tuple[int, int]:
    return attention.n_heads, attention.d_head


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


def _decoder(blocks: list[Any]) -> Decoder:
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


def _watched(stack: Stack, blocks: list[Any]) -> tuple[Watched, ...]:
    """Every block, norm and weight whose address `_decoder` tells."""
    found = [Watched(stack.blocks._modules, str(i), block) for i, block in enumerate(blocks)]
    for block in blocks:
        for name in ("self_attn_norm", "cross_attn_norm", "feed_forward_norm"):
            norm = getattr(block, name)
            found += [Watched(block._modules, name, norm), Watched(norm.__dict__, "eps", norm.eps)]
            found += _tensors(norm, norm._parameters)
        for part in _maps(block):
            found.append(Watched(part.__dict__, "row", part.row))
            found += _tensors(part.row, vars(part.row))
    return tuple(found)


def _tensors(of: Any, holder: dict[str, Any]) -> list[Watched]:
    """Its weight, and its bias where it has one."""
    told = [(name, getattr(of, name)) for name in ("weight", "bias")]
    return [Watched(holder, name, x, x.data_ptr()) for name, x in told if x is not None]
