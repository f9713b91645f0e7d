"""Pictures of numbers per head: layers down, heads across, one small map for each number.

Shares run from 0 to 1 on one scale, so that they compare; entropy, distance and effects have a
scale of their own, which the caption states. Effects may be negative: then red is where the model
does better without the head. A number that does not exist (None) is hatched, it is not zero.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everyhead.inspection.fonts import choose_fonts, drawable
from everyhead.inspection.layout import EDGE, Axis, Panel, Plan, Row, extent, fractions, plain
from everyhead.inspection.panels import (
    COLOURS,
    INK,
    MASKED_FACE,
    MASKED_HATCH,
    PAPER,
    QUIET,
    blank,
    colour_map,
    draw,
    write,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CAPTIONS = {
    "entropy": "entropy (nats)",
    "distance": "mean distance (tokens)",
    "self": "share on itself",
    "previous": "share on the previous token",
    "next": "share on the next token",
    "first": "share on the first token",
    "special": "share on special tokens",
    "induction": "induction (after the same word)",
    "duplicate": "share on the same word, earlier",
    "effect": "loss without the head − loss",
}
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
UNSHARED = ("entropy", "distance", "effect")
WIDEST, WIDE_CELL, NARROW_CELL, NUMBERED_CELL = 15.0, 0.92, 0.36, 0.3
CAPTION, GAP, LABELS, COLUMNS = 0.26, 0.42, 0.44, 3
RED = ("#fafcfb", "#f6d9c9", "#eda98a", "#d9735a", "#b13f3f", "#7a1f36", "#3d0d24")

Table = Sequence[Sequence[float | None]]


class Size(NamedTuple):
    """Of the maps of one figure: cells in inches, how many maps stand side by side."""

    width: float
    height: float
    columns: int
    n_layers: int
    n_heads: int


def statistics_figure(
    numbers: Mapping[str, Table],
    *,
    title: str = "",
    names: Sequence[Sequence[str | None]] | None = None,
) -> "Figure":
    """A map for each number, or one large map with each head's name in its cell.

    Args:
        numbers: as `statistics.table` gives them: name → layers × heads, None where there is none;
            any other name is its own caption.
        names: layers × heads, shown where there is one map only.

    Raises: ValueError when there is no number or they are not all of one shape.
    """
    maps = {name: _array(name, table) for name, table in numbers.items()}
    if not maps or len({array.shape for array in maps.values()}) > 1:
        raise ValueError("numbers must be one table or more, all of the same layers and heads")
    figure, size = blank(), _size(maps, names)
    title = drawable(title, choose_fonts([title]))
    plan = _plan(figure, maps, size, title)
    figure.set_size_inches(plan.width, plan.height)
    for i, (name, array) in enumerate(maps.items()):
        row, column = divmod(i, size.columns)
        axes = _map(figure, plan, name, array, place=(row, column), size=size)
        if names is not None and len(maps) == 1:
            _names(axes, array, names)
    write(figure, plan, plan.left, EDGE + 0.14, title, size=13)
    return figure


def rollout_figure(
    matrix: ArrayLike,
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    title: str = "rollout",
    vmax: float | None = None,
) -> "Figure":
    """What `rollout` found: rows are places after the last layer, columns the tokens that went in.

    Args:
        matrix: (t, T), the rows of `queries`.
        vmax: the share that gets the darkest colour; by default the largest there is.

    Raises: ValueError when the shapes do not agree.
    """
    array = np.asarray(matrix, dtype=np.float64)
    if array.shape != (len(queries), len(keys)) or 0 in array.shape:
        raise ValueError(
            f"the rollout has shape {array.shape}; there are {len(queries)} queries and "
            f"{len(keys)} keys"
        )
    highest = math.ceil(array.max() * 100) / 100 if vmax is None else vmax
    rows = [Row("", [Panel("rollout", array)])]
    axes = Axis([*queries], "after the last layer"), Axis([*keys], "what went in")
    return draw(rows, *axes, title=title, vmax=highest or 1.0)


def _array(name: str, table: Table) -> NDArray[np.float64]:
    """(L, H), NaN for None."""
    rows = [[math.nan if x is None else float(x) for x in row] for row in table]
    if not rows or not rows[0] or len({len(row) for row in rows}) > 1:
        raise ValueError(f"{name} must have a value for each head of each layer")
    return np.array(rows)


def _size(maps: Mapping[str, NDArray[np.float64]], names: Any) -> Size:
    n_layers, n_heads = next(iter(maps.values())).shape
    columns = min(COLUMNS, len(maps))
    largest = WIDE_CELL if len(maps) == 1 and names is not None else NARROW_CELL
    cell = max(0.05, min(largest, WIDEST / (columns * n_heads)))
    return Size(cell, cell * (0.5 if cell > NARROW_CELL else 0.75), columns, n_layers, n_heads)


def _plan(figure: "Figure", maps: Mapping[str, Any], size: Size, title: str) -> Plan:
    left, top = EDGE + LABELS, EDGE + (0.4 if title else 0.0)
    widest = max(extent(figure, _caption(name, array)[0], 8)[0] for name, array in maps.items())
    slot = max(size.width * size.n_heads, widest) + GAP
    height = CAPTION + size.height * size.n_layers + LABELS
    n_rows = -(-len(maps) // size.columns)
    tops = [top + CAPTION + row * height for row in range(n_rows)]
    width = max(left + size.columns * slot, left + extent(figure, title, 13)[0] * 1.1 + EDGE)
    return Plan(width, top + n_rows * height + EDGE * 0.5, left, slot, tops)


def _caption(name: str, array: NDArray[np.float64]) -> tuple[str, float, float]:
    """The caption with its scale, and the scale's ends."""
    low, high = 0.0, 1.0
    known = array[np.isfinite(array)]
    if name in UNSHARED or name not in CAPTIONS:
        high = float(np.abs(known).max()) if known.size else 1.0
        low = -high if known.size and known.min() < 0 else 0.0
    caption, power = CAPTIONS.get(name, name), _power(high)
    if (low, high) != (0.0, 1.0):
        caption += f"   {_short(low * 10.0**power)} … {_short(high * 10.0**power)}"
    caption += "   × 10⁻" + str(power).translate(RAISED) if power else ""
    return caption, low, high or 1.0


