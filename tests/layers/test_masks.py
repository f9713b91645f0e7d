"""Mask rules: each against one comparison of numbers, joined, shifted, cut into rows."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.attention import attention
from everyhead.layers.masks import Mask
from tests.layers.oracles import PATHS, lengths_mask, on_path, qkv

CPU = torch.device("cpu")


def matrix(mask: Mask, n_queries: int, n_keys: int, batch: int = 1) -> Tensor:
    """All rows, bool (B, T, S)."""
    return mask.rows(n_queries, n_keys, CPU).expand(batch, 1, n_queries, n_keys)[:, 0]


def table(n_queries: int, n_keys: int, rule) -> Tensor:
    rows = [[bool(rule(i, j)) for j in range(n_keys)] for i in range(n_queries)]
    return torch.tensor(rows).view(1, n_queries, n_keys)


SIZES = [(1, 1), (1, 4), (3, 3), (2, 5), (5, 2)]


@pytest.mark.parametrize(("n_queries", "n_keys"), SIZES)
def test_causal_counts_from_the_end_of_the_keys(n_queries: int, n_keys: int) -> None:
    wanted = table(n_queries, n_keys, lambda i, j: j <= i + n_keys - n_queries)
    assert torch.equal(matrix(masks.causal(), n_queries, n_keys), wanted)


@pytest.mark.parametrize("offset", [0, 1, 3, -1])
def test_causal_with_an_offset_of_ones_own(offset: int) -> None:
    wanted = table(3, 6, lambda i, j: j <= i + offset)
    assert torch.equal(matrix(masks.causal(offset), 3, 6), wanted)


@pytest.mark.parametrize(("n_queries", "n_keys"), SIZES)
@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (2, 1), (0, 9)])
def test_window(left: int, right: int, n_queries: int, n_keys: int) -> None:
    offset = n_keys - n_queries
    wanted = table(n_queries, n_keys, lambda i, j: -left <= j - (i + offset) <= right)
    assert torch.equal(matrix(masks.window(left, right), n_queries, n_keys), wanted)
    shifted = table(n_queries, n_keys, lambda i, j: -left <= j - (i + 2) <= right)
    assert torch.equal(matrix(masks.window(left, right, 2), n_queries, n_keys), shifted)


def test_keys_are_the_same_for_every_query() -> None:
    real = lengths_mask([4, 0, 2], 4)
    seen = masks.keys(real).rows(3, 4, CPU)
    assert seen.shape == (3, 1, 1, 4)
    assert torch.equal(seen[:, 0, 0], real)


@pytest.mark.parametrize("offset", [None, 2])
def test_global_tokens_see_all_and_are_seen_by_all(offset: int | None) -> None:
    marked = torch.tensor([[True, False, False, True], [False] * 4])
    seen = matrix(masks.global_tokens(marked, offset), 2, 4, batch=2)
    for b in range(2):
        wanted = table(2, 4, lambda i, j, b=b: marked[b, i + 2] or marked[b, j])
        assert torch.equal(seen[b], wanted[0])


def test_global_tokens_in_a_buffer_longer_than_its_content() -> None:
    marked = torch.tensor([[True, False, False, False]])
    seen = matrix(masks.global_tokens(marked, 0), 2, 4)
    assert torch.equal(seen, table(2, 4, lambda i, j: i == 0 or j == 0))


def test_documents_keep_to_themselves() -> None:
    ids = torch.tensor([[7, 7, 2, 2, 2], [1, 2, 1, 2, 1]])
    seen = matrix(masks.documents(ids), 5, 5, batch=2)
    for b in range(2):
        wanted = table(5, 5, lambda i, j, b=b: ids[b, i] == ids[b, j])
        assert torch.equal(seen[b], wanted[0])
    cross = matrix(masks.documents(ids[:, 3:], ids), 2, 5, batch=2)
    assert torch.equal(cross, seen[:, 3:])


@pytest.mark.parametrize("shape", [(3, 4), (2, 1, 3, 4), (2, 5, 3, 4), (1, 1, 3, 4)])
def test_dense_is_the_matrix_itself(shape: tuple[int, ...]) -> None:
    own = torch.rand(shape) < 0.5
    seen = masks.dense(own).rows(3, 4, CPU)
    assert torch.equal(seen.expand(2, 5, 3, 4), own.expand(2, 5, 3, 4))


@pytest.mark.parametrize("shape", [(4,), (2, 3, 4), (1, 2, 2, 3, 4)])
def test_a_dense_mask_of_ambiguous_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="add the missing axis"):
        masks.dense(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_masks_of_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="pass additive terms as bias"):
        masks.dense(torch.zeros(3, 4, dtype=dtype))
    with pytest.raises(ValueError, match="a key mask is a bool tensor"):
        masks.keys(torch.ones(3, 4, dtype=dtype))


@pytest.mark.parametrize("shape", [(4,), (2, 1, 4), (2, 1, 1, 4)])
def test_a_key_mask_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a key mask is a bool tensor"):
        masks.keys(torch.ones(shape, dtype=torch.bool))


@pytest.mark.parametrize("shape", [(9, 4), (3, 9), (3, 1), (1, 4), (2, 1, 4, 4)])
def test_a_dense_mask_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="the dense mask is made for"):
        masks.dense(torch.ones(shape, dtype=torch.bool)).rows(3, 4, CPU)


def rules(n: int) -> dict[str, Mask]:
    return {
        "causal": masks.causal(),
        "window": masks.window(1, 1),
        "keys": masks.keys(lengths_mask([n, n - 1], n)),
        "globals": masks.global_tokens(lengths_mask([1, 2], n)),
        "documents": masks.documents(torch.tensor([[0] * (n - 2) + [1] * 2] * 2)),
        "dense": masks.dense(
            torch.rand(2, 3, n, n, generator=torch.Generator().manual_seed(0)) < 0.5
        ),
    }


PAIRS = list(itertools.combinations(rules(5), 2))


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_and_is_both_and_or_is_either(one: str, other: str) -> None:
    a, b = rules(5)[one], rules(5)[other]
    rows_a, rows_b = a.rows(5, 5, CPU), b.rows(5, 5, CPU)
    assert torch.equal((a & b).rows(5, 5, CPU), rows_a & rows_b)
    assert torch.equal((b & a).rows(5, 5, CPU), rows_a & rows_b)
    assert torch.equal((a | b).rows(5, 5, CPU), rows_a | rows_b)
    assert torch.equal(((a | b) & a).rows(5, 5, CPU).expand_as(rows_a & (rows_a | rows_b)),
                       rows_a & (rows_a | rows_b))  # fmt: skip


def test_and_with_nothing_changes_nothing() -> None:
    mask = masks.causal()
    assert (mask & None) is mask
    assert (mask & Mask()).rules == mask.rules
    assert Mask().rows(3, 4, CPU).expand(1, 1, 3, 4).all()


def test_or_of_joined_masks_is_refused() -> None:
    joined = masks.causal() & masks.window(1, 1)
    with pytest.raises(ValueError, match="two single rules"):
        joined | masks.causal()
    with pytest.raises(ValueError, match="two single rules"):
        masks.causal() | joined


@pytest.mark.parametrize("name", list(rules(5)))
def test_rows_asked_for_are_a_cut_of_all_rows(name: str) -> None:
    mask = rules(5)[name] & masks.window(3, 3)
    whole = mask.rows(5, 5, CPU).expand(2, 3, 5, 5)
    for rows in (slice(1, 3), slice(None), slice(4, 5), torch.tensor([3, 0])):
        cut = mask.rows(5, 5, CPU, rows)
        assert torch.equal(cut.expand(2, 3, -1, 5), whole[:, :, rows])


def test_key_mask_joins_the_padding_rules_and_no_others() -> None:
    a, b = lengths_mask([4, 2], 4), lengths_mask([3, 3], 4, left=True)
    assert masks.causal().key_mask is None
    assert masks.keys(a).key_mask is a
    both = masks.keys(a) & masks.causal() & masks.keys(b, zeroed=True)
    assert torch.equal(both.key_mask, a & b)
    assert both.unfilled is a
    assert masks.keys(a, zeroed=True).unfilled is None
    assert (masks.keys(a) | masks.window(1, 1)).key_mask is None


def test_only_causal_is_only_causal() -> None:
    real = masks.keys(lengths_mask([3], 3))
    assert masks.causal().only_causal
    own = masks.dense(torch.ones(3, 3, dtype=torch.bool))
    many = masks.global_tokens(lengths_mask([1], 3))
    for other in (masks.causal(0), masks.causal() & real, real, own, many, Mask()):
        assert not other.only_causal


def test_a_mask_is_immutable_and_its_leaves_are_tensors() -> None:
    real = lengths_mask([3], 3)
    mask = masks.keys(real)
    with pytest.raises(AttributeError):
        mask.rules = ()
    with pytest.raises(AttributeError):
        mask.rules[0].real = ~real
    leaves, spec = torch.utils._pytree.tree_flatten(mask & masks.causal())
    assert any(leaf is real for leaf in leaves)
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert torch.equal(again.rows(2, 3, CPU), (mask & masks.causal()).rows(2, 3, CPU))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("make", [masks.causal, lambda offset: masks.window(2, 0, offset)])
def test_a_buffer_longer_than_its_content_is_seen_up_to_the_content(make, path: str) -> None:
    """A cache hands out room for 9 keys, 5 of them written: the offset says where queries stand."""
    q, k, v = qkv(2, 2, 2, 8, n_keys=9)
    content, n_queries = 5, 2
    with on_path(path):
        out = attention(q, k, v, make(content - n_queries))
        expected = attention(q, k[:, :, :content], v[:, :, :content], make(None))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    n_queries=st.integers(1, 6),
    n_keys=st.integers(1, 6),
    left=st.integers(0, 4),
    right=st.integers(0, 4),
    offset=st.none() | st.integers(-3, 6),
    data=st.data(),
)
def test_any_mixture_of_rules_is_their_conjunction(
    n_queries: int, n_keys: int, left: int, right: int, offset: int | None, data: st.DataObject
) -> None:
    bits = st.lists(st.booleans(), min_size=n_keys, max_size=n_keys)
    real = torch.tensor([data.draw(bits), data.draw(bits)])
    mask = masks.causal(offset) & masks.keys(real) & masks.window(left, right, offset)
    at = n_keys - n_queries if offset is None else offset

    def seen(i: int, j: int, b: int) -> bool:
        return j <= i + at and bool(real[b, j]) and -left <= j - i - at <= right

    whole = matrix(mask, n_queries, n_keys, batch=2)
    for b in range(2):
        wanted = table(n_queries, n_keys, lambda i, j, b=b: seen(i, j, b))
        assert torch.equal(whole[b], wanted[0])


@pytest.mark.parametrize(("n_queries", "n_keys"), SIZES)
def test_a_prefix_is_seen_by_all_and_its_rules_hold_behind_it(n_queries: int, n_keys: int) -> None:
    offset = n_keys - n_queries
    wanted = table(n_queries, n_keys, lambda i, j: j < 2 or j == i + offset)
    mask = masks.prefix(2, masks.causal() & masks.window(0, 5))
    assert torch.equal(matrix(mask, n_queries, n_keys), wanted)


def test_a_prefix_before_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="before a rule"):
        masks.prefix(2, Mask())
