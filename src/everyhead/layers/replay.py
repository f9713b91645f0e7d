"""Whole numbers that a forward pass decided on, kept for when it is computed a second time.

A reversible layer gets its input back only up to rounding, and one rounding may put a token into
another bucket: the gradient would be that of another function. So what was decided the first time
(hashes, layers/lsh.py) is handed out again, in the same order.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Kept = list[Tensor]
_kept: ContextVar[Kept | None] = ContextVar("kept", default=None)
_again: ContextVar[Iterator[Tensor] | None] = ContextVar("again", default=None)
# How many passes are kept or repeated anywhere. A traced graph reads this plain number alone.
_anywhere = 0
_lock = threading.Lock()


@contextmanager
def kept() -> Iterator[Kept]:
    """Inside, every decision is put into the list that this gives."""
    decisions: Kept = []
    token = _kept.set(decisions)
    _count(1)
    try:
        yield decisions
    finally:
        _count(-1)
        _kept.reset(token)


@contextmanager
def again(decisions: Kept) -> Iterator[None]:
    """Inside, decisions are those of the list, one after another.

    Raises:
        RuntimeError: the second pass asked for fewer than the first.
    """
    left = iter(decisions)
    token = _again.set(left)
    _count(1)
    try:
        yield
        if next(left, None) is not None:
            raise RuntimeError("the second pass decided less often than the first")
    finally:
        _count(-1)
        _again.reset(token)


def decided(decide: Callable[[], Tensor]) -> Tensor:
    """decide(), an int64 tensor; or what it gave the first time.

    Raises:
        RuntimeError: the second pass asks for more than the first.
    """
    if _anywhere == 0:
        return decide()
    left = _again.get()
    if left is not None:
        before = next(left, None)
        if before is None:
            raise RuntimeError("the second pass decides more often than the first")
        return before.long()
    decision = decide()
    decisions = _kept.get()
    if decisions is not None:
        small = decision.numel() == 0 or int(decision.max()) < torch.iinfo(torch.int16).max
        decisions.append(decision.to(torch.int16 if small else torch.int32))
    return decision


def _count(step: int) -> None:
    global _anywhere
    with _lock:
        _anywhere += step
