"""Recording: what every attention used, so that its matrix can be computed when somebody asks.

    with record(model) as trace:
        model(source, target, source_mask, target_mask)
    trace["decoder.2.cross_attn"].weights(heads=[3], rows=slice(0, 5))     # (B, 1, 5, S)

Kept are the projected q, k, v and the mask rule, O(n) in the length; never a matrix. The output of
the model still comes from its fast path. Steps of a cached decoding are joined into one matrix
whose row t is the query that stood at target position t.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from everyhead.layers import attention, probe
from everyhead.layers.attention import MultiHeadAttention, Parts
from everyhead.layers.masks import Mask


class Place:
    """One attention of a model, as it was used."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.mask: Mask | None = None
        self._queries: list[Tensor] = []
        self._parts: Parts | None = None
        self._seen: tuple[int, int] | None = None  # storage and length of the keys last seen

    @property
    def parts(self) -> Parts:
        """q (B, H, T, D), k and v (B, K, S, D), scale, bias.

        Raises:
            LookupError: the model did not pass here while it was recorded.
        """
        if self._parts is None:
            raise LookupError(f"nothing was recorded at {self.name}: run the model inside record()")
        return self._parts._replace(q=torch.cat(self._queries, 2))

    def weights(
        self, heads: list[int] | slice | None = None, rows: slice | Tensor | None = None
    ) -> Tensor:
        """The softmax rows asked for, (B, h, t, S), computed now."""
        return attention.weights(self.parts, self.mask, heads, rows)

    def note(self, parts: Parts, mask: Mask | None) -> None:
        """Take finished copies; a step that goes on with the same cache adds a row."""
        key = parts.k.untyped_storage().data_ptr()
        n_keys, n_new = parts.k.shape[2], parts.q.shape[2]
        goes_on = (
            self._parts is not None
            and self._seen is not None
            and self._seen[0] == key
            and self._seen[1] in (n_keys, n_keys - n_new)
            and self._parts.q.shape[:2] == parts.q.shape[:2]
        )
        if not goes_on:
            self._queries = []
        self._queries.append(parts.q.detach().clone())
        copies = {"k": parts.k.detach().clone(), "v": parts.v.detach().clone()}
        self._parts, self.mask = parts._replace(q=self._queries[-1], **copies), mask
        self._seen = (key, n_keys)


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
            self._places[name].note(parts, mask)
        return parts


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
