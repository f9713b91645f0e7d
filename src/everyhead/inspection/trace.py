"""Recording: what every attention used, so that its matrix can be computed when somebody asks.

    with record(model) as trace:                # everyhead's, or a Hugging Face model as it is
        model(source, target)
    trace["decoder.2.cross_attn"].weights(heads=[3], rows=slice(0, 5))     # (B, 1, 5, S)

Kept are copies of the projected q, k, v, the mask as a rule and the states between the layers, O(n)
in the length; never a matrix. The output of the model still comes from its fast path.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from html import escape

from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.inspection import names
from everyhead.inspection.changes import Change
from everyhead.inspection.following import while_generating
from everyhead.inspection.hugging_face import bridge
from everyhead.inspection.lens import Lens
from everyhead.inspection.memory import keep_freed
from everyhead.inspection.places import Place
from everyhead.inspection.recorder import Recorder
from everyhead.inspection.selection import Rows, rows_of
from everyhead.inspection.states import Here, Streams
from everyhead.inspection.tokens import Tokens, followed
from everyhead.layers import attention, probe
from everyhead.layers.multi_head import MultiHeadAttention


class Trace:
    """The places of a model, by name or by parameter path."""

    def __init__(self, model: nn.Module, changes: Sequence[Change] = ()) -> None:
        self.model = model
        self._modules = names.walk(model)  # once: it costs as much as a layer
        self._spots = spots = names.spots(model, self._modules)
        if not spots:
            raise UserError(names.nothing_to_see(model, self._hidden))
        self._places = {spot.name: _place(spot) for spot in spots}
        self._tokens = Tokens(self._modules.values())
        by_module: dict[nn.Module, list[Place]] = {spot.module: [] for spot in spots}
        for spot in spots:
            by_module[spot.module].append(self._places[spot.name])
        self._recorder = Recorder(by_module, self._tokens, changes=self._sorted(changes))
        self._streams = Streams(self._modules, spots, places=self._places)
        self._lens = Lens(model, spots)

    @cached_property
    def _hidden(self) -> dict[str, nn.Module]:
        return names.hidden(self._modules, self._spots)

    @cached_property
    def _paths(self) -> dict[str, str]:
        return {path: spot.name for spot in self._spots for path in names.paths(self.model, spot)}

    def places(self) -> list[str]:
        """Every attention of the model that can be seen, in its order."""
        return list(self._places)

    def layers(self) -> list[str]:
        """What `residual` knows: `encoder.embed`, `encoder.0`, …"""
        return list(self._streams.of)

    def __getitem__(self, name: str) -> Place:
        """The place of this name, or of this module path.

        Raises:
            LookupError: there is none, or its q and k are hidden.
        """
        place = self._places.get(self._paths.get(name, name))
        if place is None and name in self._hidden:
            raise LookupError(names.why_hidden(name, self._hidden[name]))
        if place is None:
            raise LookupError(f"no place {name!r}; there are {', '.join(self._places)}")
        return place

    def stack(self, half: str) -> list[Place]:
        """The places of `encoder`, `decoder`, `text`, …, in order; `decoder.cross`: of one kind.

        Raises:
            LookupError: the model has no such half.
        """
        wanted, _, kind = half.partition(".")
        of = [place for place in self._places.values() if place.half == wanted]
        found = [place for place in of if kind in ("", place.kind)]
        if not found:
            halves = {f"{place.half}.{place.kind}" for place in self._places.values()}
            raise LookupError(f"no attention in {half!r}; there are {', '.join(sorted(halves))}")
        return found

    def residual(self, layer: str) -> Tensor:
        """(B, T, C) states after a layer, `encoder.3`; `encoder.embed`: what enters the first.

        Raises:
            LookupError: no such layer, or nothing to show there (`Place.parts`).
        """
        name = names.plain(layer)
        if name not in self._streams.of:
            raise LookupError(f"no layer {layer!r}; there are {', '.join(self._streams.of)}")
        return self._streams.of[name].states()

    def logits(self, layer: str, rows: Rows = None) -> Tensor:
        """(B, t, V): the states after a layer, read by the model's last norm and its head.

        The logit lens (nostalgebraist 2020); the last layer's are the model's own logits.

        Raises:
            ValueError: there is no such row.
            LookupError: as `residual`, or the model has no head that can be told.
        """
        states = self.residual(layer)
        at = rows_of(rows, states.shape[1], layer)
        states = states if at is None else states[:, at]
        last = self._streams.newest(self._lens.half)
        return self._lens.logits(names.plain(layer), states, last)

    def follow(self, ids: Tensor | Sequence[Sequence[int]], each: int = 1) -> None:
        """Show the rows that wrote these sequences, (B, L) or B lists: beams were moved.

        They stand in the order of the batch, `each` of them a sentence, as `generate` returns them;
        for a model that is recorded while it generates this is done when it returns.

        Raises:
            LookupError: a sequence was not written while the model was recorded.
        """
        sequences = ids.tolist() if isinstance(ids, Tensor) else [list(one) for one in ids]
        wrong: LookupError | None = LookupError("no tokens were seen, so nothing can be followed")
        for half in dict.fromkeys(place.half for place in self._places.values()):
            try:
                found = self._follow(half, sequences, each)
            except LookupError as error:  # an encoder wrote nothing
                wrong = error if wrong is not None else None
            else:
                wrong = None if found else wrong
        if wrong is not None:
            raise wrong

    def _follow(self, half: str, sequences: Sequence[Sequence[int]], each: int) -> bool:
        places = self.stack(half)
        # The deepest keys tell rows apart that the first layer's do not: they know the memory.
        known = [place for place in places if place.steps_are_known]
        if not known:
            return False
        rows = followed(known[-1], sequences, each)
        for place in places:
            if len(place.calls) == len(known[-1].calls):
                place.choose(rows)
        return True

    def hooks(self) -> list[Callable[[], None]]:
        """Start to see states and tokens; what comes back ends it."""
        here = partial(Here, self._recorder)
        begin = here(self._recorder.begin, module=self.model)
        begun = self.model.register_forward_pre_hook(begin).remove
        parts = (self._streams, self._tokens, self._lens)
        ends = [end for part in parts for end in part.hooks(here)]
        return [begun, self._recorder.end, *ends]

    @property
    def asks_interface(self) -> bool:
        """Does any module ask transformers' table for its attention?"""
        return not all(isinstance(spot.module, MultiHeadAttention) for spot in self._spots)

    @property
    def observer(self) -> probe.Observer:
        """What stands around every attention."""
        return self._recorder

    @property
    def unreached(self) -> str | None:
        """The sentence for a change of positions that no call reached; None: there is none."""
        return self._recorder.unreached()

    def _sorted(self, changes: Sequence[Change]) -> dict[str, list[Change]]:
        """By place; one without a place is for all of them."""
        found: dict[str, list[Change]] = {name: [] for name in self._places}
        for change in changes:
            where = self._places if change.place is None else [self[change.place].name]
            for name in where:
                found[name].append(change)
        return found

    def __repr__(self) -> str:
        return f"Trace({len(self._places)} places)"

    def _repr_html_(self) -> str:
        """What was recorded where, as a small table; every name as text."""
        rows = "".join(
            f"<tr><td>{place._repr_html_()}</td></tr>" for place in self._places.values()
        )
        return f"<table><caption>{escape(repr(self))}</caption>{rows}</table>"


def _place(spot: names.Spot) -> Place:
    """A place whose matrix is its module's own, where the module has one."""
    own = spot.module if isinstance(spot.module, MultiHeadAttention) else attention
    return Place(spot.name, spot.path, kind=spot.kind, method=own)


@contextmanager
def record(model: nn.Module, changes: Sequence[Change] = ()) -> Iterator[Trace]:
    """Record every attention of `model` while the context is open, with these changes made.

    Raises:
        UserError: the model has no attention that can be seen.
        LookupError: a change names no place of the model; when the block ends: a change names
            positions that no call reached.
    """
    keep_freed()
    trace = Trace(model, changes)
    with ExitStack() as stack:
        for end in trace.hooks():
            stack.callback(end)
        if trace.asks_interface:
            bridge.start()
            stack.callback(bridge.stop)
            stack.enter_context(while_generating(model, trace.observer, trace.follow))
        probe.attach(trace.observer)
        stack.callback(probe.detach, trace.observer)
        yield trace
    wrong = trace.unreached
    if wrong is not None:
        raise LookupError(wrong)
