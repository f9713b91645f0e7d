"""Where somebody may look into a forward pass, or change it; nobody looks: one test of one name.

An observer (inspection/trace.py) is told of every attention's projected parts and mask before the
fast path goes on with what it returns. So the output still comes from the fast path.
"""

from typing import TYPE_CHECKING, Protocol

from torch import nn

if TYPE_CHECKING:
    from everyhead.layers.attention import Parts
    from everyhead.layers.masks import Mask


class Observer(Protocol):
    """Sees, and may replace, what an attention is about to use."""

    def attention(self, module: nn.Module, parts: "Parts", mask: "Mask | None") -> "Parts": ...


_observers: list[Observer] = []


def active() -> bool:
    """Does anybody look?"""
    return bool(_observers)


def attention(module: nn.Module, parts: "Parts", mask: "Mask | None") -> "Parts":
    """Show the parts to every observer in turn; each may hand on changed ones."""
    for observer in _observers:
        parts = observer.attention(module, parts, mask)
    return parts


def attach(observer: Observer) -> None:
    """Start looking."""
    _observers.append(observer)


def detach(observer: Observer) -> None:
    """Stop looking."""
    _observers.remove(observer)
