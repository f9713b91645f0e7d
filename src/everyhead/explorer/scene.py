"""What a page shows: groups of attention layers, each a matrix a head, with the texts beside them.

    Scene → groups (encoder, decoder, cross-attention) → layers → heads: weights[t, s], t reads s

A scene is made from plain arrays here (`scene_of`), or from a recorded pass (explorer/traced.py).
Nothing is computed before it is asked for: a layer gives one head's matrix at a time.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everyhead.errors import UserError
from everyhead.explorer.drawings import Drawing

Floats = NDArray[np.float32]
Bools = NDArray[np.bool_]
Kind = Literal["self", "cross"]
Rows = NDArray[np.int64] | None


class HeadParts(NamedTuple):
    """What one head's weights come from: q (T, D), k and v (S, D), scale, bias (T, S) or None."""

    q: Floats
    k: Floats
    v: Floats
    scale: float
    bias: Floats | None = None


class Picture(NamedTuple):
    """What patches were cut from: colours (height, width, 3), 0 … 1, and where they stand.

    grid: rows and columns of patches; first: the token that is the first of them; query: the token
    whose row says most, that is shown first.
    """

    colours: NDArray[np.float64]
    grid: tuple[int, int]
    first: int = 0
    query: int = 0

    def url(self) -> str:
        """The picture as data:image/png."""
        from PIL import Image

        file, bytes_ = io.BytesIO(), np.rint(self.colours * 255).astype(np.uint8)
        Image.fromarray(bytes_).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


class Layer(Protocol):
    """One attention: its place in the model, its heads, computed when asked."""

    name: str
    n_heads: int
    drawing: Drawing | None

    def head(self, head: int, rows: Rows = None) -> Floats:
        """Weights (T, S), or of these rows alone."""
        ...

    def visible(self, head: int, rows: Rows = None) -> Bools:
        """(T, S), True = may look, or of these rows alone."""
        ...

    def parts(self, head: int) -> HeadParts | None:
        """q, k, v behind the weights, where they are known."""
        ...


class Matrices:
    """A layer of plain numbers (H, T, S); NaN, a numpy mask or `visible` tells what is hidden."""

    drawing: Drawing | None = None

    def __init__(self, name: str, weights: ArrayLike, *, visible: ArrayLike | None = None) -> None:
        if hasattr(weights, "detach"):
            weights = weights.detach().cpu().float().numpy()
        array = np.ma.asarray(weights, dtype=np.float32).filled(np.nan)
        if array.ndim != 3 or 0 in array.shape:
            raise UserError(
                f"{name} has weights of shape {array.shape}; (heads, queries, keys) is needed, "
                "and none of them may be 0."
            )
        seen = ~np.isnan(array)
        if visible is not None:
            seen = seen & np.asarray(visible, dtype=bool)
        self.name, self.n_heads, self.shape = name, array.shape[0], array.shape[1:]
        self._weights, self._seen = np.where(seen, array, 0), seen
        if not np.isfinite(self._weights).all() or self._weights.min() < 0:
            raise UserError(f"{name} has weights that are negative or infinite; a weight is 0 … 1.")

    def head(self, head: int, rows: Rows = None) -> Floats:
        """Weights (T, S), 0 where hidden, or of these rows alone."""
        return self._weights[head] if rows is None else self._weights[head][rows]

    def visible(self, head: int, rows: Rows = None) -> Bools:
        """(T, S), True = may look, or of these rows alone."""
        return self._seen[head] if rows is None else self._seen[head][rows]

    def parts(self, head: int) -> HeadParts | None:
        """Unknown: there are only weights."""
        return None


@dataclass(frozen=True)
class Group:
    """Layers that share their tokens: rows are the queries' texts, columns the keys'.

    special, segments: one mark a token, for rows and for columns.
    numbers: a statistic's name → one value a layer and head, None where it does not exist.
    names: a short name of each head, None where there is none.
    """

    name: str
    kind: Kind
    rows: list[str]
    columns: list[str]
    layers: Sequence[Layer]
    special: tuple[list[bool], list[bool]] | None = None
    segments: tuple[list[int], list[int]] | None = None
    numbers: dict[str, list[list[float | None]]] = field(default_factory=dict)
    names: list[list[str | None]] | None = None
    grid: tuple[int, int] | None = None  # of an image's patches
    picture: Picture | None = None


@dataclass(frozen=True)
class Scene:
    """One pass of one model over one input.

    walk: the equations with this model's own numbers (explorer/walk.py); notes: sentences that
    the reader should see above the pictures; output: what the model made of it; states: of each
    half (a group's name) (T, C) after its last layer, to tell what a change does.
    """

    title: str
    texts: list[str]
    groups: list[Group]
    model: str = ""
    notes: list[str] = field(default_factory=list)
    output: dict[str, Any] | None = None
    walk: dict[str, Any] | None = None
    states: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.groups:
            raise UserError("There is nothing to show: the scene has no attention.")
        for group in self.groups:
            _check(group)


def scene_of(
    weights: Sequence[ArrayLike] | ArrayLike,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    title: str = "attention",
    special: Sequence[bool] | None = None,
) -> Scene:
    """A scene of any weights: one (H, T, S) array a layer, T tokens, S keys (default: tokens).

    NaN, or a numpy mask, where a query may not look. Batches of one (1, H, T, S) are taken too.

    Raises:
        UserError: the shapes do not fit the tokens.
    """
    stacked: Any = weights
    if getattr(stacked, "ndim", 0) in (2, 3):
        stacked = [stacked]
    layers = [Matrices(f"layer.{i}", _three(each)) for i, each in enumerate(stacked)]
    rows, columns = [*tokens], [*(tokens if keys is None else keys)]
    marks = None
    if special is not None and keys is None:
        marks = ([*map(bool, special)], [*map(bool, special)])
    kind: Kind = "self" if keys is None else "cross"
    group = Group("attention", kind, rows, columns, layers, special=marks)
    return Scene(title, [" ".join(rows)], [group])


def _three(array: Any) -> Any:
    if getattr(array, "ndim", 0) == 4 and array.shape[0] == 1:
        return array[0]
    return array[None] if getattr(array, "ndim", 0) == 2 else array


def _check(group: Group) -> None:
    wanted = (len(group.rows), len(group.columns))
    if not group.layers:
        raise UserError(f"{group.name} has no layer to show.")
    for layer in group.layers:
        shape = getattr(layer, "shape", wanted)
        if tuple(shape) != wanted:
            raise UserError(
                f"{layer.name} is a matrix of {shape[0]} queries and {shape[1]} keys, but there "
                f"are {wanted[0]} and {wanted[1]} tokens: give one text for each."
            )
