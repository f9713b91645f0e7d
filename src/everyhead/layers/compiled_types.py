"""What csrc/step.c reads, as it lies in memory: the weights of a decoder, and what it remembers."""

import ctypes
from typing import Any

from everyhead.layers.compiled import Map

MAPS = ("own", "own_out", "query", "cross_out", "up", "down")
Floats = ctypes.c_void_p * 3


class Layer(ctypes.Structure):
    """csrc/step.c, Layer."""

    _fields_ = (
        *((name, Map) for name in MAPS),
        ("gain", Floats),
        ("shift", Floats),
    )


class Decoder(ctypes.Structure):
    """csrc/step.c, Decoder."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("n_layers", "d_model", "n_heads", "d_head", "d_ff")),
        ("layers", ctypes.POINTER(Layer)),
        ("norm_first", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class Keys(ctypes.Structure):
    """csrc/step.c, Keys."""

    _fields_ = (("k", ctypes.c_void_p), ("v", ctypes.c_void_p), ("room", ctypes.c_int64))


class History(ctypes.Structure):
    """csrc/step.c, History."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("sentences", "beams", "length", "memory_length")),
        ("ancestors", ctypes.c_void_p),
        ("memory_bias", ctypes.c_void_p),
        ("own", ctypes.POINTER(Keys)),
        ("memory", ctypes.POINTER(Keys)),
    )


def keys_of(caches: list[Any]) -> Any:
    """Where the keys and values of each layer lie."""
    told = (Keys * len(caches))()
    for place, each in zip(told, caches, strict=True):
        k, v = each.whole()
        place.k, place.v, place.room = k.data_ptr(), v.data_ptr(), k.shape[2]
    return told
