"""What a recorded model generates is followed, so that beams show the rows that wrote it.

`model.generate` is wrapped once while anybody records the model, in whichever thread; what it
returns is told to those who look from the thread that called it.
"""

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from everyhead.layers import probe

Follow = Callable[[Any, int], None]

_lock = threading.Lock()


class Followed:
    """Stands in the place of a model's `generate`."""

    def __init__(self, model: nn.Module, generate: Callable[..., Any]) -> None:
        self.model, self.generate = model, generate
        self.followers: list[tuple[probe.Observer, Follow]] = []
        functools.update_wrapper(self, generate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.generate(*args, **kwargs)
        config = self._given("generation_config", args, kwargs)
        config = config or getattr(self.model, "generation_config", None)
        each = kwargs.get("num_return_sequences") or getattr(config, "num_return_sequences", None)
        for observer, follow in list(self.followers):
            if probe.sees(observer):
                with contextlib.suppress(LookupError):  # then asking for the rows says so
                    follow(getattr(result, "sequences", result), each or 1)
        return result

    def _given(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An argument that may stand at its place or under its name; None: it was not given."""
        bound = inspect.signature(self.generate).bind_partial(*args, **kwargs)
        return bound.arguments.get(name, kwargs.get(name))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Callable[..., Any]]]:
        """What is copied or saved of the model has its own `generate`: nobody follows it."""
        return _same, (self.generate,)


def _same(generate: Callable[..., Any]) -> Callable[..., Any]:
    return generate


@contextmanager
def while_generating(model: nn.Module, observer: probe.Observer, follow: Follow) -> Iterator[None]:
    """What `model.generate` returns, where the observer looks, is given to `follow`."""
    if getattr(model, "generate", None) is None:
        yield
        return
    mine = (observer, follow)
    with _lock:
        wrapper = vars(model).get("generate")
        if not isinstance(wrapper, Followed):
            own = wrapper  # somebody set it on this very model, or it is its class's
            wrapper = Followed(model, model.generate)  # type: ignore[arg-type]
            wrapper.__dict__["own"] = own
            vars(model)["generate"] = wrapper
        wrapper.followers.append(mine)
    try:
        yield
    finally:
        with _lock:
            wrapper.followers.remove(mine)
            if not wrapper.followers:
                del vars(model)["generate"]
                if wrapper.__dict__["own"] is not None:
                    vars(model)["generate"] = wrapper.__dict__["own"]
