"""What a compiled step reads and writes of a decoder's caches, and which caches it can.

A program is told addresses and believes them, so every layer's memory is looked at first: whatever
is of another shape or type, or carries a gradient, goes through PyTorch's calls.
"""

from typing import Any

from torch import Tensor

from everyhead.layers.beam_cache import BeamCache
from everyhead.layers.cache import DecoderCache, KeyValueCache
from everyhead.layers.compiled import takes
from everyhead.layers.compiled_types import Decoder, History, Keys


def can_go_on(cache: DecoderCache, decoder: Decoder, rows: int) -> bool:
    """Has every layer a begun history and a memory that one position of `rows` rows can join?"""
    if not len(cache.self_attn) == len(cache.cross_attn) == decoder.n_layers:
        return False
    first, last = cache.self_attn[0], cache.cross_attn[0]
    if not first.length or not last.length or rows % first.beams:
        return False
    n, sizes = rows // first.beams, (decoder.n_heads, decoder.d_head)
    for own, cross in zip(cache.self_attn, cache.cross_attn, strict=True):
        alike = own.length == first.length and cross.length == last.length
        shared = not isinstance(own, BeamCache) or own.ancestry is getattr(first, "ancestry", None)
        if not alike or not shared or type(own) is not type(first) or type(cross) is not type(last):
            return False
        if not can_read(own, n, *sizes) or not can_read(cross, n, *sizes) or _is_full(own):
            return False
    return True


def can_read(cache: KeyValueCache, sentences: int, heads: int, d_head: int) -> bool:
    """Do the keys and values lie as csrc/step.c reads them, one history a sentence?"""
    if type(cache) not in (KeyValueCache, BeamCache) or not cache.length:
        return False
    if isinstance(cache, BeamCache):
        told, biased = cache.ancestry.ancestors, cache.ancestry.step_bias is not None
        rows = told is not None and tuple(told.shape[:2]) == (sentences, cache.beams)
        if biased or not rows:
            return False
    elif cache.step_bias is not None or (cache.bias is not None and not _is_line(cache, sentences)):
        return False
    k, v = cache.whole()
    shape = (sentences, heads, d_head)
    return k.shape == v.shape and all(
        x.is_contiguous() and (*x.shape[:2], x.shape[3]) == shape and takes(x) for x in (k, v)
    )


def _is_line(cache: KeyValueCache, sentences: int) -> bool:
    """Is what hides the memory one row a sentence?"""
    bias = cache.bias
    assert bias is not None
    lies = bias.is_contiguous() and tuple(bias.shape) == (sentences, 1, 1, cache.length)
    return cache.fixed and lies and takes(bias)


def _is_full(own: KeyValueCache) -> bool:
    return own.whole()[0].shape[2] < (own.length + 1) * own.beams


def entered(cache: DecoderCache, rows: int) -> tuple[History, Tensor | None]:
    """Room for one more position in every layer; the second one is to be kept as long."""
    for each in cache.self_attn:
        each.enter()
    own, cross = cache.self_attn[0], cache.cross_attn[0]
    ancestors = ancestors_of(own, rows // own.beams)
    history = History(rows // own.beams, own.beams, own.length, cross.length)
    history.ancestors = None if ancestors is None else ancestors.data_ptr()
    history.own, history.memory = keys_of(cache.self_attn), keys_of(cache.cross_attn)
    return history, ancestors


def ancestors_of(cache: KeyValueCache, sentences: int) -> Tensor | None:
    """(sentences, beams, length) of a history that beams share."""
    if not isinstance(cache, BeamCache):
        return None
    device = cache.whole()[0].device
    return cache.ancestry.history(sentences, cache.length, device).contiguous()


def keys_of(caches: list[Any]) -> Any:
    """Where the keys and values of each layer lie, and what hides a memory's."""
    told = (Keys * len(caches))()
    for place, each in zip(told, caches, strict=True):
        k, v = each.whole()
        place.k, place.v, place.room = k.data_ptr(), v.data_ptr(), k.shape[2]
        if each.fixed and each.bias is not None:
            place.bias = each.bias.data_ptr()
    return told
