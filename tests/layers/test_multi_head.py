"""Multi-head attention: project, attend, join, against the reference."""

import numpy as np
import pytest
import torch
from torch import nn

from everyhead import reference
from everyhead.layers import masks
from everyhead.layers.multi_head import MultiHeadAttention
from tests.layers.oracles import PATHS, lengths_mask, on_path


def parameters(layer: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().double().numpy() for name, p in layer.named_parameters()}


@pytest.mark.parametrize("memory", [False, True])
def test_multi_head_attention_equals_the_reference(memory: bool) -> None:
    layer = MultiHeadAttention(12, 3).double()
    for p in layer.parameters():
        nn.init.normal_(p)
    x = torch.randn(2, 4, 12, dtype=torch.float64)
    m = torch.randn(2, 6, 12, dtype=torch.float64) if memory else x
    real = lengths_mask([m.shape[1], 2], m.shape[1])
    out = layer(x, masks.keys(real), m if memory else None)
    see = reference.padding_mask(real.numpy())
    expected, _ = reference.multi_head_attention(
        parameters(layer), x.numpy(), m.numpy(), see, n_heads=3
    )
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_kv_heads", [None, 1, 2])
@pytest.mark.parametrize("d_head", [None, 5])
def test_sizes_of_the_projections(n_kv_heads: int | None, d_head: int | None) -> None:
    layer = MultiHeadAttention(16, 4, n_kv_heads=n_kv_heads, d_head=d_head, bias=False)
    width, groups = d_head or 4, n_kv_heads or 4
    assert layer.q_proj.weight.shape == (4 * width, 16)
    assert layer.k_proj.weight.shape == layer.v_proj.weight.shape == (groups * width, 16)
    assert layer.o_proj.weight.shape == (16, 4 * width)
    assert all(name.endswith("weight") for name, _ in layer.named_parameters())
    assert layer(torch.randn(2, 3, 16)).shape == (2, 3, 16)
    parts = layer.project(torch.randn(2, 3, 16), torch.randn(2, 7, 16))
    assert parts.q.shape == (2, 4, 3, width)
    assert parts.k.shape == parts.v.shape == (2, groups, 7, width)


def test_project_is_the_three_maps_one_by_one() -> None:
    layer = MultiHeadAttention(8, 2)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    for m in (None, memory):
        parts = layer.project(x, m)
        source = x if m is None else m
        for ours, projection, rows in (
            (parts.q, layer.q_proj, x),
            (parts.k, layer.k_proj, source),
            (parts.v, layer.v_proj, source),
        ):
            alone = projection(rows).view(2, -1, 2, 4).transpose(1, 2)
            torch.testing.assert_close(ours, alone, rtol=0, atol=1e-6)


def test_rows_of_one_sentence_share_its_memory() -> None:
    layer = MultiHeadAttention(8, 2)
    x, memory = torch.randn(6, 4, 8), torch.randn(2, 5, 8)
    mask = masks.keys(lengths_mask([5, 3], 5))
    expected = layer(
        x, masks.keys(lengths_mask([5, 5, 5, 3, 3, 3], 5)), memory.repeat_interleave(3, 0)
    )
    torch.testing.assert_close(layer(x, mask, memory), expected, rtol=0, atol=1e-6)


def test_rows_that_cannot_share_a_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="3 rows cannot share a memory of 2 sentences"):
        MultiHeadAttention(8, 2)(torch.randn(3, 4, 8), None, torch.randn(2, 5, 8))


def test_heads_that_do_not_divide_the_model_are_refused() -> None:
    with pytest.raises(ValueError, match="d_model 10 does not divide into 4 heads"):
        MultiHeadAttention(10, 4)
    assert MultiHeadAttention(10, 4, d_head=3)(torch.randn(1, 2, 10)).shape == (1, 2, 10)


def test_kv_heads_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="3 kv heads cannot serve 4 heads"):
        MultiHeadAttention(8, 4, n_kv_heads=3)


def test_projections_start_without_bias_and_as_thirds_of_one_matrix() -> None:
    torch.manual_seed(0)
    layer, peer = MultiHeadAttention(256, 4), torch.nn.MultiheadAttention(256, 4)
    for projection in (layer.q_proj, layer.k_proj, layer.v_proj):
        assert torch.equal(projection.bias, torch.zeros(256))
        ratio = projection.weight.var() / peer.in_proj_weight.var()
        assert abs(ratio.item() - 1) < 0.05
    assert abs(layer.o_proj.weight.var().item() * 256 - 1) < 0.05
    assert not torch.equal(layer.q_proj.weight, layer.k_proj.weight)


@pytest.mark.parametrize("path", PATHS)
def test_dropout_is_off_in_eval_and_two_evaluations_are_bit_equal(path: str) -> None:
    layer = MultiHeadAttention(8, 2, dropout=0.5)
    x = torch.randn(2, 5, 8)
    with on_path(path):
        a, b = layer.train()(x), layer(x)
        assert not torch.equal(a, b)
        a, b = layer.eval()(x), layer(x)
    assert torch.equal(a, b)
    still = MultiHeadAttention(8, 2)
    still.load_state_dict(layer.state_dict())
    with on_path(path):
        assert torch.equal(still.train()(x), a)
