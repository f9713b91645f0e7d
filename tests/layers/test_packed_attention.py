"""Attention on packed rows is attention on their rectangle, gradients and all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from everyhead.layers import masks, multi_head, probe
from everyhead.layers.compiled import library
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packed_attention import LONGEST, can_attend
from everyhead.layers.packing import Packing

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler here")

Case = tuple[MultiHeadAttention, dict[str, object]]


def packing(lengths: list[int], longest: int = 0) -> Packing:
    longest = max(longest, *lengths)
    return Packing(torch.arange(longest) < torch.tensor(lengths)[:, None])


def case(kind: str, lengths: list[int], others: list[int], *, heads: int, d_head: int) -> Case:
    """An attention and what it is called with."""
    torch.manual_seed(sum(lengths))
    attention = MultiHeadAttention(12, heads, d_head=d_head)
    queries, keys = packing(lengths), packing(others)
    rows, memory = torch.randn(sum(lengths), 12), torch.randn(sum(others), 12)
    if kind == "cross":
        mask = masks.keys(keys.real, zeroed=True)
        sides = {"memory": memory, "packing": queries, "memory_packing": keys}
        return attention, {"x": rows, "mask": mask, **sides}
    real = masks.keys(queries.real, zeroed=True)
    mask = {"self": real, "causal": masks.causal(), "both": masks.causal() & real}[kind]
    return attention, {"x": rows, "mask": mask, "packing": queries}


def results(attention: MultiHeadAttention, given: dict[str, object]) -> list[Tensor]:
    """The output and every gradient."""
    leaves = [x.requires_grad_() for x in given.values() if isinstance(x, Tensor)]
    attention.zero_grad()
    for x in leaves:
        x.grad = None
    out = attention(**given)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=out.dtype).cos().view_as(out))
    found = [out.detach(), *(x.grad for x in leaves), *(p.grad for p in attention.parameters())]
    return [x.double().clone() for x in found if x is not None]


def in_float64(attention: MultiHeadAttention, given: dict[str, object]) -> list[Tensor]:
    """By the rectangle: the programs compute in float32 alone."""
    wide = {k: x.detach().double() if isinstance(x, Tensor) else x for k, x in given.items()}
    return results(attention.double(), wide)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of the packed form."""
    calls, plain = [], multi_head.attend_packed
    monkeypatch.setattr(
        multi_head, "attend_packed", lambda *given: (calls.append(""), plain(*given))[1]
    )
    return calls


@pytest.mark.parametrize("kind", ["self", "causal", "both", "cross"])
@pytest.mark.parametrize(
    ("lengths", "others"),
    [([3, 1, 7], [2, 9, 1]), ([1], [1]), ([40, 17, 1, 33], [1, 25, 2, 41]), ([128, 5], [3, 127])],
)
@pytest.mark.parametrize(("heads", "d_head"), [(3, 4), (2, 16), (1, 37)])
def test_outputs_and_gradients_are_those_in_float64(
    counted: list[str],
    kind: str,
    lengths: list[int],
    others: list[int],
    heads: int,
    d_head: int,
) -> None:
    attention, given = case(kind, lengths, others, heads=heads, d_head=d_head)
    found = results(attention, given)
    assert len(counted) == 1
    wanted = in_float64(attention, given)
    assert len(counted) == 1 and len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6).flatmap(
        lambda one: st.tuples(
            st.just(one), st.lists(st.integers(1, 20), min_size=len(one), max_size=len(one))
        )
    ),
    st.sampled_from(["self", "causal", "both", "cross"]),
)
@settings(max_examples=40, deadline=None)
def test_any_lengths(sides: tuple[list[int], list[int]], kind: str) -> None:
    attention, given = case(kind, *sides, heads=2, d_head=8)
    found, wanted = results(attention, given), in_float64(attention, given)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_sentences_without_a_row_get_nothing_and_give_nothing() -> None:
    attention, given = case("self", [3, 0, 2], [1], heads=2, d_head=4)
    for one, other in zip(results(attention, given), in_float64(attention, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_sentence_that_asks_an_empty_one_gets_zeros() -> None:
    attention, given = case("cross", [3, 2], [0, 2], heads=2, d_head=4)
    torch.nn.init.eye_(attention.o_proj.weight[:8, :8].detach())
    found = results(attention, given)
    assert torch.equal(found[0][:3], attention.o_proj.bias.detach().double().expand(3, -1))
    assert all(x.isfinite().all() for x in found)
    assert not found[1][:3].any()  # such queries have no gradient


@pytest.mark.parametrize("change", [slice(1, None), [0, *range(8)]])
def test_rows_that_are_not_the_packings_are_refused(change: object) -> None:
    attention, given = case("self", [5, 3], [1], heads=2, d_head=4)
    with pytest.raises(ValueError, match="one a token"):
        attention(**{**given, "x": given["x"][change]})


def test_how_many_threads_there_are_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for n in (1, 2, 3):
        attention, given = case("cross", [30, 9, 21, 4], [7, 26, 3, 11], heads=3, d_head=8)
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n: n)
        found.append(results(attention, given))
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other))  # noqa: B905


