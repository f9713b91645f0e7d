"""Packed heads come back within their bound; here unpacked by NumPy, in the page by its script."""

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.explorer.packing import Blobs, pack_group, pack_head, pack_mask, thumbnail
from everyhead.explorer.scene import Group, HeadParts, Matrices
from tests.explorer.conftest import shares


def content(blobs: Blobs, number: int) -> bytes:
    return zlib.decompress(base64.b64decode(blobs.texts[number]))


def unpacked(entry: dict, visible: np.ndarray, blobs: Blobs) -> np.ndarray:
    """A loop over the cells, as the format is described."""
    codes = iter(content(blobs, entry["blob"]))
    peaks = np.frombuffer(content(blobs, entry["peaks"]), "<f4")
    weights, above = np.zeros(visible.shape), np.zeros(visible.shape[1], dtype=int)
    for t, s in np.ndindex(*visible.shape):
        code = next(codes) if visible[t, s] else 0
        if entry["steps"] and visible[t, s]:
            code = (code + above[s]) % 256
        above[s] = code
        weights[t, s] = code / entry["levels"] * peaks[t]
    assert next(codes, None) is None
    return weights


def factored(entry: dict, visible: np.ndarray, blobs: Blobs) -> np.ndarray:
    """q and k from their bytes, then softmax in float64."""
    rows, width, low = visible.shape[0], entry["width"], entry["low"]
    data, count = content(blobs, entry["blob"]), sum(visible.shape) * width
    bits = np.unpackbits(np.frombuffer(data[count:], "u1"))[: count * low].reshape(count, low)
    rest = bits @ (1 << np.arange(low)[::-1]) if low else 0
    numbers = (np.frombuffer(data[:count], "i1").astype(int) * 2**low + rest) * entry["step"]
    q, k = numbers.reshape(-1, width)[:rows], numbers.reshape(-1, width)[rows:]
    scores = np.where(visible, q @ k.T, -np.inf)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 99), st.sampled_from([128, 255]))
def test_every_weight_is_right_within_a_255th_of_its_rows_largest(rows, columns, seed, levels):
    visible = np.random.default_rng(seed).random((rows, columns)) < 0.7
    visible[:, 0] |= np.random.default_rng(seed).random(rows) < 0.8  # some rows see nothing
    seen = np.where(visible.any(1, keepdims=True), visible, True)
    weights = np.where(visible, shares((rows, columns), seen, seed), 0).astype(np.float32)
    blobs = Blobs()
    entry = pack_head(weights, visible, blobs, levels=levels)
    shown = unpacked(entry, visible, blobs)
    assert (np.abs(shown - weights) <= weights.max(1, keepdims=True) / 255 + 1e-12).all()
    np.testing.assert_allclose(shown.max(1), weights.max(1), rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("strength", [0.2, 1.0, 3.0])
def test_long_heads_are_kept_as_queries_and_keys_where_that_is_smaller(
    causal: bool, strength: float
):
    rng = np.random.default_rng(1)
    n, width = 400, 16
    q, k = (rng.normal(size=(n, width)).astype(np.float32) * strength for _ in range(2))
    k += 3  # a common part, which softmax does not see
    visible = np.tril(np.ones((n, n), dtype=bool)) if causal else np.ones((n, n), dtype=bool)
    scores = np.where(visible, q.astype(float) @ k.T * 0.25, -np.inf)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    weights = (powers / powers.sum(1, keepdims=True)).astype(np.float32)
    parts = HeadParts(q, k, k, 0.25)
    blobs, plain = Blobs(), Blobs()
    entry = pack_head(weights, visible, blobs, levels=128, parts=parts)
    pack_head(weights, visible, plain, levels=128)
    if strength < 3:
        assert entry["form"] == "factors"
        assert len(blobs.texts[entry["blob"]]) < 0.7 * max(map(len, plain.texts))
    show = factored if entry["form"] == "factors" else unpacked
    shown = show(entry, visible, blobs)
    assert (np.abs(shown - weights) <= weights.max(1, keepdims=True) / 255).all()


def test_weights_that_are_not_those_of_q_and_k_are_never_kept_as_such():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(300, 8)).astype(np.float32)
    weights = shares((300, 300), seed=3).astype(np.float32)
    entry = pack_head(
        weights, np.ones((300, 300), bool), Blobs(), levels=128, parts=HeadParts(q, q, q, 1.0)
    )
    assert entry["form"] == "codes"


def test_a_causal_head_stores_half_and_masks_are_one_bit_a_cell_kept_once():
    n = 64
    causal = np.tril(np.ones((n, n), dtype=bool))
    blobs = Blobs()
    entry = pack_head(shares((n, n), causal).astype(np.float32), causal, blobs, levels=255)
    assert len(content(blobs, entry["blob"])) == n * (n + 1) // 2
    mask = pack_mask(causal, blobs)
    bits = np.unpackbits(np.frombuffer(content(blobs, mask["blob"]), "u1")).reshape(n, n)
    np.testing.assert_array_equal(bits.astype(bool), causal)
    assert pack_mask(np.ones((3, 3), bool), blobs) is None
    layers = [Matrices(f"l{i}", shares((4, n, n), causal, i), visible=causal) for i in range(3)]
    packed = pack_group(Group("g", "self", ["x"] * n, ["x"] * n, layers), blobs)
    assert len(packed["masks"]) == 1
    assert {head["mask"] for layer in packed["layers"] for head in layer["heads"]} == {0}


@pytest.mark.parametrize("n", [1, 39, 40, 41, 500])
def test_a_thumbnail_keeps_the_largest_weight_and_tells_hidden_from_zero(n: int):
    weights = np.zeros((n, n), dtype=np.float32)
    weights[n // 2, n // 3] = 0.25
    seen = np.tril(np.ones((n, n), dtype=bool))
    small = thumbnail(weights, seen)
    side = min(n, 40)
    assert small.shape == (side, side) and small.dtype == np.uint8
    assert small[small != 255].max() == 254
    row, column = np.argwhere(small == 254)[0]
    assert (
        abs(row / side - (n // 2) / n) <= 1 / side and abs(column / side - n // 3 / n) <= 1 / side
    )
    if n > 1:
        assert small[0, -1] == 255 and small[-1, 0] == 0
