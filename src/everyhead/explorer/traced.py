"""A scene from a recorded pass: one group for every half of the model and kind of attention.

    with record(model) as trace:
        model(ids)
    scene = traced(trace, {"encoder": ["the", "bank"]}, title="bank")

A head's matrix is computed from its q and k when it is asked for; nothing n × n is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyhead.explorer.drawings import drawing_of, softmax_alone
from everyhead.explorer.scene import Bools, Floats, Group, HeadParts, Kind, Rows, Scene
from everyhead.inspection.places import Place
from everyhead.inspection.trace import Trace


class PlaceLayer:
    """One recorded attention as a layer of a scene; `row` of the batch."""

    def __init__(self, place: Place, row: int = 0) -> None:
        self.place, self.row = place, row
        _, self.n_heads, *shape = place.shape
        self.name = place.name
        self.shape: tuple[int, int] = (shape[0], shape[1])
        self._parts = place.parts
        self.drawing = drawing_of(place, row)

    def head(self, head: int, rows: Rows = None) -> Floats:
        """Weights (T, S), or of these rows alone, computed now."""
        chosen = None if rows is None else torch.from_numpy(rows)
        with torch.inference_mode():
            return _array(self.place.weights(heads=[head], rows=chosen)[self.row, 0])

    def visible(self, head: int, rows: Rows = None) -> Bools:
        """(T, S), True = may look, or of these rows alone."""
        n = self.shape[0] if rows is None else len(rows)
        if self.place.mask is None:
            return np.ones((n, self.shape[1]), dtype=bool)
        chosen = None if rows is None else torch.from_numpy(rows)
        seen = self.place.mask.rows(*self.shape, self._parts.q.device, chosen)
        one = seen[min(self.row, len(seen) - 1)]  # (H or 1, t or 1, S)
        return one[min(head, len(one) - 1)].expand(n, -1).cpu().numpy()

    def parts(self, head: int) -> HeadParts | None:
        """None where more than q, k, a scale and a bias makes the scores."""
        parts, bias = self._parts, None
        if not softmax_alone(self.place) or parts.cap is not None or parts.sinks is not None:
            return None
        kv = head // (self.n_heads // parts.k.shape[1])
        if parts.bias is not None:
            whole = parts.bias.expand(parts.q.shape[0], self.n_heads, *self.shape)
            bias = _array(whole[self.row, head])
        q, k, v = parts.q[self.row, head], parts.k[self.row, kv], parts.v[self.row, kv]
        return HeadParts(_array(q), _array(k), _array(v), float(parts.scale), bias)


def _array(x: Tensor) -> Floats:
    return x.detach().float().cpu().numpy()


def traced(
    trace: Trace,
    tokens: Mapping[str, Sequence[str]],
    *,
    title: str,
    special: Mapping[str, Sequence[bool]] | None = None,
    segments: Mapping[str, Sequence[int]] | None = None,
    **more: Any,
) -> Scene:
    """The scene of a recorded pass of one input.

    Args:
        tokens: the texts of each half (`encoder`, `decoder`, `text`, `vision` …): the rows that the
            pass had, one by one; a half that is missing is numbered.
        special, segments: one mark for each of these tokens.
        more: further fields of the scene.

    Raises:
        LookupError: nothing was recorded at a place.
        UserError: tokens and rows do not fit.
    """
    groups = [_group(places, tokens, special or {}, segments or {}) for places in _families(trace)]
    return Scene(title, groups=groups, **{"texts": [title], **more})


def _families(trace: Trace) -> list[list[Place]]:
    """Places of one half, kind and shape, in the model's order."""
    found: dict[tuple[Any, ...], list[Place]] = {}
    for name in trace.places():
        place = trace[name]
        key = (half_of(place), place.kind, place.shape[2:])
        found.setdefault(key, []).append(place)
    return list(found.values())


def half_of(place: Place) -> str:
    """`decoder.2.cross_attn` → `decoder`."""
    return place.name.split(".")[0]


def _group(
    places: list[Place],
    tokens: Mapping[str, Sequence[str]],
    special: Mapping[str, Sequence[bool]],
    segments: Mapping[str, Sequence[int]],
) -> Group:
    half, kind = half_of(places[0]), places[0].kind
    n_rows, n_columns = places[0].shape[2:]
    memory = "encoder" if kind == "cross" else half
    sides = ((half, n_rows), (memory, n_columns))
    rows, columns = ([*tokens.get(name, [str(i) for i in range(n)])] for name, n in sides)
    marks, parts = (
        ([*of[half]], [*of[memory]]) if half in of and memory in of else None
        for of in (special, segments)
    )
    name = "cross" if (kind, half) == ("cross", "decoder") else half
    layers = [PlaceLayer(place) for place in places]
    known: Kind = "cross" if kind == "cross" else "self"
    return Group(name, known, rows, columns, layers, special=marks, segments=parts)  # type: ignore[arg-type]
