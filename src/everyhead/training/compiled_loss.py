"""Cross-entropy of rows of logits in one pass each, by layers/csrc/cross_entropy.c."""

import ctypes

import torch
from torch import Tensor

from everyhead.layers.compiled import library, lies_here


class Rows(ctypes.Structure):
    """csrc/cross_entropy.c, Rows."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("z", "labels", "lse", "picked")),
        ("rows", ctypes.c_int64),
        ("pieces", ctypes.c_int64),
        ("right", ctypes.c_float),
        ("other", ctypes.c_float),
        ("wanted", ctypes.c_int32),
    )


def can_compute(z: Tensor) -> bool:
    """Float32 logits on a processor, and is there a compiled program?"""
    return z.dtype == torch.float32 and library() is not None and lies_here(z)


def row_losses(
    z: Tensor, labels: Tensor, *, right: float, other: float, wanted: bool
) -> tuple[Tensor, Tensor]:
    """log Σ e^z and z of the label, float64 (n,) each; z (n, V) becomes e^z / Σ − other, less
    `right` at the label, if that gradient is wanted.

    Raises:
        ValueError: a label is no piece.
    """
    programs, (rows, pieces) = library(), z.shape
    assert programs is not None and z.is_contiguous()
    if rows and not 0 <= int(labels.min()) <= int(labels.max()) < pieces:
        seen = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"a label is one of {pieces} pieces, from 0 on; got {seen}")
    labels = labels.contiguous()
    lse, picked = (torch.empty(rows, dtype=torch.float64) for _ in range(2))
    told = Rows(z.data_ptr(), labels.data_ptr(), lse.data_ptr(), picked.data_ptr(), rows, pieces)
    told.right, told.other, told.wanted = right, other, wanted
    programs.cross_entropy(ctypes.byref(told), torch.get_num_threads())
    return lse, picked
