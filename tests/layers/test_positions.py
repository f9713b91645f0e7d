"""Positions: the sinusoid of the paper in both layouts, and learned ones."""

import math

import numpy as np
import pytest
import torch

from everyhead import reference
from everyhead.layers.positions import (
    LAYOUTS,
    LearnedPositions,
    SinusoidalPositions,
    places_within,
    sinusoid,
)


def test_interleaved_is_the_papers_formula_number_by_number() -> None:
    table = sinusoid(50, 8)
    for pos in (0, 1, 7, 49):
        for i in range(4):
            angle = pos / 10000 ** (2 * i / 8)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("d_model", [1, 2, 7, 16])
def test_equals_the_reference_even_where_d_model_is_odd(layout: str, d_model: int) -> None:
    ours = sinusoid(600, d_model, layout=layout)
    assert ours.shape == (600, d_model)
    expected = reference.positional_encoding(600, d_model, layout)
    np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=1e-7)


def test_halves_holds_the_same_numbers_in_another_order() -> None:
    interleaved, halves = sinusoid(9, 6), sinusoid(9, 6, layout="halves")
    assert torch.equal(halves, torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], 1))


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="interleaved, halves"):
        sinusoid(3, 4, layout="spiral")


def test_the_table_in_bfloat16_is_the_exact_table_rounded_with_all_positions_distinct() -> None:
    """Positions cast to bfloat16 before the sine fall together: 769 of 4096 stay distinct."""
    module = SinusoidalPositions(4096, 64).to(torch.bfloat16)
    assert torch.equal(module.table, sinusoid(4096, 64).to(torch.bfloat16))
    assert len(torch.unique(module.table.float(), dim=0)) == 4096
    assert torch.equal(module.float().table, sinusoid(4096, 64))


def test_the_table_has_the_precision_of_its_own_type() -> None:
    module = SinusoidalPositions(600, 16, layout="halves").double()
    expected = reference.positional_encoding(600, 16, "halves")
    np.testing.assert_allclose(module.table.numpy(), expected, rtol=0, atol=1e-12)


def test_a_table_from_the_meta_device_holds_its_numbers() -> None:
    with torch.device("meta"):
        module = SinusoidalPositions(5, 4)
    assert torch.equal(module.to_empty(device="cpu").table, sinusoid(5, 4))


def test_distant_positions_are_exact_in_float32() -> None:
    """A product of float32 numbers is off by 1e-3 where the position is a hundred thousand."""
    last = sinusoid(100_001, 4)[100_000].double()
    angle = 100_000 / torch.tensor([1.0, 1.0, 100.0, 100.0], dtype=torch.float64)
    expected = torch.stack([angle[0].sin(), angle[1].cos(), angle[2].sin(), angle[3].cos()])
    torch.testing.assert_close(last, expected, rtol=0, atol=1e-6)


def test_the_sinusoid_is_not_saved_and_not_trained() -> None:
    module = SinusoidalPositions(5, 4)
    assert module.state_dict() == {} and list(module.parameters()) == []
    places = torch.tensor([[0, 4], [2, 2]])
    assert torch.equal(module(places), sinusoid(5, 4)[places])


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_there_is_no_position_beyond_the_longest(kind: type) -> None:
    with pytest.raises(IndexError):
        kind(5, 4)(torch.tensor([5]))


def test_learned_positions_are_rows_of_a_trained_table() -> None:
    module = LearnedPositions(5, 4)
    places = torch.tensor([[0, 4], [2, 2]])
    out = module(places)
    assert torch.equal(out, module.weight[places])
    out.sum().backward()
    assert module.weight.grad.sum(1).tolist() == [4, 0, 8, 0, 4]


def test_positions_within_documents_start_anew_and_count_real_tokens() -> None:
    documents = torch.tensor([[4, 4, 4, 2, 2, 7], [0, 0, 0, 0, 0, 1]])
    assert places_within(documents).tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 4, 0]]
    real = torch.tensor([[False, True, True, True, False, True], [True] * 3 + [False, True, True]])
    found = places_within(documents, real)
    assert found[real].tolist() == [0, 1, 0, 0, 0, 1, 2, 3, 0]
