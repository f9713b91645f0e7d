"""Laws 1, 3 and 4 of each method for long inputs, at lengths around every block size.

Tensors are given as an attention gets them (`project`'s tuple), so what is compared is the method.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from everyhead.layers import masks
from everyhead.layers.favor import FavorAttention
from everyhead.layers.local import LocalAttention
from everyhead.layers.lsh import LshAttention
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.positions import SinusoidalPositions
from everyhead.layers.relative import RelativeAttention
from everyhead.layers.sliding import Window
from everyhead.layers.window import WindowAttention
from tests.layers.oracles import relative_error

pytestmark = pytest.mark.slow
LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 1000, 1025)
WIDTH, HEADS = 32, 2
NAN = float("nan")


class Method(NamedTuple):
    """A module of some attention, and the rule it is used with beside the padding's."""

    make: Callable[[], MultiHeadAttention]
    rule: Mask = Mask()
    causal: bool = False


def exact() -> MultiHeadAttention:
    return MultiHeadAttention(WIDTH, HEADS)


def features(kernel: str) -> Callable[[], MultiHeadAttention]:
    return lambda: FavorAttention(WIDTH, HEADS, n_features=32, kernel=kernel)


def lsh() -> MultiHeadAttention:
    return LshAttention(WIDTH, HEADS, n_buckets=4, n_rounds=2, chunk=16)


def relative() -> MultiHeadAttention:
    made = RelativeAttention(
        WIDTH, HEADS, distances=SinusoidalPositions(301, WIDTH, layout="halves")
    )
    torch.nn.init.normal_(made.u), torch.nn.init.normal_(made.w)
    return made


def first_kept() -> MultiHeadAttention:
    return Window(64, first=4).of(exact())


def local() -> MultiHeadAttention:
    return LocalAttention(WIDTH, HEADS, chunk=32)


def dilated() -> MultiHeadAttention:
    return WindowAttention(WIDTH, HEADS, left=20, right=20, dilation=3)


CAUSAL = masks.causal()
METHODS: dict[str, Method] = {
    "exact": Method(exact),
    "exact, causal": Method(exact, CAUSAL, causal=True),
    "window": Method(exact, masks.window(40, 40)),
    "window, causal": Method(exact, masks.window(64, 0), causal=True),
    "window and first tokens": Method(first_kept, CAUSAL, causal=True),
    "dilated window": Method(dilated),
    "near chunks": Method(local, CAUSAL, causal=True),
    "features": Method(features("softmax")),
    "features, causal": Method(features("softmax"), CAUSAL, causal=True),
    "ReLU features, causal": Method(features("relu"), CAUSAL, causal=True),
    "LSH": Method(lsh),
    "LSH, causal": Method(lsh, CAUSAL, causal=True),
    "relative": Method(relative, CAUSAL, causal=True),
}
CAUSAL_METHODS = [name for name, method in METHODS.items() if method.causal]
EVERY = (
    pytest.mark.parametrize("n", LENGTHS),
    pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16]),
)


def every(test: Any) -> Any:
    for mark in EVERY:
        test = mark(test)
    return test


@torch.no_grad()
def begun(name: str, batch: int, n: int, dtype: torch.dtype) -> tuple[MultiHeadAttention, Any]:
    """The module, and what it projects from (batch, n) random rows."""
    torch.manual_seed(n)
    module = METHODS[name].make().eval().to(dtype)
    parts: Any = module.project(torch.randn(batch, n, WIDTH, dtype=dtype))
    q, k, v = (x.contiguous() for x in parts[:3])  # products of other strides round otherwise
    return module, parts._replace(q=q, k=k, v=v)


def seen_by(module: MultiHeadAttention, name: str, real: Tensor | None = None) -> Mask | None:
    rule = METHODS[name].rule
    return module.visible(rule if real is None else rule & masks.keys(real))


def assert_close(a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    if dtype is torch.float32:
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    else:
        assert relative_error(a, b) < 1e-2


@every
@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_the_fast_result_is_the_matrix_times_the_values(
    name: str, n: int, dtype: torch.dtype
) -> None:
    rows = torch.arange(n)
    rows = rows if n < 1000 else torch.cat([rows[:70], rows[-70:]])
    for batch in (1, 3):
        module, parts = begun(name, batch, n, dtype)
        real = torch.ones(batch, n, dtype=torch.bool)
        real[-1, max(1, n // 2) :] = False
        for mask in (seen_by(module, name), seen_by(module, name, real)):
            matrix = module.weights(parts, mask, rows=rows)
            mixed = module.mix(matrix, parts, mask, rows)
            out = module.attend(parts, mask)[:, :, rows]
            if mask is not None and mask.key_mask is not None:  # padded rows may hold anything
                hidden = ~real[:, None, rows, None]
                out, mixed = out.masked_fill(hidden, 0), mixed.masked_fill(hidden, 0)
            assert_close(out, mixed, dtype)
            sums = matrix.sum(-1)
            assert (((sums - 1).abs() < 2e-2) | (sums == 0)).all() and (matrix >= 0).all()


@every
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_padding_of_any_content_changes_nothing(
    name: str, side: str, n: int, dtype: torch.dtype
) -> None:
    for batch in (1, 3):
        module, parts = begun(name, batch, n, dtype)
        alone = module.attend(parts, seen_by(module, name))
        for n_pad in (1, 6, 60) if n < 1000 else (60,):
            given = (n_pad, 0) if side == "left" else (0, n_pad)
            real = pad(torch.ones(batch, n, dtype=torch.bool), given)
            k, v = (pad(x, (0, 0, *given), value=NAN) for x in (parts.k, parts.v))
            q = pad(parts.q, (0, 0, *given))  # models zero hidden rows
            padded = parts._replace(q=q, k=k, v=v)
            out = module.attend(padded, seen_by(module, name, real))
            taken = out[:, :, n_pad:] if side == "left" else out[:, :, :n]
            assert out.isfinite().all()
            assert_close(taken, alone, dtype)


@every
@pytest.mark.parametrize("name", CAUSAL_METHODS)
@torch.no_grad()
def test_what_comes_later_changes_nothing(name: str, n: int, dtype: torch.dtype) -> None:
    for batch in (1, 3):
        module, parts = begun(name, batch, n, dtype)
        before = module.attend(parts, seen_by(module, name))
        for t in {0, n // 2, n - 2} & set(range(n - 1)):
            others = 3 * torch.randn(batch, HEADS, n - t - 1, WIDTH // HEADS).to(dtype)
            q, k, v = (torch.cat([x[:, :, : t + 1], others], 2) for x in parts[:3])
            after = module.attend(parts._replace(q=q, k=k, v=v), seen_by(module, name))
            assert torch.equal(before[:, :, : t + 1], after[:, :, : t + 1])
