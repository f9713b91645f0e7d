"""The best continuations, by the program and by PyTorch's calls."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from everyhead.generation import choosing
from everyhead.generation.choosing import NEVER, candidates
from everyhead.layers.compiled import library


@pytest.fixture(params=["program", "calls"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways where there is a compiler."""
    if request.param == "calls":
        monkeypatch.setattr(choosing, "library", lambda: None)
    elif library() is None:
        pytest.skip("there is no C compiler here")
    return request.param


def totals(logits: Tensor, sums: Tensor) -> Tensor:
    """(n, w·V) by the definition, in float64."""
    found = logits.double().log_softmax(-1).view(*sums.shape, -1) + sums.double()[..., None]
    return found.flatten(1)


@given(
    n=st.integers(1, 4), width=st.integers(1, 5), pieces=st.integers(1, 300), k=st.integers(1, 64)
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("sharpness", [0.1, 20.0])
def test_they_are_the_largest_in_order(
    sharpness: float, n: int, width: int, pieces: int, k: int
) -> None:
    torch.manual_seed(pieces)
    logits, sums = sharpness * torch.randn(n * width, pieces), -torch.rand(n, width) * 5
    found, all_ = candidates(logits, sums, k), totals(logits, sums)
    there = min(k, width * pieces)
    assert found.sums.shape == found.parent.shape == found.token.shape == (n, k)
    wanted = all_.topk(there).values
    torch.testing.assert_close(found.sums[:, :there].double(), wanted, rtol=1e-5, atol=1e-5)
    index = (found.parent * pieces + found.token)[:, :there]
    assert all(len(set(row)) == there for row in index.tolist())
    torch.testing.assert_close(all_.gather(1, index), wanted, rtol=1e-5, atol=1e-5)
    assert bool((found.sums[:, there:] == NEVER).all())


def test_equal_ones_stand_in_their_order(way: str) -> None:
    logits, sums = torch.zeros(4, 200), torch.zeros(2, 2)
    found = candidates(logits, sums, 5)
    torch.testing.assert_close(found.sums, torch.full((2, 5), -5.298317))
    if way == "program":  # PyTorch leaves it open
        assert found.parent.tolist() == [[0] * 5] * 2
        assert found.token.tolist() == [[0, 1, 2, 3, 4]] * 2


def test_dead_beams_and_closed_pieces_give_none() -> None:
    logits, sums = torch.zeros(2, 70), torch.tensor([[NEVER, -1.0]])
    logits[:, 3:] = NEVER
    found = candidates(logits, sums, 5)
    assert found.parent[0, :3].tolist() == [1, 1, 1]
    assert sorted(found.token[0, :3].tolist()) == [0, 1, 2]
    assert found.sums[0, 3:].tolist() == [NEVER, NEVER]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_sentence_whose_logits_are_no_numbers_has_no_number(bad: float) -> None:
    logits = torch.randn(4, 100)
    logits[1, 99] = bad
    found = candidates(logits, torch.zeros(2, 2), 3)
    assert not found.sums[0, 0].isfinite() and bool(found.sums[1].isfinite().all())


def test_logits_in_bf16_and_rows_with_gaps() -> None:
    wide = torch.randn(6, 128)
    found = candidates(wide.bfloat16(), torch.zeros(3, 2), 4)
    wanted = candidates(wide.bfloat16().float(), torch.zeros(3, 2), 4)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    found = candidates(wide[:, ::2], torch.zeros(6, 3)[:, :1], 4)
    wanted = candidates(wide[:, ::2].contiguous(), torch.zeros(6, 1), 4)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_how_many_threads_there_are_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits, sums, found = torch.randn(20, 999), -torch.rand(5, 4), []
    for n in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n: n)
        found.append(candidates(logits, sums, 8))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
