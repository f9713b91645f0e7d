"""Axial positions against transformers' and against NumPy's way of counting in a grid."""

import numpy as np
import pytest
import torch

from everyhead.layers.axial import AxialPositions
from everyhead.layers.positions import places


@torch.no_grad()
def test_equals_transformers() -> None:
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    from transformers import ReformerConfig

    config = ReformerConfig(
        axial_pos_shape=(5, 7), axial_pos_embds_dim=(4, 12), hidden_size=16, is_decoder=True
    )
    theirs, ours = reformer.AxialPositionEmbeddings(config).eval(), AxialPositions((5, 7), (4, 12))
    for table, weight in zip(ours.tables, theirs.weights, strict=True):
        weight.copy_(table.view(weight.shape))
    for positions in (torch.arange(35)[None], torch.tensor([[3, 4, 5], [34, 0, 13]])):
        assert torch.equal(ours(positions), theirs(positions))


@torch.no_grad()
def test_any_number_of_axes_is_counted_as_a_grid_is() -> None:
    for shape, widths in (((6,), (3,)), ((2, 3), (1, 4)), ((2, 3, 4), (2, 5, 1))):
        positions = AxialPositions(shape, widths)
        got = positions(slice(None))
        assert got.shape == (positions.max_len, sum(widths))
        for p in range(positions.max_len):
            place = np.unravel_index(p, shape)
            rows = [table[int(i)] for table, i in zip(positions.tables, place, strict=True)]
            assert torch.equal(got[p], torch.cat(rows))
        assert torch.equal(positions(slice(1, 5)), got[1:5])


@torch.no_grad()
def test_padding_on_the_left_moves_no_token() -> None:
    positions, real = AxialPositions((3, 3), (2, 2)), torch.tensor([[False, False, True, True]])
    assert torch.equal(positions(places(real, 4))[0, 2:], positions(slice(0, 2)))


def test_half_a_million_positions_in_the_size_of_two_thousand() -> None:
    positions = AxialPositions((512, 1024), (64, 192))
    assert positions.max_len == 1 << 19
    assert sum(p.numel() for p in positions.parameters()) < 2048 * 256


def test_a_place_beyond_the_grid_is_an_error() -> None:
    positions = AxialPositions((3, 4), (2, 2))
    with pytest.raises(ValueError, match="3×4 has 12"):
        positions(slice(0, 13))
    with pytest.raises(IndexError):
        positions(torch.tensor([12]))
    for shape, widths in (((), ()), ((3,), (2, 2)), ((0, 3), (2, 2))):
        with pytest.raises(ValueError, match="each axis"):
            AxialPositions(shape, widths)
