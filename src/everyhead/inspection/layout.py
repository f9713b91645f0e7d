"""Where each panel of an attention picture stands.

Everything is laid out in inches from the top left corner: the labels are measured first, the cells
get what is left, and the figure becomes as large as its content. Cells stay square.
"""

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everyhead.inspection.fonts import choose_fonts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDEST, TALLEST = 16.0, 15.0  # inches that the cells of all panels together should take
LARGEST = 20.0  # inches that they may take, or a picture of long texts has more pixels than memory
SMALLEST_CELL, LARGEST_CELL, LONE_CELL = 0.035, 0.2, 0.42
NARROWEST_PANEL = 0.62  # room for "head 11"
EDGE, GAP, CAPTION, HEADING, NAME, BAR = 0.18, 0.16, 0.22, 0.3, 0.24, 0.75
NAME_SIZE = 8.0  # points
LARGEST_NUMBERED = 400  # cells


class Panel(NamedTuple):
    """One head: its caption and its weights (T, S)."""

    caption: str
    weights: NDArray[np.float64]


class Row(NamedTuple):
    """Panels side by side under one heading."""

    heading: str
    panels: list[Panel]


class Axis(NamedTuple):
    """Labels of the queries or of the keys, and the axis' name."""

    texts: list[str]
    name: str


class Style(NamedTuple):
    """What all panels of one figure share. Sizes in inches, font sizes in points."""

    cell: float
    size: float
    slanted: bool
    vmax: float
    numbers: bool

    @property
    def step(self) -> int:
        """Every how many-th label has room."""
        return max(1, math.ceil(self.size * 1.12 / 72 / self.cell))


class Plan(NamedTuple):
    """Inches: the figure, the left edge of the first panel, a panel's slot, each row's top."""

    width: float
    height: float
    left: float
    slot: float
    tops: list[float]


def choose_style(rows: list[Row], keys: Axis, vmax: float) -> Style:
    """Cells as large as the limits allow; one panel alone may have larger ones, with numbers."""
    n_queries, n_keys = rows[0].panels[0].weights.shape
    columns = max(len(row.panels) for row in rows)
    lone = len(rows) == columns == 1
    cell = min(WIDEST / (columns * n_keys), TALLEST / (len(rows) * n_queries))
    cell = min(cell, LONE_CELL if lone else LARGEST_CELL)
    room = min(LARGEST / (columns * n_keys), LARGEST / (len(rows) * n_queries))
    cell = max(cell, min(SMALLEST_CELL, room), NARROWEST_PANEL / max(n_queries, n_keys))
    numbers = lone and cell > 0.3 and n_queries * n_keys <= LARGEST_NUMBERED
    size = 9.0 if lone else 8.0 if cell > 0.15 else 6.5
    slanted = any(len(text) > 1 for text in keys.texts)
    return Style(cell, size, slanted, vmax, numbers)


def make_plan(
    figure: "Figure", rows: list[Row], queries: Axis, keys: Axis, title: str, style: Style
) -> Plan:
    """Measures all labels and places the rows from the top down."""
    n_queries, n_keys = rows[0].panels[0].weights.shape
    columns = max(len(row.panels) for row in rows)
    wide = max(extent(figure, text, style.size)[0] for text in queries.texts)
    angle = key_angle(style)
    boxes = [extent(figure, text, style.size, angle) for text in keys.texts]
    tall = max(height for _, height in boxes)
    left = EDGE + NAME + wide + 0.08
    if angle == 45:  # slanted labels reach to the left of their column
        left = max(left, *(EDGE + width - s * style.cell for s, (width, _) in enumerate(boxes)))
    slot = max(n_keys * style.cell, NARROWEST_PANEL) + GAP
    heading = HEADING if any(row.heading for row in rows) else 0.0
    top = EDGE + (0.36 if title else 0.0)
    tops = []
    for _ in rows:
        tops.append(top + heading + CAPTION)
        top = tops[-1] + n_queries * style.cell + GAP
    width = left + columns * slot + BAR
    for text, size in ((title, 13), *((row.heading, 10) for row in rows)):
        width = max(width, left + extent(figure, text, size)[0] * 1.1 + EDGE)
    name = extent(figure, queries.name, NAME_SIZE)[0]
    height = max(top - GAP + 0.08 + tall + NAME, tops[0] + max(1.0, name)) + EDGE
    return Plan(width, height, left, slot, tops)


def key_angle(style: Style) -> float:
    """Degrees: characters stand upright, words slant, in narrow columns they are vertical."""
    if not style.slanted:
        return 0.0
    return 45.0 if style.cell * style.step * 0.7 > style.size / 72 else 90.0


def extent(figure: "Figure", text: str, size: float, angle: float = 0.0) -> tuple[float, float]:
    """Width and height of drawn text in inches."""
    artist = figure.text(0, 0, text, size=size, rotation=angle, **plain(text))
    box = artist.get_window_extent(figure.canvas.get_renderer())  # type: ignore[attr-defined]
    artist.remove()
    return box.width / figure.dpi, box.height / figure.dpi


def plain(*texts: str) -> dict[str, Any]:
    """Text as it stands: a `$` is no formula."""
    return {"family": choose_fonts(texts).families, "parse_math": False}


def fractions(
    plan: Plan, left: float, top: float, width: float, height: float
) -> tuple[float, float, float, float]:
    """Inches from the top left → fractions from the bottom left."""
    return (
        left / plan.width,
        1 - (top + height) / plan.height,
        width / plan.width,
        height / plan.height,
    )
