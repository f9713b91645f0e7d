"""What stands around every attention while a model is recorded: it keeps copies, and changes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.beams import PLAIN, Layout, by_row, layout_of
from everyhead.inspection.changes import Change, TokenHidden, unreached
from everyhead.inspection.given import Readings, bias_of
from everyhead.inspection.places import Place
from everyhead.inspection.relation import Relation, Step, told
from everyhead.inspection.tokens import Tokens
from everyhead.layers import probe
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention


class Recorder:
    """An observer (layers/probe.py) of the places of one model."""

    def __init__(
        self,
        places: dict[nn.Module, list[Place]],
        tokens: Tokens,
        *,
        changes: dict[str, list[Change]],
    ) -> None:
        self.places, self.tokens, self.changes = places, tokens, changes
        named = {place.name: place for one in places.values() for place in one}
        self._own = {name: named.get(_layer(name) + "self_attn") for name in named}
        self._reader = {name: named.get(_layer(name) + "cross_attn") for name in named}
        self._turn = dict.fromkeys(places, 0)
        self._readings = Readings()
        self._layouts: dict[str, Layout] = {}
        self._reached: dict[int, int] = {}  # by the change's id: positions that came so far

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        """The probe's call."""
        if module not in self.places:
            return attend(parts, mask)
        place = self._next(module)
        changes = self.changes.get(place.name, [])
        layout = self._layout(module, place, parts, mask)
        own = by_row(parts, layout)
        relation = self._relation(place, own)
        start = 0 if relation.step is Step.FRESH else place.length
        first = 0 if place.kind == "cross" else start + own.q.shape[2] - own.k.shape[2]
        seen = None if layout.slots is not None else mask  # a beam sees all of its own history
        for change in changes:
            if isinstance(change, TokenHidden):
                self._reach(change, first + own.k.shape[2])
                seen = change.hide(seen, own.k, PLAIN, max(0, first))
                same = layout.slots is None
                mask = seen if same else change.hide(mask, parts.k, layout, max(0, first))
        if not _within_backward():  # a checkpointed pass is run again: the same call
            self._note(place, own, seen, relation)
        out = attend(parts, mask)
        for change in changes:
            if not isinstance(change, TokenHidden):
                self._reach(change, start + own.q.shape[2])
                out = change.applied(out, layout.query_numbers(parts.q.shape[2]) + start)
        if out.requires_grad:
            out.register_hook(partial(place.keep_gradient, turn=place.turn))
        return out

    def begin(self, *_: Any) -> None:
        """The model begins a forward pass."""
        self._turn = dict.fromkeys(self.places, 0)

    def end(self) -> None:
        """Nobody looks any more: what was only kept to know a mask or a bias again goes."""
        self._readings.clear()

    def _reach(self, change: Change, n: int) -> None:
        self._reached[id(change)] = max(n, self._reached.get(id(change), 0))

    def unreached(self) -> str | None:
        """The sentence for a change of positions that no call reached."""
        every = [change for changes in self.changes.values() for change in changes]
        told = (unreached(change, self._reached.get(id(change), 0)) for change in every)
        return next(filter(None, told), None)

    def _next(self, module: nn.Module) -> Place:
        """A module's place; one that is several layers takes its places in turn."""
        places = self.places[module]
        if len(places) == 1:
            return places[0]
        self._turn[module] += 1
        return places[(self._turn[module] - 1) % len(places)]

    def before(self, place: Place) -> Place | None:
        """The self-attention of the layer, whose calls a cross-attention's are like."""
        if place.kind == "self":
            return place
        return self._own[place.name]

    def _note(self, place: Place, own: Parts, mask: Mask | None, relation: Relation) -> None:
        bias = None if own.bias is None else self._readings.of(own.bias, bias_of)
        alone = self.before(place) is None
        known = place.kind == "self" or alone
        ids = self.tokens.of(own.q.shape[0], own.q.shape[2]) if known else None
        place.note(own, mask, relation, bias=bias, ids=ids)

    def _layout(self, module: nn.Module, place: Place, parts: Parts, mask: Mask | None) -> Layout:
        if not isinstance(module, MultiHeadAttention):
            return PLAIN
        if place.kind == "self":
            self._layouts[place.name] = layout_of(parts, mask)
            return self._layouts[place.name]
        before = self.before(place)
        width = PLAIN.width if before is None else self._layouts.get(before.name, PLAIN).width
        return Layout(width, 1)

    def _relation(self, place: Place, own: Parts) -> Relation:
        """A memory's keys tell nothing: its reader goes on as the self-attention before it did."""
        if place.kind == "self":
            reader = self._reader[place.name]
            memory = reader.calls[-1].k if reader is not None and reader.calls else None
            return place.compare(own.k, own.q.shape[2], memory)
        before = self.before(place)
        if before is None:
            rows_before = place.calls[-1].q.shape[0] if place.calls else 0
            step = getattr(own, "step", None)
            return told(step, place.length, own.q.shape[0], rows_before)
        return before.last


def _layer(name: str) -> str:
    return name.removesuffix("cross_attn").removesuffix("self_attn")


def _within_backward() -> bool:
    """Does autograd run this, to compute again what gradient checkpointing did not keep?"""
    return torch._C._current_graph_task_id() != -1
