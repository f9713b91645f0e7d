"""Two streams that can be run backwards, so that no activation is kept for the gradient.

    y₁ = x₁ + f(x₂)    y₂ = x₂ + g(y₁)        backwards: x₂ = y₂ − g(y₁), x₁ = y₁ − f(x₂)

Gomez et al. 2017 (1707.04585) section 3; in a Transformer f is attention and g the feed-forward
(Kitaev et al. 2020, 2001.04451, section 3). Backward makes each layer's input from its output and
computes the layer again: with the same random numbers, so dropout masks are the same, in the same
precision under autocast, and with the hashes of the first time (layers/replay.py). Where an
observer looks (layers/probe.py), activations are kept as usual.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from everyhead.layers import probe, replay

Grads = tuple[Tensor | None, ...]


class Sublayer(Protocol):
    """f or g: a module, or a part of one."""

    def __call__(self, x: Tensor, *given: Any) -> Tensor: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    @property
    def training(self) -> bool: ...


class Once(NamedTuple):
    """What one sublayer's first pass has to be told again: random states, decisions."""

    random: tuple[Tensor, Tensor | None] | None
    decisions: replay.Kept


class Reversible(nn.Module):
    """Pairs (f, g) over two streams. 1707.04585 equations 6-7.

    f and g map (…) to the same shape and have no other effect; buffers that they change in training
    would be changed twice.
    """

    def __init__(self, pairs: Sequence[tuple[nn.Module, nn.Module]]) -> None:
        super().__init__()
        self.f = nn.ModuleList(f for f, _ in pairs)
        self.g = nn.ModuleList(g for _, g in pairs)

    def pairs(self) -> list[tuple[Sublayer, Sublayer]]:
        """(f, g) from the first to the last."""
        return list(zip(self.f, self.g, strict=True))

    def forward(self, x1: Tensor, x2: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        """x1 and x2 → y1 and y2 of the same shapes; `given` (a mask, …) goes to every f behind x2.

        Raises:
            ValueError: something given asks for a gradient, which would not reach it.
        """
        if any(isinstance(each, Tensor) and each.requires_grad for each in given):
            raise ValueError("what is given to every f gets no gradient: detach it")
        parameters = [p for p in self.parameters() if p.requires_grad]
        wanted = torch.is_grad_enabled() and (
            x1.requires_grad or x2.requires_grad or bool(parameters)
        )
        if not wanted or probe.active():
            for f, g in self.pairs():
                x1 = x1 + f(x2, *given)
                x2 = x2 + g(x1)
            return x1, x2
        y1, y2 = _Recomputed.apply(self, given, x1, x2, *parameters)
        return y1, y2


class _Recomputed(torch.autograd.Function):
    """All pairs as one function that keeps its output alone."""

    @staticmethod
    def forward(
        ctx: Any,
        stack: Reversible,
        given: tuple[Any, ...],
        x1: Tensor,
        x2: Tensor,
        *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.stack, ctx.given, ctx.weights, ctx.first = stack, given, weights, []
        kind = x1.device.type
        ctx.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for f, g in stack.pairs():
            with _first(f, x2, ctx.first):
                x1 = x1 + f(x2, *given)
            with _first(g, x1, ctx.first):
                x2 = x2 + g(x1)
        ctx.save_for_backward(x1, x2)
        return x1, x2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d1: Tensor, d2: Tensor) -> Grads:
        y1, y2 = ctx.saved_tensors
        sums: dict[int, Tensor] = {}
        first = list(ctx.first)
        kind, dtype, enabled = ctx.autocast
        with torch.autocast(kind, dtype, enabled):
            for f, g in reversed(ctx.stack.pairs()):
                more, out = _again(g, y1, (), d2, first.pop(), sums)
                d1, x2 = d1 + more, y2 - out
                more, out = _again(f, x2, ctx.given, d1, first.pop(), sums)
                d2, y1, y2 = d2 + more, y1 - out, x2
        return (None, None, d1, d2, *(sums.get(id(weight)) for weight in ctx.weights))


def _again(
    sublayer: Sublayer,
    x: Tensor,
    given: tuple[Any, ...],
    above: Tensor,
    first: Once,
    sums: dict[int, Tensor],
) -> tuple[Tensor, Tensor]:
    """The sublayer's second pass: the gradient of x, and its output; weights' go into `sums`."""
    weights = [p for p in sublayer.parameters() if p.requires_grad]
    x = x.detach().requires_grad_()
    with torch.enable_grad(), _random(x.device, first.random), replay.again(first.decisions):
        out = sublayer(x, *given)
    grads = torch.autograd.grad(out, [x, *weights], above.to(out.dtype), allow_unused=True)
    for weight, grad in zip(weights, grads[1:], strict=True):
        if grad is not None:
            before = sums.get(id(weight))
            sums[id(weight)] = grad if before is None else before + grad
    return torch.zeros_like(x) if grads[0] is None else grads[0], out.detach()


@contextmanager
def _first(sublayer: Sublayer, x: Tensor, into: list[Once]) -> Iterator[None]:
    """Notes what a first pass inside has to be told again; random states only in training."""
    random = None
    if sublayer.training:
        device = torch.cuda.get_rng_state(x.device) if x.device.type == "cuda" else None
        random = (torch.get_rng_state(), device)
    with replay.kept() as decisions:
        yield
    into.append(Once(random, decisions))


@contextmanager
def _random(device: torch.device, states: tuple[Tensor, Tensor | None] | None) -> Iterator[None]:
    """Inside, the random numbers of the first pass; behind it, those that were to come."""
    if states is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.set_rng_state(states[0])
        if states[1] is not None:
            torch.cuda.set_rng_state(states[1], device)
        yield
