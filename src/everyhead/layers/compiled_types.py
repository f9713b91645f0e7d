"""What csrc/step.c reads, as it lies in memory: the weights of a decoder, and what it remembers."""

import ctypes

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

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("k", "v", "bias")),
        ("room", ctypes.c_int64),
    )


class History(ctypes.Structure):
    """csrc/step.c, History."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("sentences", "beams", "length", "memory_length")),
        ("ancestors", ctypes.c_void_p),
        ("own", ctypes.POINTER(Keys)),
        ("memory", ctypes.POINTER(Keys)),
    )
