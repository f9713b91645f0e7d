"""Patches against a convolution, positions between positions against Hugging Face."""

import pytest
import torch
import torch.nn.functional as F
from transformers import ViTConfig, ViTModel

from everyhead.layers.patches import GridPositions, Patches, cut, grid_of


@pytest.mark.parametrize(("channels", "patch", "size"), [(3, (4, 4), (8, 12)), (1, (2, 3), (6, 9))])
def test_one_product_is_a_convolution_of_stride_p(channels, patch, size) -> None:
    torch.manual_seed(0)
    layer = Patches(channels, 5, patch=patch).double()
    torch.nn.init.normal_(layer.proj.bias)
    pixels = torch.randn(2, channels, *size, dtype=torch.float64)
    kernel = layer.proj.weight.unflatten(1, (channels, *patch))
    wanted = F.conv2d(pixels, kernel, layer.proj.bias, stride=patch).flatten(2).transpose(1, 2)
    torch.testing.assert_close(layer(pixels), wanted, rtol=0, atol=1e-12)


def test_patches_are_read_from_the_top_each_row_from_left_to_right() -> None:
    pixels = torch.arange(16.0).view(1, 1, 4, 4)
    assert cut(pixels, (2, 2))[0].tolist() == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]


def test_a_picture_that_does_not_divide_is_refused_with_its_sizes() -> None:
    with pytest.raises(ValueError, match=r"30 × 32 pixels .* patches of 16 × 16: resize or crop"):
        grid_of((30, 32), (16, 16))


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (3, 8, 8), (2, 8, 8, 3)])
def test_other_channels_or_axes_are_refused_with_the_shape(shape) -> None:
    with pytest.raises(ValueError, match=r"pictures are \(batch, 3 channels, height, width\); got"):
        Patches(3, 4, patch=(4, 4))(torch.zeros(shape))


@pytest.mark.parametrize("size", [(8, 8), (16, 16), (8, 12), (12, 4), (20, 8)])
def test_positions_of_other_sizes_are_hugging_faces(size: tuple[int, int]) -> None:
    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=0,
        num_attention_heads=2,
        intermediate_size=8,
        image_size=8,
        patch_size=2,
    )
    theirs = ViTModel(config, add_pooling_layer=False).embeddings
    ours = GridPositions((4, 4), 8)
    with torch.no_grad():
        theirs.position_embeddings.normal_()
        ours.weight.copy_(theirs.position_embeddings[0])
    grid = grid_of(size, (2, 2))
    embeddings = torch.zeros(1, 1 + grid[0] * grid[1], 8)
    wanted = theirs.interpolate_pos_encoding(embeddings, *size)[0]
    torch.testing.assert_close(ours(grid), wanted, rtol=0, atol=1e-6)


def test_positions_of_a_grid_that_is_no_square_are_the_table_itself() -> None:
    positions = GridPositions((2, 4), 6, before=0)
    assert positions((2, 4)) is positions.weight
    assert positions((4, 2)).shape == (8, 6)  # as many places, others
    assert not torch.equal(positions((4, 2)), positions.weight)