def _power(high: float) -> int:
    """Small numbers are shown as so many times 10^−power, the largest between 1 and 10."""
    return 0 if high >= 0.1 or high == 0 else math.ceil(-math.log10(high))


def _map(
    figure: "Figure",
    plan: Plan,
    name: str,
    array: NDArray[np.float64],
    *,
    place: tuple[int, int],
    size: Size,
) -> "Axes":
    from matplotlib.colors import Normalize

    left, top = plan.left + place[1] * plan.slot, plan.tops[place[0]]
    width, height = size.width * size.n_heads, size.height * size.n_layers
    axes = figure.add_axes(fractions(plan, left, top, width, height))
    axes.set_facecolor(MASKED_FACE)
    axes.patch.set(hatch="//////", edgecolor=MASKED_HATCH, linewidth=0)
    caption, low, high = _caption(name, array)
    array = array * 10.0 ** _power(high)
    low, high = low * 10.0 ** _power(high), high * 10.0 ** _power(high)
    shown, scale = np.ma.masked_invalid(array), Normalize(low, high, clip=True)
    colours = colour_map() if low == 0 else _two_sided()
    axes.imshow(shown, cmap=colours, norm=scale, aspect="auto", interpolation="nearest")
    axes.spines[:].set(color="#d5d9e1", linewidth=0.6)
    _ticks(axes, size)
    if size.width >= NUMBERED_CELL:
        _numbers(axes, array, low, high)
    write(figure, plan, left, top - 0.11, caption, size=8, colour=QUIET)
    return axes


def _ticks(axes: "Axes", size: Size) -> None:
    places = range(0, size.n_heads, max(1, math.ceil(0.2 / size.width)))
    axes.set_xticks(places, [str(i) for i in places])
    places = range(0, size.n_layers, max(1, math.ceil(0.15 / size.height)))
    axes.set_yticks(places, [str(i) for i in places])
    axes.tick_params(length=0, pad=3, labelsize=7.5, labelcolor=INK)
    axes.set_xlabel("head", size=7.5, color=QUIET, labelpad=2)
    axes.set_ylabel("layer", size=7.5, color=QUIET, labelpad=4)


def _numbers(axes: "Axes", array: NDArray[np.float64], low: float, high: float) -> None:
    for (layer, head), value in np.ndenumerate(array):
        if np.isfinite(value):
            dark = abs(value) > 0.42 * max(abs(low), high)
            colour = PAPER if dark else INK
            axes.text(head, layer, _short(value), ha="center", va="center", size=6.5, color=colour)


def _names(axes: "Axes", array: NDArray[np.float64], names: Sequence[Sequence[str | None]]) -> None:
    """Each head's name under its number."""
    if [len(row) for row in names] != [array.shape[1]] * array.shape[0]:
        raise ValueError(f"names must be {array.shape[0]} layers of {array.shape[1]} heads")
    for text in list(axes.texts):
        text.set_y(text.get_position()[1] - 0.2)
        column, row = text.get_position()
        name = names[round(row + 0.2)][round(column)]
        if name:
            name = drawable(name, choose_fonts([name]), limit=16)
            style: dict[str, Any] = {"ha": "center", "va": "center", "color": text.get_color()}
            axes.text(column, row + 0.45, name, size=6, **style, **plain(name))


def _short(value: float) -> str:
    """A number for a cell: .23, 1.4, 12, −.05."""
    size = abs(value)
    text = f"{size:.0f}" if size >= 9.95 else f"{size:.1f}" if size >= 0.995 else f"{size:.2f}"
    text = "0" if text == "0.00" else text.removeprefix("0") if text[:2] == "0." else text
    return f"−{text}" if value < 0 and text != "0" else text


def _two_sided() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    blue = [COLOURS[i] for i in (2, 3, 5, 7, 8, 10)]
    both = LinearSegmentedColormap.from_list("both", [*RED[::-1], *blue])  # paper in the middle
    return both.with_extremes(bad=(0, 0, 0, 0))
