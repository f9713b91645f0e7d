"""Matrices small enough for a page: uint8 with a scale for every row, deflated, in base64.

    code[t, s] = round(levels · w[t, s] / peak[t])       peak[t] = max_s w[t, s]

Only what a query may look at is stored, so a causal matrix costs half. With 255 levels a weight is
right within 1/510 of its row's peak, with 128 (long texts) within 1/256. Rows may be stored as
differences from the row above, and heads as their q and k (explorer/factors.py), whichever is
smallest. The page's unpacking is static/unpack.js.
"""

import base64
import hashlib
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everyhead.explorer.factors import pack_factors
from everyhead.explorer.scene import Bools, Floats, Group, HeadParts, Layer

FINE, COARSE = 255, 128
# A page whose heads have more cells than this altogether is packed coarsely.
MANY_CELLS = 4_000_000
# Up to so many numbers, q, k and v are in the page too.
MANY_PARTS = 1_500_000
# Longer texts are looked at in windows, their thumbnails taken from some of their rows.
LONG = 1500
THUMB = 40
HIDDEN = 255  # in a thumbnail: nothing there may be looked at


class Blobs:
    """Deflated byte strings by number; equal ones are kept once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._known: dict[bytes, int] = {}

    def add(self, content: bytes) -> int:
        """The number of the stored content."""
        return self.add_deflated(zlib.compress(content, 6))

    def add_deflated(self, content: bytes) -> int:
        """As `add`, of what is deflated already."""
        key = hashlib.sha256(content).digest()
        if key not in self._known:
            self._known[key] = len(self.texts)
            self.texts.append(base64.b64encode(content).decode("ascii"))
        return self._known[key]


def pack_mask(visible: Bools, blobs: Blobs) -> dict[str, Any] | None:
    """One bit a cell, row after row; None where everything may be looked at."""
    if visible.all():
        return None
    return {"blob": blobs.add(np.packbits(visible, axis=None).tobytes())}


def pack_head(
    weights: Floats, visible: Bools, blobs: Blobs, *, levels: int, parts: HeadParts | None = None
) -> dict[str, Any]:
    """Store one head, in the smallest of its forms."""
    codes, peaks = quantised(weights, visible, levels)
    plain = zlib.compress(codes[visible].tobytes(), 6)
    stepped = zlib.compress(_differences(codes)[visible].tobytes(), 6)
    best = min(plain, stepped, key=len)
    entry: dict[str, Any] = {"form": "codes", "levels": levels, "steps": best is stepped}
    factors = None
    if parts is not None and len(best) > 24_000:
        factors = pack_factors(parts, weights, visible, limit=len(best))
    if factors is not None:
        return {**factors.entry, "blob": blobs.add_deflated(factors.content)}
    return {**entry, "blob": blobs.add_deflated(best), "peaks": blobs.add(peaks.tobytes())}


def quantised(weights: Floats, visible: Bools, levels: int) -> tuple[NDArray[np.uint8], Floats]:
    """Codes (T, S) and peaks float32 (T)."""
    seen = np.where(visible, weights, 0)
    peaks = seen.max(1).astype("<f4")
    scale = np.divide(levels, peaks, out=np.zeros_like(peaks), where=peaks > 0)
    codes = np.rint(np.minimum(seen * scale[:, None], levels)).astype(np.uint8)
    return codes, peaks


def _differences(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Each row less the row above, modulo 256."""
    steps = codes.copy()
    steps[1:] -= codes[:-1]
    return steps


def thumbnail(weights: Floats, visible: Bools) -> NDArray[np.uint8]:
    """At most THUMB × THUMB: the square root of each patch's largest weight over the head's."""
    peak = max(float(weights.max()), 1e-30)
    rows, columns = (_edges(n) for n in weights.shape)
    seen = np.where(visible, weights, -1)
    pooled = np.maximum.reduceat(np.maximum.reduceat(seen, rows, 0), columns, 1)
    shades = np.rint(np.sqrt(np.clip(pooled, 0, None) / peak) * (HIDDEN - 1))
    return np.where(pooled < 0, HIDDEN, shades).astype(np.uint8)


