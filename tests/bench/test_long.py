"""What bench/long.py sets side by side computes the same thing, and its growth is a slope."""

import pytest
import torch

from bench.long import growth, table
from bench.long_systems import HEADS, SYSTEMS, WIDTH

N = 1024


@pytest.mark.parametrize(
    ("ours", "other"),
    [
        ("everyhead exact (causal)", "plain n×n (causal)"),
        ("everyhead exact (causal)", "torch SDPA (causal)"),
        ("everyhead window 512", "blocked SDPA window 512"),
        ("everyhead window 512", "transformers Longformer window 512"),
    ],
)
@torch.no_grad()
def test_both_give_one_result(ours: str, other: str) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, N, WIDTH) for _ in range(3))
    a, b = (SYSTEMS[name].make(N)(q.clone(), k.clone(), v.clone()) for name in (ours, other))
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@torch.no_grad()
def test_hashing_peers_give_rows_of_the_same_shape() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, N, WIDTH) for _ in range(3))
    for name in ("everyhead LSH (causal)", "transformers Reformer LSH (causal)"):
        assert SYSTEMS[name].make(N)(q, k, v).shape == q.shape


def test_growth_is_the_exponent_of_the_cost() -> None:
    rows = [{"n": n, "seconds": 3e-9 * n**2} for n in (1024, 8192, 16_384, 131_072)]
    assert growth(rows, "seconds") == pytest.approx(2)
    assert growth(rows[:2], "seconds") is None


def test_the_table_says_what_failed() -> None:
    name = "everyhead window 512"
    rows = [
        {"system": name, "n": 1024, "direction": "forward", "seconds": 0.5, "MiB": 2.0},
        {"system": name, "n": 2048, "direction": "forward", "failed": "over 9 s"},
    ]
    assert f"| {name} | 0.5 s, 2 MiB | over 9 s | – | – |" in table(rows, [1024, 2048], "forward")
