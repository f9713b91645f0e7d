"""Where somebody may look into a forward pass, or change it; nobody looks: one test of one name.

An observer (inspection/trace.py) stands around every attention: it is given the projected parts,
the mask and the function that attends, and returns what attention returns. As it calls that
function itself, the output still comes from the fast path, or from parts that it has changed.

Observers belong to the context that attached them: a thread or task sees its own and no other's.
"""

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

if TYPE_CHECKING:
    from everyhead.layers.attention import Parts
    from everyhead.layers.masks import Mask

Attend = Callable[["Parts", "Mask | None"], Tensor]


class Observer(Protocol):
    """Sees, and may change, what an attention uses and what it gives: (B, H, T, Dv)."""

    def attention(
        self, module: nn.Module, parts: "Parts", mask: "Mask | None", attend: Attend
    ) -> Tensor: ...


_observers: ContextVar[tuple[Observer, ...]] = ContextVar("observers", default=())
# How many look anywhere. A traced graph reads this plain number and, while it is 0, nothing else.
_anywhere = 0
_lock = threading.Lock()


def active() -> bool:
    """Does anybody look, here?"""
    return _anywhere > 0 and bool(_observers.get())


def sees(observer: Observer) -> bool:
    """Does this observer look here? In another thread or task it does not."""
    return _anywhere > 0 and observer in _observers.get()


def attention(module: nn.Module, parts: "Parts", mask: "Mask | None", attend: Attend) -> Tensor:
    """`attend(parts, mask)` inside every observer; the last attached stands innermost."""
    for observer in reversed(_observers.get()):
        attend = _inside(observer, module, attend)
    return attend(parts, mask)


def _inside(observer: Observer, module: nn.Module, attend: Attend) -> Attend:
    return lambda parts, mask: observer.attention(module, parts, mask, attend)


def attach(observer: Observer) -> None:
    """Start looking."""
    global _anywhere
    with _lock:
        _anywhere += 1
    _observers.set((*_observers.get(), observer))


def detach(observer: Observer) -> None:
    """Stop looking.

    Raises:
        ValueError: this observer does not look here.
    """
    global _anywhere
    others = list(_observers.get())
    others.remove(observer)
    _observers.set(tuple(others))
    with _lock:
        _anywhere -= 1