def far_thumbnail(layer: Layer, head: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """As `thumbnail`, of THUMB rows spread over a text that is too long to look at all of them."""
    rows = _edges(shape[0])
    weights, visible = layer.head(head, rows), layer.visible(head, rows)
    return thumbnail(weights, visible)


def _edges(n: int) -> NDArray[np.int64]:
    return np.unique(np.arange(min(n, THUMB)) * n // min(n, THUMB))


def pack_parts(parts: HeadParts | None, blobs: Blobs) -> dict[str, Any] | None:
    """q, k, v and bias of one head in 16 bits each, for the arithmetic of one cell."""
    if parts is None:
        return None
    widths = {"width": parts.q.shape[1], "valueWidth": parts.v.shape[1]}
    arrays = {"q": parts.q, "k": parts.k, "v": parts.v, "bias": parts.bias}
    packed = {name: _numbers(array, blobs) for name, array in arrays.items()}
    return {"scale": float(parts.scale), **widths, **packed}


def pack_buckets(layer: Layer, head: int, blobs: Blobs) -> dict[str, Any]:
    """Where tokens are hashed: the bucket of each in each round, two bytes each, round by round."""
    buckets = None if layer.drawing is None else layer.drawing.buckets(head)
    return (
        {} if buckets is None else {"buckets": {"blob": blobs.add(buckets.astype("<u2").tobytes())}}
    )


def _drawn(layer: Layer) -> dict[str, Any] | None:
    return None if layer.drawing is None else layer.drawing.entry()


def _numbers(array: Floats | None, blobs: Blobs) -> dict[str, Any] | None:
    """Whole steps of the largest number's 32,767th; what is −∞ (never looked at) is 0."""
    if array is None:
        return None
    finite = np.where(np.isfinite(array), array, 0)
    step = max(float(np.abs(finite).max()), 1e-30) / 32767
    return {"blob": blobs.add(np.rint(finite / step).astype("<i2").tobytes()), "step": step}


def pack_group(
    group: Group, blobs: Blobs, *, levels: int = FINE, with_parts: bool = False
) -> dict[str, Any]:
    """The group as the page reads it, with every head."""
    masks: list[dict[str, Any] | None] = []
    layers, thumbs = [], []
    for layer in group.layers:
        heads = []
        for head in range(layer.n_heads):
            weights, visible = layer.head(head), layer.visible(head)
            mask = pack_mask(visible, blobs)
            if mask not in masks:
                masks.append(mask)
            entry: dict[str, Any] = {"mask": masks.index(mask)}
            parts = layer.parts(head)
            entry |= pack_head(weights, visible, blobs, levels=levels, parts=parts)
            entry["parts"] = pack_parts(parts, blobs) if with_parts else None
            entry |= pack_buckets(layer, head, blobs)
            heads.append(entry)
            thumbs.append(thumbnail(weights, visible))
        layers.append({"name": layer.name, "drawing": _drawn(layer), "heads": heads})
    return _table(group, layers, masks, thumbs, blobs)


def pack_lazily(group: Group, blobs: Blobs) -> dict[str, Any]:
    """The group with thumbnails alone: the served page asks for heads when they are shown."""
    shape = (len(group.rows), len(group.columns))
    layers, thumbs = [], []
    for layer in group.layers:
        heads = []
        for head in range(layer.n_heads):
            heads.append(pack_buckets(layer, head, blobs) if max(shape) <= LONG else {})
            if shape[0] * shape[1] > LONG**2:
                thumbs.append(far_thumbnail(layer, head, shape))
            else:
                thumbs.append(thumbnail(layer.head(head), layer.visible(head)))
        layers.append({"name": layer.name, "drawing": _drawn(layer), "heads": heads})
    return _table(group, layers, [], thumbs, blobs)


def _table(
    group: Group,
    layers: list[dict[str, Any]],
    masks: list[dict[str, Any] | None],
    thumbs: list[NDArray[np.uint8]],
    blobs: Blobs,
) -> dict[str, Any]:
    return {
        "name": group.name,
        "kind": group.kind,
        "rows": group.rows,
        "columns": group.columns,
        "special": _pair(group.special),
        "segments": _pair(group.segments),
        "grid": group.grid,
        "picture": _picture(group),
        "numbers": group.numbers,
        "names": group.names,
        "masks": masks,
        "layers": layers,
        "thumbs": {"blob": blobs.add(b"".join(t.tobytes() for t in thumbs)), "side": THUMB},
    }


def _picture(group: Group) -> dict[str, Any] | None:
    if group.picture is None:
        return None
    picture = group.picture
    return {"source": picture.url(), "first": picture.first, "query": picture.query}


def _pair(marks: tuple[list[Any], list[Any]] | None) -> dict[str, list[int]] | None:
    if marks is None:
        return None
    return {"rows": [*map(int, marks[0])], "columns": [*map(int, marks[1])]}


def part_numbers(group: Group) -> int:
    """Numbers in q, k and v of all heads."""
    first = group.layers[0].parts(0)
    if first is None:
        return 0
    one = first.q.size + first.k.size + first.v.size
    return one * sum(layer.n_heads for layer in group.layers)


def cells(group: Group) -> int:
    """Matrix cells of all heads."""
    return len(group.rows) * len(group.columns) * sum(layer.n_heads for layer in group.layers)
