"""Recording: what every attention used, so that its matrix can be computed when somebody asks.

    with record(model) as trace:
        model(source, target, source_mask, target_mask)
    trace["decoder.2.cross_attn"].weights(heads=[3], rows=slice(0, 5))     # (B, 1, 5, S)

Kept are copies of the projected q, k, v and the mask rule, O(n) in the length; never a matrix. The
output of the model still comes from its fast path. Of several passes the last one is kept. The
steps of a cached decoding are one pass: row t of the joined matrix is the query that stood at
target position t, the one that produced token t + 1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

import torch
from torch import Tensor, nn

from everyhead.layers import attention, probe
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention


class Step(Enum):
    """How a call stands to the calls before it."""

    FRESH = "it begins a pass"
    NEXT = "it adds rows to the pass"
    MOVED = "its batch is not the pass's"


class Place:
    """One attention of a model, as it was used."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mask: Mask | None = None
        self.last = Step.FRESH
        self._queries: list[Tensor] = []
        self._parts: Parts | None = None

    @property
    def parts(self) -> Parts:
        """q (B, H, T, D), k and v (B, K, S, D), scale, bias.

        Raises:
            LookupError: the model did not pass here while it was recorded, or the rows of the
                batch were moved between two steps.
        """
        if self.last is Step.MOVED:
            raise LookupError(
                f"the rows at {self.name} were moved between two steps, as beams and finished "
                "sentences are: record one sentence searched greedily, or the finished "
                "translation in one pass"
            )
        if self._parts is None:
            raise LookupError(f"nothing was recorded at {self.name}: run the model inside record()")
        return self._parts._replace(q=torch.cat(self._queries, 2))

    def weights(
        self, heads: list[int] | slice | None = None, rows: slice | Tensor | None = None
    ) -> Tensor:
        """The softmax rows asked for, (B, h, t, S), computed now; raises as `parts` does."""
        return attention.weights(self.parts, self.mask, heads, rows)

    def compare(self, parts: Parts) -> Step:
        """How self-attention goes on from what is kept: the keys of a pass grow and stay."""
        n_new, n_keys, kept = parts.q.shape[2], parts.k.shape[2], self._parts
        if n_new == n_keys or (kept is None and self.last is not Step.MOVED):
            return Step.FRESH  # a cache that was begun before the recording counts as fresh
        if kept is None or kept.k.shape[2] != n_keys - n_new:
            return Step.MOVED
        before = parts.k[:, :, : n_keys - n_new]
        same = before.shape == kept.k.shape and torch.equal(before, kept.k)
        return Step.NEXT if same else Step.MOVED

    def note(self, parts: Parts, mask: Mask | None, step: Step) -> None:
        """Keep finished copies of a call that stands so to those before it."""
        self.last = step
        if step is not Step.NEXT:
            self._queries, self._parts = [], None
        if step is not Step.MOVED:
            q, k, v = (x.detach().clone() for x in (parts.q, parts.k, parts.v))
            self._queries.append(q)
            self._parts, self.mask = parts._replace(q=q, k=k, v=v), mask


class Trace:
    """The places of a model, by parameter path with or without `.blocks`."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {
            module: name.replace(".blocks.", ".")
            for name, module in model.named_modules()
            if isinstance(module, MultiHeadAttention)
        }
        self._places = {name: Place(name) for name in self._names.values()}

    def places(self) -> list[str]:
        """Every attention of the model, in its order."""
        return list(self._places)

    def __getitem__(self, name: str) -> Place:
        place = self._places.get(name.replace(".blocks.", "."))
        if place is None:
            raise LookupError(f"no place {name!r}; there are {', '.join(self._places)}")
        return place

    def attention(self, module: nn.Module, parts: Parts, mask: Mask | None) -> Parts:
        """The probe's call: keep copies, change nothing."""
        name = self._names.get(module) if isinstance(module, MultiHeadAttention) else None
        if name is not None:
            place = self._places[name]
            place.note(parts, mask, self._step(place, parts))
        return parts

    def _step(self, place: Place, parts: Parts) -> Step:
        """A memory's keys tell nothing: its reader goes on as the self-attention before it did."""
        if not place.name.endswith("cross_attn"):
            return place.compare(parts)
        before = self._places.get(place.name.removesuffix("cross_attn") + "self_attn")
        return Step.FRESH if before is None else before.last


@contextmanager
def record(model: nn.Module) -> Iterator[Trace]:
    """Record every attention of `model` while the context is open.

    Raises:
        ValueError: the model has no attention of everyhead's.
    """
    trace = Trace(model)
    if not trace.places():
        raise ValueError(f"{type(model).__name__} has no attention that can be recorded")
    probe.attach(trace)
    try:
        yield trace
    finally:
        probe.detach(trace)
