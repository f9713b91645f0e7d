"""Packed rows: there and back, and gradients equal to those of the padded computation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing, only_right, packing_of
from tests.layers.oracles import lengths_mask


def holes() -> Tensor:
    """Padding right, left, in the middle, nowhere and everywhere."""
    rows = ["1100", "0011", "1011", "1111", "0000"]
    return torch.tensor([[c == "1" for c in row] for row in rows])


def test_pack_keeps_the_real_rows_in_order_and_unpack_puts_them_back() -> None:
    real = holes()
    x = torch.randn(5, 4, 3)
    packing = Packing(real)
    packed = packing.pack(x)
    assert torch.equal(packed, x[real])
    assert torch.equal(packing.unpack(packed), x.masked_fill(~real[..., None], 0))


def test_positions_count_real_tokens_only() -> None:
    assert Packing(holes()).positions.tolist() == [0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 3]


def test_spread_splits_heads_as_the_rectangle_does() -> None:
    real, heads, width = holes(), (2, 1, 1), 3
    packing = Packing(real)
    x = torch.randn(5, 4, sum(heads) * width)
    parts = packing.spread(packing.pack(x), heads, width)
    rectangle = x.unflatten(-1, (sum(heads), width)).transpose(1, 2).split(heads, 1)
    for ours, wanted in zip(parts, rectangle, strict=True):
        assert ours.shape == wanted.shape and ours.is_contiguous()
        seen = real[:, None].expand(ours.shape[:3])
        assert torch.equal(ours[seen], wanted[seen])


def test_a_padded_place_repeats_the_first_row_of_its_own_sentence() -> None:
    packing = Packing(lengths_mask([1, 3], 3))
    x = torch.arange(4.0)[:, None]  # rows 0 | 1 2 3
    (part,) = packing.spread(x, (1,), 1)
    assert part[:, 0, :, 0].tolist() == [[0, 0, 0], [1, 2, 3]]


@pytest.mark.parametrize("lengths", [[0, 2, 0], [2, 0, 0], [0, 0, 3]])
def test_an_empty_sentence_holds_finite_rows_wherever_it_stands(lengths: list[int]) -> None:
    packing = Packing(lengths_mask(lengths, 3))
    (part,) = packing.spread(torch.ones(sum(lengths), 4), (2,), 2)
    assert torch.equal(part, torch.ones(3, 2, 3, 2))


def test_join_is_the_inverse_of_spread() -> None:
    packing = Packing(holes())
    x = torch.randn(packing.index.numel(), 8)
    (part,) = packing.spread(x, (4,), 2)
    assert torch.equal(packing.join(part), x)


def test_pack_unpack_and_join_pass_their_gradients() -> None:
    packing = Packing(holes())
    x = torch.randn(5, 4, 6, dtype=torch.float64, requires_grad=True)
    y = torch.randn(packing.index.numel(), 6, dtype=torch.float64, requires_grad=True)
    z = torch.randn(5, 3, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(packing.pack, x)
    assert torch.autograd.gradcheck(packing.unpack, y)
    assert torch.autograd.gradcheck(packing.join, z)


def test_spread_passes_the_gradients_of_real_places_alone() -> None:
    packing = Packing(lengths_mask([2, 3], 3))
    x = torch.randn(5, 2, requires_grad=True)
    (part,) = packing.spread(x, (1,), 2)
    (grad,) = torch.autograd.grad(part, x, torch.ones_like(part))
    assert torch.equal(grad, torch.ones(5, 2))


def attend_both_ways(layer: MultiHeadAttention, real: Tensor, memory_real: Tensor | None):
    """Outputs at real tokens and gradients of inputs and weights: packed, then padded."""
    torch.manual_seed(0)
    x = torch.randn(*real.shape, 8, dtype=torch.float64)
    x = x.masked_fill(~real[..., None], 0)
    memory = None
    if memory_real is not None:
        memory = torch.randn(*memory_real.shape, 8, dtype=torch.float64)
        memory = memory.masked_fill(~memory_real[..., None], 0)
    upstream = torch.randn(int(real.sum()), 8, dtype=torch.float64)
    mask = masks.keys(real if memory_real is None else memory_real, zeroed=True)
    for packed in (True, False):
        leaves = [y.clone().requires_grad_() for y in (x, memory) if y is not None]
        a, m = leaves[0], leaves[1] if memory is not None else None
        packing = Packing(real) if packed else None
        memory_packing = Packing(memory_real) if packed and m is not None else None
        out = layer(
            a if packing is None else packing.pack(a),
            mask,
            m if memory_packing is None else memory_packing.pack(m),
            packing=packing,
            memory_packing=memory_packing,
        )
        out = out if packed else out[real]
        yield out, torch.autograd.grad(out, [*leaves, *layer.parameters()], upstream)


@pytest.mark.parametrize("n_kv_heads", [4, 2])
@pytest.mark.parametrize("cross", [False, True])
def test_packed_attention_and_its_gradients_are_the_padded_ones(
    cross: bool, n_kv_heads: int
) -> None:
    layer = MultiHeadAttention(8, 4, n_kv_heads=n_kv_heads).double()
    memory_real = lengths_mask([3, 6, 1, 2, 0], 6) if cross else None
    (out, grads), (expected, wanted) = attend_both_ways(layer, holes(), memory_real)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    for a, b in zip(grads, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_packed_rows_of_one_sentence_share_its_memory() -> None:
    layer = MultiHeadAttention(8, 2)
    real = lengths_mask([4, 2, 3, 1], 4)
    x, memory, memory_real = torch.randn(4, 4, 8), torch.randn(2, 5, 8), lengths_mask([5, 3], 5)
    packing = Packing(real)
    out = layer(packing.pack(x), masks.keys(memory_real), memory, packing=packing)
    expected = layer(x, masks.keys(memory_real), memory)
    torch.testing.assert_close(out, expected[real], rtol=0, atol=1e-6)


def test_rows_are_packed_where_there_is_padding_to_leave_out() -> None:
    assert packing_of(None) is None
    assert packing_of(lengths_mask([3, 3], 3)) is None
    assert packing_of(lengths_mask([0, 0], 3)) is None
    packing = packing_of(lengths_mask([2, 0], 3))
    assert packing is not None and packing.index.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rows", "right"),
    [
        (["110", "100"], True),
        (["111", "000", "100"], True),
        (["110", "011"], False),
        (["101", "111"], False),
        (["000", "001"], False),
        (["111"], True),
        (["000"], True),
    ],
)
def test_padding_on_the_right_alone_is_told_from_any_other(rows: list[str], right: bool) -> None:
    real = torch.tensor([[c == "1" for c in row] for row in rows])
    assert only_right(real, packing_of(real)) == right


def test_a_traced_graph_keeps_the_rectangle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    real = lengths_mask([2, 1], 3)
    assert packing_of(real) is None and not only_right(real, None)


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5),
    heads=st.lists(st.integers(1, 3), min_size=1, max_size=3),
)
def test_any_padding_goes_there_and_back(rows: list[list[bool]], heads: list[int]) -> None:
    rows[0][0] = True
    real = torch.tensor(rows)
    packing = Packing(real)
    x = torch.randn(*real.shape, sum(heads) * 2)
    packed = packing.pack(x)
    assert torch.equal(packing.unpack(packed)[real], x[real])
    parts = packing.spread(packed, tuple(heads), 2)
    joined = torch.cat([packing.join(part) for part in parts], -1)
    assert torch.equal(joined, packed)
