"""Attention over an image: what a query takes from each patch, laid over the pixels.

A Vision Transformer cuts an image into a grid of patches, rows from the top, each read from left to
right, behind a class token (Dosovitskiy et al. 2020, 2010.11929). The image is shown in grey, each
patch tinted by its weight, in squares as the model sees it, not smoothed into a cloud; what goes to
tokens that are no patches is said in the caption.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from everyhead.inspection.fonts import choose_fonts, drawable
from everyhead.inspection.layout import EDGE, Plan, extent, fractions
from everyhead.inspection.panels import QUIET, blank, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
LARGEST, SMALLEST, WIDEST = 3.4, 1.1, 15.0  # inches of one picture's side, of all side by side
CAPTION, GAP, COLUMNS = 0.24, 0.14, 4
TINT = 0.9  # of the darkest patch
AMBER, FRAME = ("#ffe3b0", "#ffb347", "#f0771f", "#c2410c", "#8f1d0f"), "#1d4ed8"


def patches_figure(
    image: ArrayLike,
    weights: ArrayLike,
    grid: tuple[int, int],
    *,
    captions: Sequence[str] | None = None,
    title: str = "",
    vmax: float | None = None,
    query: int | None = None,
) -> "Figure":
    """The image, then one picture a row of `weights`.

    Args:
        image: (height, width) or (height, width, 3 or 4), bytes 0 … 255 or floats 0 … 1.
        weights: (n, S), one query's row of n heads, say; the last rows × columns of S are patches,
            what stands before them (a class token) is no patch.
        grid: rows and columns of patches.
        captions: n texts; "head 0" and so on by default.
        vmax: the weight of the full tint; by default the largest of a patch.
        query: the patch, counted from 0, that asks; it gets a frame.

    Raises: ValueError when the shapes do not agree.
    """
    pixels, array = _pixels(image), np.asarray(weights, dtype=np.float64)
    grey = pixels @ np.array([0.299, 0.587, 0.114])  # luma of Rec. 601
    n_rows, n_columns = grid
    if array.ndim != 2 or min(n_rows, n_columns) < 1 or array.shape[1] < n_rows * n_columns:
        raise ValueError(
            f"weights (heads, keys) with {n_rows} × {n_columns} patches among the keys are needed; "
            f"got {array.shape}"
        )
    captions = [f"head {i}" for i in range(len(array))] if captions is None else captions
    if len(captions) != len(array):
        raise ValueError(f"there are {len(captions)} captions for {len(array)} rows of weights")
    first = array.shape[1] - n_rows * n_columns
    patches = array[:, first:].reshape(-1, n_rows, n_columns)
    highest = float(patches.max()) if vmax is None else vmax
    texts = [_caption(c, row[:first]) for c, row in zip(captions, array, strict=True)]
    figure = blank()
    fonts = choose_fonts([title, *texts])
    title, texts = drawable(title, fonts), [drawable(text, fonts, limit=48) for text in texts]
    pictures = [pixels, *(_tinted(grey, patch / (highest or 1.0)) for patch in patches)]
    original = f"image; full tint {highest:.2g}"
    _draw(figure, pictures, [original, *texts], title, frame=(query, grid))
    return figure


def _draw(
    figure: "Figure",
    pictures: list[Floats],
    captions: list[str],
    title: str,
    *,
    frame: tuple[int | None, tuple[int, int]],
) -> None:
    height, width = pictures[0].shape[:2]
    columns = min(len(pictures), COLUMNS)
    across = max(SMALLEST, min(LARGEST, WIDEST / columns - GAP))
    across = max([across, *(extent(figure, text, 8)[0] for text in captions)])
    down, top = across * height / width, EDGE + (0.36 if title else 0.0)
    n_rows = math.ceil(len(pictures) / columns)
    tops = [top + CAPTION + row * (down + CAPTION + GAP) for row in range(n_rows)]
    whole = max(2 * EDGE + columns * (across + GAP), 2 * EDGE + 1.1 * extent(figure, title, 13)[0])
    plan = Plan(whole, tops[-1] + down + EDGE, EDGE, across + GAP, tops)
    figure.set_size_inches(plan.width, plan.height)
    for i, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
        left, top = plan.left + i % columns * plan.slot, tops[i // columns]
        axes = figure.add_axes(fractions(plan, left, top, across, down))
        axes.imshow(picture, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        _frame(axes, *frame, size=(height, width))
        write(figure, plan, left, top - 0.1, caption, size=8, colour=QUIET)
    write(figure, plan, plan.left, EDGE + 0.1, title, size=13)


def _frame(axes: Any, query: int | None, grid: tuple[int, int], *, size: tuple[int, int]) -> None:
    from matplotlib.patches import Rectangle

    if query is None:
        return
    if not 0 <= query < grid[0] * grid[1]:
        raise ValueError(f"there is no patch {query}; the grid has {grid[0]} × {grid[1]}")
    row, column = divmod(query, grid[1])
    high, wide = size[0] / grid[0], size[1] / grid[1]
    corner = (column * wide - 0.5, row * high - 0.5)
    axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=FRAME, linewidth=1.6))


def _caption(caption: str, others: Floats) -> str:
    return f"{caption} · {others.sum():.0%} not on patches" if others.size else caption


def _pixels(image: ArrayLike) -> Floats:
    """(height, width, 3), 0 … 1."""
    array = np.asarray(image)
    pixels = array.astype(np.float64) / (255 if array.dtype.kind in "iu" else 1)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, -1)
    fits = pixels.ndim == 3 and pixels.shape[-1] in (3, 4) and 0 not in pixels.shape
    if not fits or not np.isfinite(pixels).all():
        raise ValueError(
            "an image is (height, width) or (height, width, 3), bytes or floats 0 … 1; got shape "
            f"{array.shape}"
        )
    return pixels[..., :3].clip(0, 1)


def _tinted(grey: Floats, shares: Floats) -> Floats:
    """(height, width, 3): each pixel between light grey and its patch's colour."""
    from matplotlib.colors import LinearSegmentedColormap

    height, width = grey.shape
    rows = np.arange(height) * shares.shape[0] // height
    columns = np.arange(width) * shares.shape[1] // width
    share = shares[rows][:, columns].clip(0, 1)[..., None]
    colours = LinearSegmentedColormap.from_list("tint", AMBER)
    base = np.repeat(0.35 + 0.65 * grey[..., None], 3, -1)
    tint = colours(share[..., 0])[..., :3] * (0.55 + 0.45 * grey[..., None])
    return base * (1 - TINT * share) + tint * TINT * share
