"""bf16 where the processor or GPU multiplies it in hardware, float32 elsewhere and by choice.

Decided by the name of the instruction set, never by a stopwatch (law 8): on a processor without
AVX512-BF16 or AMX, bf16 products are emulated and several times slower than float32.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

PRECISIONS = ("auto", "fp32", "bf16")


def has_fast_bf16(device: torch.device) -> bool:
    """Does this device multiply bf16 in hardware?"""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in tests)


def resolve_precision(wish: str, device: torch.device) -> str:
    """ "fp32" or "bf16" for this device.

    Raises:
        ValueError: a wish that is not in PRECISIONS.
    """
    if wish not in PRECISIONS:
        raise ValueError(f"no precision {wish!r}; there are {', '.join(PRECISIONS)}")
    if wish != "auto":
        return wish
    return "bf16" if has_fast_bf16(device) else "fp32"


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """The context in which a step's forward runs."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16)
