"""The residual stream: what enters a stack and what leaves each of its layers, (B, T, C) copies."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.names import Spot
from everyhead.inspection.places import Place
from everyhead.inspection.relation import Step

Handles = list[Callable[[], None]]


class Stream:
    """The states after one layer, call by call as its attention was called."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.place = name, place
        self._calls: list[Tensor] = []

    def note(self, x: Tensor) -> None:
        """Keep a copy of what a call gave."""
        step = self.place.last.step
        if step in (Step.FRESH, Step.LOST):
            self._calls = []
        if step is not Step.LOST:
            self._calls.append(x.detach().clone())

    @property
    def newest(self) -> Tensor:
        """(R, C) the last row that was computed."""
        return self._calls[-1][:, -1]

    def states(self) -> Tensor:
        """(B, T, C), rows as those of the layer's attention.

        Raises:
            LookupError: the model did not pass here, or nothing says which rows to follow.
        """
        _ = self.place.shape  # raises where nothing can be shown
        pairs = zip(self._calls, self.place.pieces(), strict=False)  # a search may go on
        return torch.cat([piece.pick(x) for x, piece in pairs], 1)


class Streams:
    """The streams of a model, and the hooks that fill them while it is recorded."""

    def __init__(self, model: nn.Module, spots: list[Spot], *, places: dict[str, Place]) -> None:
        self.of: dict[str, Stream] = {}
        self._layers: dict[str, tuple[nn.Module, str]] = {}  # stream → layer, what enters it
        for spot in spots:
            if spot.layer in self.of or not spot.layer_path[-1:].isdigit():
                continue
            place = places[spot.name]
            entry = ""
            if spot.layer_path.rpartition(".")[2] == "0":
                entry = f"{spot.layer.rpartition('.')[0]}.embed"
                self.of[entry] = Stream(entry, place)
            self.of[spot.layer] = Stream(spot.layer, place)
            self._layers[spot.layer] = (model.get_submodule(spot.layer_path), entry)

    def newest(self, half: str) -> Tensor:
        """(R, C) the last row of the last layer of a half."""
        return [stream for name, stream in self.of.items() if name.startswith(f"{half}.")][
            -1
        ].newest

    def hooks(self) -> Handles:
        """Start; what comes back ends it."""
        handles: Handles = []
        for name, (layer, entry) in self._layers.items():
            waiting: list[Tensor] = []
            if entry:
                before = _Before(waiting)
                handles.append(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            after = _After(self.of[name], self.of.get(entry), waiting)
            handles.append(layer.register_forward_hook(after, with_kwargs=True).remove)
        return handles


class _Before:
    """Keeps what enters a layer until its attention has told how the call goes on."""

    def __init__(self, waiting: list[Tensor]) -> None:
        self.waiting = waiting

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        self.waiting[:] = [_rectangle(x, kwargs).detach().clone()] if x is not None else []


class _After:
    def __init__(self, stream: Stream, entry: Stream | None, waiting: list[Tensor]) -> None:
        self.stream, self.entry, self.waiting = stream, entry, waiting

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = output if isinstance(output, Tensor) else output[0]
        self.stream.note(_rectangle(x, kwargs))
        if self.entry is not None and self.waiting:
            self.entry.note(self.waiting.pop())


def _rectangle(x: Tensor, kwargs: Any) -> Tensor:
    """(B, T, C), from packed rows too."""
    packing = kwargs.get("packing")
    return x if packing is None else packing.unpack(x)
