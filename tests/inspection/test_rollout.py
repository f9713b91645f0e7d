"""Rollout beside the paper's product in NumPy float64."""

import numpy as np
import pytest

from everyhead.inspection import rows
from everyhead.inspection.rollout import rollout


def layers(n_layers: int, h: int, n: int, *, causal: bool = False) -> np.ndarray:
    rng = np.random.default_rng(n)
    a = rng.random((n_layers, h, n, n)) ** 4
    if causal:
        a = np.where(np.tril(np.ones((n, n), dtype=bool)), a, 0)
    return a / a.sum(-1, keepdims=True)


def naive(a: np.ndarray, residual: float = 0.5) -> np.ndarray:
    """(L, H, T, T) → (T, T): each Ã, then their product from the first layer up."""
    n = a.shape[-1]
    product = np.eye(n)
    for layer in a:
        mixed = np.zeros((n, n))
        for head in layer:
            mixed += head / len(layer)
        mixed = (1 - residual) * mixed + residual * np.eye(n)
        for i in range(n):
            mixed[i] /= mixed[i].sum()
        product = mixed @ product
    return product


@pytest.mark.parametrize("causal", [False, True])
def test_rollout_is_the_papers_product(causal: bool) -> None:
    a = layers(4, 3, 7, causal=causal)
    found = rollout(list(a)).numpy()
    np.testing.assert_allclose(found, naive(a), atol=1e-14)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-14)
    if causal:
        assert np.triu(found, 1).max() == 0


def test_some_rows_in_chunks_are_rows_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    a = layers(3, 2, 9)
    monkeypatch.setattr(rows, "AT_ONCE", 2 * 9 * 2)
    np.testing.assert_allclose(rollout(list(a), [0, 8, 3]), naive(a)[[0, 8, 3]], atol=1e-14)
    np.testing.assert_allclose(rollout(list(a), slice(2, 4)), naive(a)[2:4], atol=1e-14)


def test_chosen_heads_and_their_maximum() -> None:
    a = layers(2, 4, 5)
    chosen = rollout(list(a), heads=[[1], None])
    np.testing.assert_allclose(chosen, naive(a[1:]) @ naive(a[:1, [1]]), atol=1e-14)
    highest = a.max(1, keepdims=True)
    highest /= highest.sum(-1, keepdims=True)
    np.testing.assert_allclose(rollout(list(a), combine="max"), naive(highest), atol=1e-14)


def test_what_sees_nothing_keeps_itself() -> None:
    a = layers(2, 2, 4)
    a[:, :, 2] = 0
    found = rollout(list(a)).numpy()
    np.testing.assert_allclose(found[2], np.eye(4)[2], atol=1e-14)
    np.testing.assert_allclose(found, naive(a), atol=1e-14)


def test_the_whole_residual_is_the_identity() -> None:
    np.testing.assert_allclose(rollout(list(layers(3, 2, 4)), residual=1.0), np.eye(4), atol=0)


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        ([], {}, "one layer at least"),
        ([np.full((1, 2, 3), 1 / 3)], {}, "square"),
        ([np.full((1, 2, 2), 0.5), np.full((1, 3, 3), 1 / 3)], {}, "2 and 3 places"),
        ([np.full((1, 2, 2), 0.5)], {"residual": 0.0}, "identity's share"),
        ([np.full((1, 2, 2), 0.5)], {"heads": [None, None]}, "names 2 layers"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused(given: list, options: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        rollout(given, **options)
