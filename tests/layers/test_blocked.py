"""Attention by blocks of queries is attention whole, under every rule, at every length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from everyhead.layers import blocked, masks
from everyhead.layers.attention import Parts, attend, mix, weights
from everyhead.layers.masks import Mask
from tests.layers.oracles import Written

NEAR = {"rtol": 0, "atol": 1e-12}


def parts_of(batch: int, n_queries: int, n_keys: int, *, heads: int = 4, kv: int = 2) -> Parts:
    torch.manual_seed(n_keys)
    q = torch.randn(batch, heads, n_queries, 8, dtype=torch.float64)
    k, v = (torch.randn(batch, kv, n_keys, 8, dtype=torch.float64) for _ in range(2))
    return Parts(q, k, v, 0.3)


def real_of(batch: int, n_keys: int) -> Tensor:
    real = torch.ones(batch, n_keys, dtype=torch.bool)
    real[-1, : n_keys // 3] = False  # left padding, in the last row alone
    return real


def marked_of(batch: int, n_keys: int) -> Tensor:
    marked = torch.zeros(batch, n_keys, dtype=torch.bool)
    marked[0, 0] = marked[-1, n_keys // 2] = marked[0, n_keys - 1] = True
    return marked


def some_masks(batch: int, n_queries: int, n_keys: int) -> dict[str, Mask]:
    real, marked = real_of(batch, n_keys), marked_of(batch, n_keys)
    ids = torch.arange(n_keys)[None] // 5 + torch.zeros(batch, 1, dtype=torch.long)
    found = {
        "causal": masks.causal(),
        "causal, padded": masks.causal() & masks.keys(real),
        "causal, cached": masks.causal(1),
        "window": masks.window(3, 2),
        "causal window, padded": masks.window(4, 0) & masks.keys(real),
        "window or global": masks.window(2, 2) | masks.global_tokens(marked),
        "window or global, padded": (masks.window(2, 2) | masks.global_tokens(marked))
        & masks.keys(real),
        "prefix, then a window": masks.prefix(3, masks.window(2, 0)) & masks.causal(),
        "prefix, then a window or global": masks.prefix(
            2, masks.window(2, 2) | masks.global_tokens(marked)
        ),
        "documents": masks.documents(ids[:, n_keys - n_queries :], ids) & masks.causal(),
        "nothing near": masks.window(2, -1) & masks.keys(real),
    }
    generator = torch.Generator().manual_seed(1)
    matrix = torch.rand(batch, 1, n_queries, n_keys, generator=generator) < 0.3
    return found | {"any matrix": masks.dense(matrix)}


NAMES = list(some_masks(1, 2, 2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [(1, 7, 7), (2, 33, 33), (2, 20, 50), (3, 64, 65)])
def test_blocks_are_the_whole(name: str, size: tuple[int, int, int], monkeypatch) -> None:
    monkeypatch.setattr(blocked, "ROWS", 8)
    parts, mask = parts_of(*size), some_masks(*size)[name]
    wanted = mix(weights(parts, mask), parts, mask)
    found = blocked.attend_blocks(*parts[:3], mask, scale=parts.scale)
    torch.testing.assert_close(found, wanted, **NEAR)
    with torch.no_grad():
        assert torch.equal(blocked.attend_blocks(*parts[:3], mask, scale=parts.scale), found)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_whole(name: str, monkeypatch) -> None:
    monkeypatch.setattr(blocked, "ROWS", 8)
    parts, mask = parts_of(2, 30, 30), some_masks(2, 30, 30)[name]
    leaves = [x.requires_grad_() for x in parts[:3]]
    up = torch.randn(2, 4, 30, 8, dtype=torch.float64)
    wanted = torch.autograd.grad((mix(weights(parts, mask), parts, mask) * up).sum(), leaves)
    out = blocked.attend_blocks(*leaves, mask, scale=parts.scale)
    found = torch.autograd.grad((out * up).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, **NEAR)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 40), st.integers(1, 64))
def test_a_window_at_any_length(n: int, left: int, right: int, rows: int) -> None:
    before, blocked.ROWS = blocked.ROWS, rows
    try:
        parts, mask = parts_of(1, n, n, heads=2, kv=1), masks.window(left, right)
        found = blocked.attend_blocks(*parts[:3], mask, scale=parts.scale)
    finally:
        blocked.ROWS = before
    torch.testing.assert_close(found, mix(weights(parts, mask), parts, mask), **NEAR)


def test_a_bias_is_cut_with_its_block(monkeypatch) -> None:
    monkeypatch.setattr(blocked, "ROWS", 8)
    parts, mask = parts_of(2, 30, 30), masks.window(5, 3)
    bias = torch.randn(1, 4, 30, 30, dtype=torch.float64)
    parts = parts._replace(bias=bias)
    found = blocked.attend_blocks(*parts[:3], mask, scale=parts.scale, bias=bias)
    torch.testing.assert_close(found, mix(weights(parts, mask), parts, mask), **NEAR)


def test_a_window_reaches_no_further_than_it_must() -> None:
    spans = list(blocked.reaches(masks.window(511, 0), 4096, 4096, torch.device("cpu")))
    assert len(spans) == 16
    for start, stop, keys, _ in spans:
        assert keys == slice(max(0, start - 511), stop)
    first = next(blocked.reaches(masks.causal(), 4096, 4096, torch.device("cpu")))
    assert first.keys == slice(0, 256)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["causal, padded", "window", "window or global, padded"])
def test_a_long_attention_takes_the_blocks_by_itself(name: str) -> None:
    parts, mask = parts_of(2, 1100, 1100), some_masks(2, 1100, 1100)[name]
    rows = torch.tensor([0, 1, 255, 256, 700, 1099])
    wanted = mix(weights(parts, mask, rows=rows), parts, mask)
    torch.testing.assert_close(attend(parts, mask)[:, :, rows], wanted, **NEAR)


@pytest.mark.parametrize("mask", [masks.window(5, 3), masks.window(6, 3, step=3)])
def test_functional_gradients_and_directions(mask: Mask, monkeypatch) -> None:
    monkeypatch.setattr(blocked, "ROWS", 8)
    q, k, v, scale = parts_of(1, 30, 30, heads=2, kv=1)[:4]
    k.requires_grad_()

    def short(q: Tensor) -> Tensor:
        return blocked.attend_blocks(q, k, v, mask, scale=scale).square().sum()

    def whole(q: Tensor) -> Tensor:
        parts = Parts(q, k, v, scale)
        return mix(weights(parts, mask), parts, mask).square().sum()

    torch.testing.assert_close(torch.func.grad(short)(q), torch.func.grad(whole)(q), **NEAR)
    with sdpa_kernel(SDPBackend.MATH):  # the fused one has no forward-mode rule
        found, wanted = (torch.func.jvp(f, (q,), (q.flip(2),))[1] for f in (short, whole))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fewer_queries_than_residue_classes(n: int) -> None:
    parts, mask = parts_of(1, n, n), masks.window(6, 3, step=3)
    q = parts.q.requires_grad_()
    found = blocked.attend_blocks(q, parts.k, parts.v, mask, scale=parts.scale)
    torch.testing.assert_close(found, mix(weights(parts, mask), parts, mask), **NEAR)


@pytest.mark.parametrize("name", ["window", "dilated", "window or global"])
def test_the_gradient_costs_twice_as_much_at_twice_the_length(name: str, monkeypatch) -> None:
    monkeypatch.setattr(blocked, "ROWS", 8)

    def cost(n: int) -> int:
        parts = parts_of(1, n, n)
        marked = torch.arange(n)[None] == 3
        found = {
            "window": masks.window(20, 0),
            "dilated": masks.window(20, 20, step=2),
            "window or global": masks.window(20, 20) | masks.global_tokens(marked),
        }
        leaves = [x.requires_grad_() for x in parts[:3]]
        out = blocked.attend_blocks(*leaves, found[name], scale=parts.scale)
        with Written() as written:
            out.sum().backward()
        return written.count

    assert cost(1024) < 2.2 * cost(512)
