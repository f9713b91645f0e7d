"""How the panels of an attention picture are drawn: cells, labels, captions, colour bar."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everyhead.errors import UserError
from everyhead.inspection.fonts import choose_fonts, drawable, labels
from everyhead.inspection.layout import (
    CAPTION,
    EDGE,
    NAME_SIZE,
    Axis,
    Panel,
    Plan,
    Row,
    Style,
    choose_style,
    extent,
    fractions,
    key_angle,
    make_plan,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Even steps of perceived lightness from paper white to night blue, after seaborn's `mako`.
COLOURS = (
    *("#fafcfb", "#ddf3e7", "#a9e1bf", "#63ceae", "#3db2ad"),
    *("#3496a9", "#347ba3", "#3a5f9d", "#414386", "#37295a", "#1f1530"),
)
INK, QUIET, PAPER = "#1d2433", "#6b7385", "#ffffff"
FINE = 0.02  # inches, three pixels of a PNG
MASKED_FACE, MASKED_HATCH = "#eceef2", "#c3c8d2"


def draw(rows: list[Row], queries: Axis, keys: Axis, *, title: str, vmax: float) -> "Figure":
    """The finished figure; its size follows from the number of labels, rows and panels."""
    figure = blank()
    headings = [row.heading for row in rows]
    fonts = choose_fonts([*queries.texts, *keys.texts, title, *headings, queries.name, keys.name])
    queries = Axis(labels(queries.texts, fonts), drawable(queries.name, fonts))
    keys = Axis(labels(keys.texts, fonts), drawable(keys.name, fonts))
    rows = [Row(drawable(row.heading, fonts), row.panels) for row in rows]
    title = drawable(title, fonts)
    style = choose_style(rows, keys, vmax)
    plan = make_plan(figure, rows, queries, keys, title, style)
    figure.set_size_inches(plan.width, plan.height)
    for number, row in enumerate(rows):
        for column, panel in enumerate(row.panels):
            axes = _panel(figure, plan, panel, number, column, style)
            if column == 0:
                _query_labels(axes, queries, style)
            # The last panel of each column carries the keys.
            if number + 1 == len(rows) or column >= len(rows[number + 1].panels):
                _key_labels(axes, keys, style)
        write(figure, plan, plan.left, plan.tops[number] - CAPTION - 0.12, row.heading, size=10)
    write(figure, plan, plan.left, EDGE + 0.14, title, size=13)
    _axis_names(figure, plan, rows, queries, keys, style)
    _colour_bar(figure, plan, rows, style)
    return figure


def blank() -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise UserError(
            "Pictures need matplotlib, which is not installed: pip install 'everyhead[train]'."
        ) from error
    figure = Figure(facecolor=PAPER)
    FigureCanvasAgg(figure)  # measures text; savefig picks its own canvas for SVG and PDF
    return figure


def _panel(
    figure: "Figure", plan: Plan, panel: Panel, row: int, column: int, style: Style
) -> "Axes":
    from matplotlib.colors import Normalize

    n_queries, n_keys = panel.weights.shape
    width, height = n_keys * style.cell, n_queries * style.cell
    left, top = plan.left + column * plan.slot, plan.tops[row]
    axes = figure.add_axes(fractions(plan, left, top, width, height))
    axes.set_facecolor(MASKED_FACE)
    axes.patch.set(hatch="//////", edgecolor=MASKED_HATCH, linewidth=0)
    axes.imshow(
        np.ma.masked_invalid(panel.weights),
        cmap=colour_map(),
        norm=Normalize(0, style.vmax, clip=True),
        aspect="auto",
        # Where a pixel stands for several cells it shows their mean, not one picked from them.
        interpolation="auto" if style.cell < FINE else "nearest",
    )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(color="#d5d9e1", linewidth=0.6)
    if style.cell > 0.11:
        _cell_lines(axes, n_queries, n_keys)
    if style.numbers:
        _numbers(axes, panel.weights, style)
    write(figure, plan, left, top - 0.09, panel.caption, size=8, colour=QUIET)
    return axes


def colour_map() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    even = LinearSegmentedColormap.from_list("everyhead", COLOURS)
    return even.with_extremes(bad=(0, 0, 0, 0))


def _cell_lines(axes: "Axes", n_queries: int, n_keys: int) -> None:
    axes.hlines(np.arange(1, n_queries) - 0.5, -0.5, n_keys - 0.5, color=PAPER, linewidth=0.7)
    axes.vlines(np.arange(1, n_keys) - 0.5, -0.5, n_queries - 0.5, color=PAPER, linewidth=0.7)


def _numbers(axes: "Axes", weights: NDArray[np.float64], style: Style) -> None:
    for (t, s), weight in np.ndenumerate(weights):
        if np.isfinite(weight):
            text = f"{weight:.2f}".lstrip("0") if 0.005 <= weight < 1 else f"{weight:.0f}"
            colour = PAPER if weight > 0.42 * style.vmax else INK if weight >= 0.005 else "#b9bfca"
            axes.text(s, t, text, ha="center", va="center", size=7.5, color=colour)


def _query_labels(axes: "Axes", queries: Axis, style: Style) -> None:
    places = range(0, len(queries.texts), style.step)
    texts = [queries.texts[i] for i in places]
    axes.set_yticks(places, texts, size=style.size, **plain(*texts))
    axes.tick_params(axis="y", length=0, pad=4, labelcolor=INK)


def _key_labels(axes: "Axes", keys: Axis, style: Style) -> None:
    places = range(0, len(keys.texts), style.step)
    texts = [keys.texts[i] for i in places]
    angle = key_angle(style)
    axes.set_xticks(
        places,
        texts,
        size=style.size,
        rotation=angle,
        ha="right" if angle == 45 else "center",
        rotation_mode="anchor" if angle == 45 else "default",
        **plain(*texts),
    )
    axes.tick_params(axis="x", length=0, pad=4, labelcolor=INK)


def _axis_names(
    figure: "Figure", plan: Plan, rows: list[Row], queries: Axis, keys: Axis, style: Style
) -> None:
    """One name for all queries, one for all keys, each in the middle of what it names."""
    n_queries, n_keys = rows[0].panels[0].weights.shape
    columns = max(len(row.panels) for row in rows)
    right = plan.left + (columns - 1) * plan.slot + n_keys * style.cell
    top, bottom = plan.tops[0], plan.tops[-1] + n_queries * style.cell
    name = extent(figure, queries.name, NAME_SIZE)[0]
    middle = max((top + bottom) / 2, top + name / 2)
    shared: dict[str, Any] = {"size": NAME_SIZE, "color": QUIET, "ha": "center", "va": "center"}
    x, y = (EDGE + 0.04) / plan.width, 1 - middle / plan.height
    figure.text(x, y, queries.name, rotation=90, **shared, **plain(queries.name))
    x, y = (plan.left + right) / 2 / plan.width, (EDGE + 0.04) / plan.height
    figure.text(x, y, keys.name, **shared, **plain(keys.name))


def write(
    figure: "Figure",
    plan: Plan,
    left: float,
    middle: float,
    text: str,
    *,
    size: float,
    colour: str = INK,
) -> None:
    """One line of text, `middle` inches from the top; headings are bold where the font can be."""
    style = plain(text)
    heading = colour == INK and len(style["family"]) == 1
    x, y = left / plan.width, 1 - middle / plan.height
    weight = "bold" if heading else "normal"
    figure.text(x, y, text, size=size, weight=weight, color=colour, va="center", **style)


def _colour_bar(figure: "Figure", plan: Plan, rows: list[Row], style: Style) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    columns = max(len(row.panels) for row in rows)
    left, top = plan.left + columns * plan.slot + 0.04, plan.tops[0]
    height = max(0.6, min(1.6, len(rows[0].panels[0].weights) * style.cell))
    axes = figure.add_axes(fractions(plan, left, top, 0.1, height))
    scale = ScalarMappable(Normalize(0, style.vmax), colour_map())
    values = (0, style.vmax / 2, style.vmax)
    bar = figure.colorbar(scale, cax=axes, ticks=values)
    bar.ax.set_yticklabels([f"{value:g}" for value in values])
    lowest, _, highest = bar.ax.get_yticklabels()
    lowest.set_verticalalignment("bottom")
    highest.set_verticalalignment("top")
    bar.ax.tick_params(length=0, pad=3, labelsize=7.5, labelcolor=QUIET)
    bar.outline.set_visible(False)
    write(figure, plan, left, top - 0.09, "weight", size=8, colour=QUIET)
