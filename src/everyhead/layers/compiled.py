"""The programs in csrc/, compiled once on the machine where they run (layers/compiling.py).

Products of few rows, a step of a decoder, attention of packed rows, dropout, cross-entropy.

A step of a small model is hundreds of calls of PyTorch's that do little each. Where there is no C
compiler, or on Windows, PyTorch's calls do the same. EVERYHEAD_COMPILE=0 forbids it.
"""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from everyhead.layers.compiling import compile_into, library_file


class Map(ctypes.Structure):
    """csrc/products.h, Map."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("n_in", ctypes.c_int64),
        ("n_out", ctypes.c_int64),
        ("pairs", ctypes.c_int32),
        ("relu", ctypes.c_int32),
    )


class CompiledRows:
    """y = x Wᵀ + b, or its ReLU, for few rows of float32; W in float32 or bf16."""

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool = False) -> None:
        """weight (out, in).

        Raises:
            RuntimeError: there is no compiled library here.
        """
        programs = library()
        if programs is None:
            raise RuntimeError("there is no compiled library here: ask for library() first")
        self.n_out, self.n_in = weight.shape
        self.width, self.relu = programs.panel_width(), relu
        self.pairs = weight.dtype == torch.bfloat16
        self.weight = _in_panels(weight, self.width)
        self.bias = None if bias is None else _filled(bias.float(), self.width)
        # More rows than these are oneDNN's and MKL's; where a vector has 16 numbers, earlier.
        self.most = 32 if programs.lane_width() > 8 else 512

    @property
    def map(self) -> Map:
        """For the programs; it lives no longer than this object."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return Map(self.weight.data_ptr(), bias, self.n_in, self.n_out, self.pairs, self.relu)

    def reads(self, x: Tensor) -> bool:
        """Is it made for so many rows, and for this type?"""
        fits = x.shape[-1] == self.n_in and 0 < x.numel() <= self.most * self.n_in
        return fits and takes(x)

    def __call__(self, x: Tensor) -> Tensor:
        """x float32 (…, in) → (…, out)."""
        programs = library()
        assert programs is not None
        x = x.contiguous()
        rows, threads = x.numel() // self.n_in, torch.get_num_threads()
        y = x.new_empty(*x.shape[:-1], self.n_out)
        wide = x.new_empty(threads * (self.n_in + 1) * self.width) if self.pairs else x
        programs.linear(self.map, x.data_ptr(), y.data_ptr(), rows, wide.data_ptr(), threads)
        return y


def computes(x: Tensor) -> bool:
    """Are numbers of x's kind computed by the programs: float32 on a processor, not traced?"""
    return x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu") and lies_here(x)


def lies_here(x: Tensor) -> bool:
    """Are x's numbers, of whatever type, in this processor's memory, and is it nothing more?"""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    return not _is_followed(x)


def _is_followed(x: Tensor) -> bool:
    """Does x stand for more than its numbers: a tangent, a batch of vmap, a trace, a fake?

    Or has it no numbers at all, which a program would read from no address.
    """
    if type(x) not in (Tensor, nn.Parameter) or torch._C._get_tracing_state() is not None:
        return True
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return True
    return forward_ad.unpack_dual(x).tangent is not None


def takes(x: Tensor) -> bool:
    """Can a program that knows no gradients read x?"""
    return computes(x) and not (x.requires_grad and torch.is_grad_enabled())


def _in_panels(weight: Tensor, width: int) -> Tensor:
    """(out, in) → (out / width, in, width), or pairs of bf16 (out / width, in / 2, width, 2)."""
    n_out, n_in = weight.shape
    pairs = weight.dtype == torch.bfloat16
    panels = -(-n_out // width)
    whole = weight.new_zeros(panels * width, n_in + (n_in % 2 if pairs else 0))
    whole[:n_out, :n_in] = weight
    if not pairs:
        return whole.view(panels, width, n_in).transpose(1, 2).contiguous()
    return whole.view(panels, width, -1, 2).transpose(1, 2).contiguous()


def _filled(bias: Tensor, width: int) -> Tensor:
    whole = bias.new_zeros(-(-bias.numel() // width) * width)
    whole[: bias.numel()] = bias
    return whole


@cache
def library() -> ctypes.CDLL | None:
    """The compiled programs; None where they cannot be had, or do not give the plain product."""
    if os.environ.get("EVERYHEAD_COMPILE") == "0" or sys.platform == "win32":
        return None
    try:
        place = library_file()
        found = None if place is None else _opened_or_made(place)
    except (OSError, RuntimeError, ValueError):
        return None  # a full disk, no home folder, an open quote in CC
    return found if found is not None and _is_right(found) else None


def _opened_or_made(place: Path) -> ctypes.CDLL | None:
    if place.exists():
        try:
            return _opened(place)
        except OSError:  # half a file: a disk was full
            place.unlink()
    return _opened(place) if compile_into(place) else None


def _opened(place: Path) -> ctypes.CDLL:
    """The library with the types of its functions; its threads are those of PyTorch."""
    for threads in (Path(torch.__file__).parent / "lib").glob("libgomp*"):
        ctypes.CDLL(str(threads), mode=ctypes.RTLD_GLOBAL)
    programs = ctypes.CDLL(str(place))
    pointer, number, few = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    real = ctypes.c_float
    for name, result, arguments in (
        ("panel_width", number, ()),
        ("lane_width", number, ()),
        ("linear", None, (ctypes.POINTER(Map), pointer, pointer, number, pointer, few)),
        ("step_scratch", number, (pointer, pointer, few)),
        ("step", None, (pointer, pointer, pointer, pointer, few)),
        ("norm_rows", None, (pointer, pointer, real, number, number, pointer, pointer)),
        ("activate_rows", None, (ctypes.c_int32, number, pointer)),
        ("attend_rows", None, (pointer, pointer, few, pointer, pointer, pointer)),
        ("packed_scratch", number, (number, number, few)),
        ("packed_forward", None, (pointer, number, pointer, few)),
        ("packed_backward", None, (pointer, number, pointer, few)),
        ("drop", None, (pointer, few)),
        ("philox", None, (number, number, pointer)),
        ("cross_entropy", None, (pointer, few)),
        ("continuations", None, (pointer, pointer, few)),
    ):
        function = getattr(programs, name)
        function.restype, function.argtypes = result, arguments
    return programs


def _is_right(programs: ctypes.CDLL) -> bool:
    """Is its product the plain one?"""
    like: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # whatever the default is
    x = torch.linspace(-1, 1, 7 * 37, **like).view(7, 37)
    weight = torch.linspace(1, -1, 45 * 37, **like).view(45, 37).sin()
    width = programs.panel_width()
    panels, y, wide = _in_panels(weight, width), x.new_empty(7, 45), x.new_empty(38 * width)
    one = Map(panels.data_ptr(), None, 37, 45, 0, 1)
    programs.linear(one, x.data_ptr(), y.data_ptr(), 7, wide.data_ptr(), 1)
    return torch.allclose(y, F.linear(x, weight).relu(), atol=1e-5)
