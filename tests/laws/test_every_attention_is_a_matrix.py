"""Laws 1 and 2: attend(parts, mask) == mix(weights(parts, mask), parts); a mask is a rule."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from everyhead.layers import masks, probe
from everyhead.layers.attention import Parts, attend, mix, weights
from everyhead.layers.masks import Mask
from tests.laws.families import FAMILIES, batch, build
from tests.layers.oracles import (
    LENGTHS,
    PATHS,
    TOLERANCE,
    lengths_mask,
    on_path,
    qkv,
    relative_error,
)

MASKS: dict[str, Callable[[int], Mask | None]] = {
    "none": lambda n: None,
    "causal": lambda n: masks.causal(),
    "keys": lambda n: masks.keys(lengths_mask([n, n // 2], n)),
    "causal and keys": lambda n: masks.causal() & masks.keys(lengths_mask([n, 1], n, left=True)),
    "window": lambda n: masks.window(2, 1),
    "window or global": lambda n: masks.window(1, 1) | masks.global_tokens(lengths_mask([1, 0], n)),
    "documents": lambda n: masks.documents(torch.arange(n).expand(2, n) // 5),
    "dense": lambda n: masks.dense(torch.rand(2, 2, n, n) < 0.3),
    "nothing": lambda n: masks.dense(torch.zeros(n, n, dtype=torch.bool)),
}


def assert_close(a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    """Absolute for wide types, relative for narrow ones."""
    if dtype.itemsize > 2:
        torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCE[dtype])
    else:
        assert relative_error(a, b) < TOLERANCE[dtype]


def assert_matrix(parts: Parts, mask: Mask | None, dtype: torch.dtype) -> None:
    matrix = weights(parts, mask)
    assert_close(attend(parts, mask), mix(matrix, parts, mask), dtype)
    sums = matrix.sum(-1)
    assert (((sums - 1).abs() < 1e-4) | (sums == 0)).all() and (matrix >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", LENGTHS)
def test_the_fast_result_is_the_matrix_times_the_values(
    n: int, path: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(n)
    parts = Parts(*qkv(2, 2, n, 16, dtype=dtype), 0.25)
    with on_path(path):
        for make in MASKS.values():
            assert_matrix(parts, make(n), dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("n", LENGTHS)
def test_with_a_bias_and_grouped_heads_too(n: int, path: str) -> None:
    torch.manual_seed(n)
    q, k, v = qkv(2, 4, n, 8, n_kv_heads=2, dtype=torch.float64)
    parts = Parts(q, k, v, 1.0, torch.randn(1, 4, n, n, dtype=torch.float64))
    with on_path(path):
        for name in ("none", "causal", "keys", "window", "nothing"):
            assert_matrix(parts, MASKS[name](n), torch.float64)


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    path=st.sampled_from(PATHS),
    n_queries=st.integers(1, 12),
    n_keys=st.integers(1, 12),
    seed=st.integers(0, 1000),
)
def test_at_any_size_and_under_any_rules(
    data: st.DataObject, path: str, n_queries: int, n_keys: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    rules = {
        "causal": masks.causal(data.draw(st.none() | st.integers(-2, 12))),
        "window": masks.window(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))),
        "keys": masks.keys(torch.rand(2, n_keys, generator=rng) < 0.7),
        "dense": masks.dense(torch.rand(2, 1, n_queries, n_keys, generator=rng) < 0.7),
    }
    mask = Mask()
    for name in data.draw(st.lists(st.sampled_from(sorted(rules)), max_size=4, unique=True)):
        mask = mask & rules[name]
    parts = Parts(*qkv(2, 2, n_queries, 4, n_keys=n_keys, dtype=torch.float64, seed=seed), 0.5)
    with on_path(path):
        assert_matrix(parts, mask, torch.float64)


class Notes:
    def __init__(self) -> None:
        self.seen: list[tuple[Parts, Mask | None]] = []

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        self.seen.append((parts, mask))
        return attend(parts, mask)


def recorded(model: nn.Module) -> list[tuple[Parts, Mask | None]]:
    notes = Notes()
    probe.attach(notes)
    try:
        with torch.no_grad():
            model(*batch(model))
    finally:
        probe.detach(notes)
    return notes.seen


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_attention_of_every_family_is_a_matrix(family: str, dtype: torch.dtype) -> None:
    seen = recorded(build(family, dtype=dtype))
    assert len(seen) == 6
    for parts, mask in seen:
        assert_matrix(parts, mask, dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_model_builds_a_matrix_of_queries_and_keys_for_its_mask(family: str) -> None:
    for _, mask in recorded(build(family)):
        leaves, _ = torch.utils._pytree.tree_flatten(mask)
        assert all(leaf.dim() <= 2 for leaf in leaves if isinstance(leaf, Tensor))
