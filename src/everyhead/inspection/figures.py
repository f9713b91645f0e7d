"""Pictures of attention: weights[h, t, s], how much query t of head h takes from key s.

Queries run down the y axis, keys along the x axis, one small panel a head. All panels share one
colour scale, so that colours compare across heads and layers. Masked places (NaN) are hatched: they
are not zeros. Figures are plain `matplotlib.figure.Figure` objects; pyplot's state is not touched.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everyhead.errors import UserError
from everyhead.files import atomic_write_bytes
from everyhead.inspection.layout import Axis, Panel, Row
from everyhead.inspection.panels import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention_figure(
    weights: ArrayLike,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str = "",
    heads: Sequence[int] | None = None,
    query_name: str = "queries",
    key_name: str = "keys",
    vmax: float = 1.0,
) -> "Figure":
    """Every head of one attention; a single small one with its numbers.

    Args:
        weights: (H, T, S), each row a share of 1; NaN or a numpy mask where nothing may be seen.
        queries, keys: T and S text spans.
        heads: the numbers of the heads given, when they are not 0 to H − 1.
        vmax: the weight that gets the darkest colour; the colour bar states it.

    Raises: ValueError when the shapes do not agree.
    """
    panels = _panels(_matrices(weights, queries, keys, "weights"), heads)
    columns = _columns(len(panels))
    rows = [Row("", panels[i : i + columns]) for i in range(0, len(panels), columns)]
    return draw(rows, Axis([*queries], query_name), Axis([*keys], key_name), title=title, vmax=vmax)


def attention_grid(
    layers: Sequence[tuple[str, ArrayLike]],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str = "",
    heads: Sequence[int] | None = None,
    query_name: str = "queries",
    key_name: str = "keys",
    vmax: float = 1.0,
) -> "Figure":
    """Every head of every layer: a row for each `(name, weights (H, T, S))`, a column for a head.

    Raises: ValueError when there is no layer or the shapes do not agree.
    """
    if not layers:
        raise ValueError("There is no layer to draw: `layers` is empty.")
    rows = []
    for name, weights in layers:
        matrices = _matrices(weights, queries, keys, name)
        rows.append(Row(name, _panels(matrices, heads)))
    return draw(rows, Axis([*queries], query_name), Axis([*keys], key_name), title=title, vmax=vmax)


def save_figure(figure: "Figure", path: str | Path, *, dpi: int = 160) -> Path:
    """Writes PNG, SVG or PDF, by the suffix; an older file stays whole until the new one is.

    Raises: UserError for another suffix or a folder that cannot be written.
    """
    path = Path(path)
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"{path} should end in .png, .svg or .pdf; it ends in '{path.suffix}'.")
    stamp = {"svg": "Date", "pdf": "CreationDate"}.get(kind)
    content = io.BytesIO()
    # Without a date the same picture is the same file.
    figure.savefig(content, format=kind, dpi=dpi, metadata={stamp: None} if stamp else None)
    atomic_write_bytes(path, content.getvalue())
    return path


def _panels(matrices: NDArray[np.float64], heads: Sequence[int] | None) -> list[Panel]:
    numbers = range(len(matrices)) if heads is None else heads
    if len(numbers) != len(matrices):
        raise ValueError(f"heads names {len(numbers)} heads, but weights has {len(matrices)}.")
    return [Panel(f"head {h}", m) for h, m in zip(numbers, matrices, strict=True)]


def _columns(n: int) -> int:
    """Up to four stand side by side; more in rows of about four, with as few gaps as can be."""
    return n if n <= 4 else min(range(3, 7), key=lambda c: (-n % c, abs(c - 4)))


def _matrices(
    weights: ArrayLike, queries: Sequence[str], keys: Sequence[str], name: str
) -> NDArray[np.float64]:
    """(H, T, S) with NaN at masked places."""
    array = np.ma.asarray(weights, dtype=np.float64).filled(np.nan)
    wanted = (len(queries), len(keys))
    if array.ndim != 3 or 0 in array.shape or array.shape[1:] != wanted:
        raise ValueError(
            f"{name} has shape {array.shape}; (heads, queries, keys) with {wanted[0]} queries "
            f"and {wanted[1]} keys is needed, and none of them may be 0."
        )
    return array