def test_the_future_is_never_seen() -> None:
    attention, given = case("causal", [9, 12], [1], heads=2, d_head=8)
    before = attention(**given)
    x = given["x"].clone()
    x[6:9] = 100.0
    after = attention(**{**given, "x": x})
    assert torch.equal(before[:6], after[:6]) and torch.equal(before[9:], after[9:])
    assert not torch.equal(before[6:9], after[6:9])


def test_other_masks_and_long_sentences_go_the_usual_way() -> None:
    queries, keys = packing([3, 2]), packing([4, 1])
    own = masks.keys(keys.real, zeroed=True)
    assert can_attend(own, queries, keys) and can_attend(masks.causal(), queries, queries)
    others: list[Mask | None] = [
        None,
        masks.causal(),  # over another side
        masks.keys(keys.real.clone()),  # perhaps another padding
        own & masks.window(1, 1),
        masks.keys(queries.real),
    ]
    assert not any(can_attend(mask, queries, keys) for mask in others)
    assert not can_attend(masks.causal(1), queries, queries)
    assert not can_attend(own, None, keys) and not can_attend(own, queries, None)
    long = packing([3, LONGEST + 1])
    assert not can_attend(masks.causal(), long, long)


class Watcher:
    """Looks, and changes nothing."""

    def attention(self, module, parts, mask, attend):  # type: ignore[no-untyped-def]
        self.shape = parts.q.shape
        return attend(parts, mask)


@pytest.mark.parametrize("kind", ["causal", "cross"])
def test_who_looks_sees_the_parts_and_changes_no_bit(counted: list[str], kind: str) -> None:
    attention, given = case(kind, [5, 3], [4, 6], heads=2, d_head=8)
    wanted, watcher = results(attention, given), Watcher()
    probe.attach(watcher)
    try:
        found = results(attention, given)
    finally:
        probe.detach(watcher)
    assert watcher.shape == (2, 2, 5, 8) and len(counted) == 2
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


class Changer:
    """Adds one to every value."""

    def attention(self, module, parts, mask, attend):  # type: ignore[no-untyped-def]
        return attend(parts._replace(v=parts.v + 1), mask)


def test_who_changes_the_parts_gets_what_the_changed_parts_give() -> None:
    attention, given = case("self", [5, 3], [1], heads=2, d_head=8)
    attention.o_proj.weight.detach().copy_(torch.eye(12, 16))
    wanted = attention(**given) + 1
    probe.attach(changer := Changer())
    try:
        found = attention(**given)
    finally:
        probe.detach(changer)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_dropped_weights_and_other_types_go_the_usual_way(counted: list[str]) -> None:
    attention, given = case("causal", [5, 3], [1], heads=2, d_head=8)
    attention.dropout = 0.1
    attention(**given)
    assert not counted
    attention.eval()(**given)
    assert len(counted) == 1
    with torch.autocast("cpu", torch.bfloat16):
        attention(**given)
    attention.double()(**{**given, "x": given["x"].double()})
    assert len(counted) == 1


@pytest.mark.parametrize("kind", ["self", "causal", "both", "cross"])
@pytest.mark.parametrize("frozen", ["", "q_proj", "k_proj v_proj"])
def test_defect_a_gradient_of_the_gradient_is_that_in_float64(kind: str, frozen: str) -> None:
    """A penalty on gradients: the program's own gradient had none."""
    attention, given = case(kind, [3, 1, 7], [2, 9, 1], heads=2, d_head=4)
    for name in frozen.split():
        getattr(attention, name).requires_grad_(False)
    found = []
    for dtype in (torch.float32, torch.float64):
        attention.to(dtype).zero_grad()
        told = {k: x.detach().to(dtype) if isinstance(x, Tensor) else x for k, x in given.items()}
        told["x"].requires_grad_()
        asked = [told["x"], *(p for p in attention.parameters() if p.requires_grad)]
        grads = torch.autograd.grad(attention(**told).sin().sum(), asked, create_graph=True)
        sum(g.square().sum() for g in grads).backward()
        found.append([x.grad.double().clone() for x in asked if x.grad is not None])
    assert len(found[0]) == len(found[1]) > 4
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
