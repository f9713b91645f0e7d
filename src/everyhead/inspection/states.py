"""The residual stream: what enters a stack and what leaves each of its layers, (B, T, C) copies."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from everyhead.inspection.names import Spot
from everyhead.inspection.places import Place
from everyhead.inspection.relation import Step
from everyhead.inspection.steps import copied
from everyhead.layers import probe

Handles = list[Callable[[], None]]
Hook = Callable[..., None]
Wrap = Callable[..., Hook]  # the hook, and module=


class Here:
    """A hook of one module, where the observer looks: every thread that runs it calls its hooks.

    What is copied or saved of the module has `Nothing` in its place.
    """

    looks = True  # for who copies a model: models/prepare.py

    def __init__(self, observer: probe.Observer, hook: Hook, *, module: nn.Module) -> None:
        self.observer, self.hook, self.module = observer, hook, module

    def __call__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """The hook, where the module is the one that was hooked: a shallow copy shares hooks."""
        if module is self.module and probe.sees(self.observer):
            self.hook(module, *args, **kwargs)

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Nothing, ()


class Nothing:
    """What stands for a hook in a copy of a module that was recorded meanwhile."""

    looks = True

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Nobody looks at a copy."""


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
            self._calls.append(copied(x))

    @property
    def newest(self) -> Tensor:
        """(R, C) the last row that was computed."""
        return self._calls[-1][:, -1]

    def states(self) -> Tensor:
        """(B, T, C), rows as those of the layer's attention.

        Raises:
            LookupError: the model did not pass here, nothing says which rows to follow, or what
                the layer gives are no states (B, T, C).
        """
        _ = self.place.shape  # raises where nothing can be shown
        if any(x.dim() != 3 for x in self._calls):
            raise LookupError(
                f"the layer {self.name} gives {tuple(self._calls[-1].shape)}, not the states "
                "(batch, tokens, width) of one stream"
            )
        pairs = zip(self._calls, self.place.pieces(), strict=False)  # a search may go on
        return torch.cat([piece.pick(x) for x, piece in pairs], 1)


class Streams:
    """The streams of a model, and the hooks that fill them while it is recorded."""

    def __init__(
        self, modules: dict[str, nn.Module], spots: list[Spot], *, places: dict[str, Place]
    ) -> None:
        self.of: dict[str, Stream] = {}
        self._layers: dict[nn.Module, Layer] = {}
        for spot in spots:
            if spot.layer in self.of or not spot.layer_path[-1:].isdigit():
                continue
            module = modules[spot.layer_path]
            layer = self._layers.setdefault(module, Layer())
            half, _, number = spot.layer.rpartition(".")
            if number == "0":
                layer.entry = self._stream(f"{half}.embed", places[spot.name])
            layer.streams.append(self._stream(spot.layer, places[spot.name]))

    def _stream(self, name: str, place: Place) -> Stream:
        self.of[name] = Stream(name, place)
        return self.of[name]

    def newest(self, half: str) -> Tensor:
        """(R, C) the last row of the last layer of a half."""
        of = [stream for name, stream in self.of.items() if name.startswith(f"{half}.")]
        return of[-1].newest

    def hooks(self, here: Wrap) -> Handles:
        """Start; what comes back ends it. `here` keeps a hook to the threads that look."""
        handles: Handles = []
        for module, layer in self._layers.items():
            after = module.register_forward_hook(here(layer.leave, module=module), with_kwargs=True)
            handles.append(after.remove)
            if layer.entry is not None:
                enter = here(layer.enter, module=module)
                before = module.register_forward_pre_hook(enter, with_kwargs=True)
                handles.append(before.remove)
        return handles


class Layer:
    """One module and its streams; several where it is several layers."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.entry: Stream | None = None
        self._waiting: Tensor | None = None

    def enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Keep what enters until the attention has told how the call goes on."""
        x = args[0] if args else kwargs.get("hidden_states")
        if x is not None:
            self._waiting = copied(_rectangle(x, kwargs))

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Keep what leaves, as the states of the attention that was called last."""
        x = output if isinstance(output, Tensor) else output[0]
        stream = self.streams[0]
        if len(self.streams) > 1:
            stream = max(self.streams, key=lambda one: one.place.turn)
        stream.note(_rectangle(x, kwargs))
        if self.entry is not None and self._waiting is not None and stream is self.streams[0]:
            self.entry.note(self._waiting)
        self._waiting = None


def _rectangle(x: Tensor, kwargs: Any) -> Tensor:
    """(B, T, C), from packed rows too."""
    packing = kwargs.get("packing")
    return x if packing is None else packing.unpack(x)
