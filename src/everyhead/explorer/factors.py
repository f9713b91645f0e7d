"""A head as its queries and keys, where these are smaller than its matrix.

    w[t, s] = softmax_s(scale · q[t] · (k[s] − mean k))      the mean moves a whole row: no change

512 tokens have 262,144 weights a head but 65,536 numbers in q and k. Both are turned so that they
carry the same strength in every direction (q → q A, k → k A⁻ᵀ leaves each product as it is), are
rounded to steps of one size, and written as a byte of high bits and a few low bits. What the page
will compute from them is computed here first: a head is stored so only when every weight is right
within 1/255 of its row's peak.
"""

import math
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from everyhead.explorer.scene import Bools, Floats, HeadParts

MOST_LOW = 4
TOLERANCE = 0.98 / 255


class Factors(NamedTuple):
    """What the page's table says of them, and their deflated bytes."""

    entry: dict[str, Any]
    content: bytes


def pack_factors(
    parts: HeadParts, weights: Floats, visible: Bools, *, limit: int
) -> Factors | None:
    """q and k in as few bits as keep every weight; None where the matrix is smaller (`limit`)."""
    if parts.bias is not None:
        return None
    q, k = balanced(parts)
    peaks = np.maximum(weights.max(1, keepdims=True), np.finfo(np.float32).tiny)
    low = 0
    while low <= MOST_LOW:
        step = _step(q, k, low)
        codes = [np.rint(x / step).astype(np.int32) for x in (q, k)]
        q_near, k_near = (c * np.float32(step) for c in codes)
        rebuilt = softmax(q_near, k_near, visible)
        worst = float((np.abs(rebuilt - weights) / peaks).max()) / TOLERANCE
        if worst <= 1:
            content = _bytes(codes, low)
            entry = {"form": "factors", "width": q.shape[1], "step": step, "low": low}
            return Factors(entry, content) if len(content) < limit else None
        low += max(1, math.ceil(math.log2(worst) - 0.5))  # each bit halves what is wrong
    return None


def balanced(parts: HeadParts) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """q (T, D') and k (S, D') whose products are the scores less one number a row.

    Directions are those of the scores' own singular vectors, each shared evenly between q and k;
    those too weak to matter are left out.
    """
    q = parts.q.astype(np.float64) * parts.scale
    k = parts.k.astype(np.float64)
    k = k - k.mean(0)
    q_basis, q_rest = np.linalg.qr(q)
    k_basis, k_rest = np.linalg.qr(k)
    left, strengths, right = np.linalg.svd(q_rest @ k_rest.T)
    kept = strengths > 1e-6 * max(strengths[0], 1e-30)
    share = np.sqrt(strengths[kept])
    spread = _hadamard_like(int(kept.sum()))
    return (
        q_basis @ (left[:, : len(strengths)][:, kept] * share) @ spread,
        k_basis @ (right[: len(strengths)][kept].T * share) @ spread,
    )


def _hadamard_like(n: int) -> NDArray[np.float64]:
    """An orthogonal matrix that spreads every direction over all: cosines (DCT-II)."""
    i, j = np.arange(n)[:, None], np.arange(n)[None]
    basis = np.cos(np.pi * (j + 0.5) * i / n) * np.sqrt(2 / max(n, 1))
    basis[:1] /= np.sqrt(2)
    return basis


def _step(q: NDArray[np.float64], k: NDArray[np.float64], low: int) -> float:
    """The widest number fills a signed byte and `low` bits more."""
    peak = max(np.abs(q).max(), np.abs(k).max(), 1e-30)
    return float(peak / (127 << low))


def _bytes(codes: list[NDArray[np.int32]], low: int) -> bytes:
    """High bytes of q and k, then their low bits side by side; both deflated as one."""
    flat = np.concatenate([c.ravel() for c in codes])
    high = (flat >> low).astype(np.int8)
    rest = (flat & ((1 << low) - 1)).astype(np.uint8)
    bits = np.unpackbits(rest[:, None], axis=1)[:, 8 - low :] if low else rest[:0]
    return zlib.compress(high.tobytes() + np.packbits(bits).tobytes(), 6)


def softmax(q: NDArray[np.float32], k: NDArray[np.float32], visible: Bools) -> Floats:
    """Rows of softmax(q kᵀ) over what is visible; zeros where nothing is."""
    scores = (q @ k.T).astype(np.float32)
    scores = np.where(visible, scores, -np.inf)
    peak = np.maximum(scores.max(1, keepdims=True), np.finfo(np.float32).min)
    powers = np.exp(scores - peak)
    return powers / np.maximum(powers.sum(1, keepdims=True), np.finfo(np.float32).tiny)
