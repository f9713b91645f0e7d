"""The learning curve of a run: its metrics rows as one picture.

Training loss (thin as measured, thick as a moving mean), validation loss, and what chooses the
best weights (BLEU, accuracy …) on a second axis, over steps.
"""

import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from everyhead.errors import UserError
from everyhead.files import atomic_write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMES = {"bleu": "BLEU", "f1": "F1"}
Points = tuple[NDArray[np.float64], NDArray[np.float64]]

INK, QUIET, LINES, PAPER = "#1d2433", "#6b7385", "#e4e7ed", "#ffffff"
TRAINING, VALIDATION, METRIC = "#3db2ad", "#3a5f9d", "#d0782a"


def learning_curve(
    rows: Iterable[Mapping[str, Any]], path: str | Path, *, metric: str = "bleu", dpi: int = 160
) -> Path:
    """Draws the rows of metrics.jsonl into `path` (PNG, SVG or PDF by its suffix).

    Args:
        rows: `{"step": 100, "kind": "train" | "validation", "loss": 3.2, "bleu": 12.1, ...}`; what
            is missing, null or not finite is left out, and a later row of the same step counts.
        metric: of the validation rows, for the second axis; "loss" needs none.

    Raises: UserError when matplotlib is missing or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ModuleNotFoundError as error:
        raise UserError(
            "Pictures need matplotlib, which is not installed: pip install 'everyhead[train]'."
        ) from error
    rows = list(rows)
    figure = Figure(figsize=(8.4, 4.4), facecolor=PAPER)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    axes = figure.add_subplot()
    _losses(axes, points(rows, "train", "loss"), points(rows, "validation", "loss"))
    _frame(axes)
    if metric != "loss":
        _metric(axes, points(rows, "validation", metric), NAMES.get(metric, metric))
    _legend(figure, axes)
    return _save(figure, Path(path), dpi)


def points(rows: Iterable[Mapping[str, Any]], kind: str, name: str) -> Points:
    """Steps and finite values of one metric, ascending, one a step."""
    found: dict[float, float] = {}
    for row in rows:
        value = row.get(name)
        if row.get("kind") == kind and isinstance(value, int | float) and math.isfinite(value):
            found[float(row["step"])] = float(value)
    steps = sorted(found)
    return np.array(steps), np.array([found[step] for step in steps])


def smooth(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over a bell-shaped window of a twentieth of the points, narrower at the ends."""
    width = len(values) // 20 | 1
    bell = np.hanning(width + 2)[1:-1]
    total = np.convolve(np.ones_like(values), bell, mode="same")
    return np.convolve(values, bell, mode="same") / total


def _losses(axes: "Axes", training: Points, validation: Points) -> None:
    steps, losses = training
    dense = len(steps) >= 20
    if dense:
        axes.plot(steps, losses, color=TRAINING, linewidth=0.8, alpha=0.55)
    if len(steps):
        marker = None if len(steps) > 1 else "o"
        shown = smooth(losses) if dense else losses
        axes.plot(steps, shown, marker=marker, color=TRAINING, linewidth=2, label="training loss")
    if len(validation[0]):
        axes.plot(
            *validation,
            color=VALIDATION,
            linewidth=2,
            marker="o",
            markersize=4,
            label="validation loss",
        )
    everything = np.concatenate([losses, validation[1]])
    if dense and everything.max() > 3 * np.median(everything):
        # The first steps would press everything after them flat.
        axes.set_ylim(top=1.15 * max(np.quantile(everything, 0.97), *validation[1][:1]))


def _frame(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_xlabel("step", color=QUIET)
    axes.set_ylabel("loss (nats per token)", color=QUIET)
    axes.grid(True, color=LINES, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=QUIET, labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if axes.lines:
        axes.set_xlim(0, max(1, 1.02 * axes.dataLim.x1))
    else:
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no steps yet", ha="center", color=QUIET, transform=axes.transAxes)


def _metric(axes: "Axes", measured: Points, name: str) -> None:
    if not len(measured[0]):
        return
    second = axes.twinx()
    second.plot(*measured, color=METRIC, linewidth=2, marker="s", markersize=4, label=name)
    second.set_ylabel(name, color=METRIC)
    second.set_ylim(0, 1.15 * max(measured[1].max(), 0.01))
    second.spines[:].set_visible(False)
    second.tick_params(length=0, labelcolor=METRIC, labelsize=9)
    # The two axes have different steps; only the first one's are drawn as lines.
    second.grid(False)


def _legend(figure: "Figure", axes: "Axes") -> None:
    lines = [line for each in figure.axes for line in each.get_lines()]
    named = [line for line in lines if not str(line.get_label()).startswith("_")]
    if named:
        axes.legend(
            handles=named,
            loc="lower left",
            bbox_to_anchor=(-0.01, 1.0),
            ncols=len(named),
            frameon=False,
            fontsize=9,
            labelcolor=INK,
            borderaxespad=0.2,
        )


def _save(figure: "Figure", path: Path, dpi: int) -> Path:
    """Writes a whole file or none."""
    kind = path.suffix.lower().lstrip(".")
    if kind not in ("png", "svg", "pdf"):
        raise UserError(f"{path} should end in .png, .svg or .pdf; it ends in '{path.suffix}'.")
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=dpi)
    atomic_write_bytes(path, content.getvalue())
    return path
