"""Two streams that are run backwards: values and gradients of plain autograd, at a flat memory."""

import copy

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import chunked, masks, probe
from everyhead.layers.dropout import Dropout
from everyhead.layers.lsh import LshAttention
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.reversible import Reversible

WIDTH = 8


class Attending(nn.Module):
    def __init__(self, attention: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), attention
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        return self.dropout(self.attention(self.norm(x), mask))


def feeding(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 16), nn.GELU(), nn.Linear(16, WIDTH), Dropout(dropout)
    )


def lsh() -> nn.Module:
    return LshAttention(WIDTH, 2, n_buckets=4, n_rounds=2, chunk=3)


def exact() -> nn.Module:
    return MultiHeadAttention(WIDTH, 2)


def build(depth: int, attention=exact, dropout: float = 0.0) -> Reversible:  # type: ignore[no-untyped-def]
    return Reversible([(Attending(attention(), dropout), feeding(dropout)) for _ in range(depth)])


def plain(stack: Reversible, x1: Tensor, x2: Tensor, *given: object) -> tuple[Tensor, Tensor]:
    for f, g in zip(stack.f, stack.g, strict=True):
        x1 = x1 + f(x2, *given)
        x2 = x2 + g(x1)
    return x1, x2


def gradients(call, stack: Reversible, x: Tensor, *given: object) -> list[Tensor]:  # type: ignore[no-untyped-def]
    stack.zero_grad()
    x1, x2 = x.clone().requires_grad_(), (2 * x).requires_grad_()
    torch.manual_seed(3)
    y1, y2 = call(x1, x2, *given)
    (y1.square().sum() + (y2**3).sum()).backward()
    parameters = [p.grad for p in stack.parameters() if p.grad is not None]
    assert len(parameters) == len(list(stack.parameters()))
    return [y1.detach(), y2.detach(), x1.grad, x2.grad, *parameters]


@pytest.mark.parametrize("attention", [exact, lsh])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_values_and_gradients_are_plain_autograds_and_so_are_dropouts(attention, dropout) -> None:  # type: ignore[no-untyped-def]
    stack = build(3, attention, dropout).double().train()
    x = torch.randn(2, 11, WIDTH, dtype=torch.float64)
    given = (masks.causal(),)
    ours = gradients(stack, stack, x, *given)
    theirs = gradients(lambda *a: plain(stack, *a), stack, x, *given)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_gradcheck() -> None:
    stack = build(2, lsh).double()
    inputs = [torch.randn(1, 5, WIDTH, dtype=torch.float64, requires_grad=True) for _ in "12"]
    stacked = lambda *x: stack(*x, masks.causal())  # noqa: E731
    assert torch.autograd.gradcheck(stacked, inputs, fast_mode=True)


def test_hashes_are_those_of_the_forward_pass_when_it_is_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = build(2, lsh).double()
    x = torch.randn(1, 13, WIDTH, dtype=torch.float64)
    wanted = gradients(lambda *a: plain(stack, *a), stack, x)
    calls, hashed = [], chunked.hashed

    def once(k: Tensor, rotations: Tensor, factors: tuple[int, ...]) -> Tensor:
        calls.append(1)  # as if rounding had moved every token, were it asked a second time
        return hashed(k, rotations if len(calls) <= 2 else rotations.flip(1), factors)

    monkeypatch.setattr(chunked, "hashed", once)
    got = gradients(stack, stack, x)
    assert len(calls) == 2
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_memory_is_flat_in_depth() -> None:
    def kept(stack: Reversible, call) -> int:  # type: ignore[no-untyped-def]
        """Bytes that are saved for backward, parameters left out."""
        own = {p.data_ptr() for p in stack.parameters()}
        saved: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            if x.data_ptr() not in own:
                saved[x.data_ptr()] = x.numel() * x.element_size()
            return x

        x = torch.randn(2, 32, WIDTH, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            held = call(x, x)  # alive while it is counted, else an address would come twice
        assert len(held) == 2
        return sum(saved.values())

    ours = [kept(stack := build(depth), stack) for depth in (1, 2, 8)]
    assert ours[0] == ours[1] == ours[2] == 2 * 2 * 32 * WIDTH * 4
    theirs = [kept(s := build(depth), lambda *a, s=s: plain(s, *a)) for depth in (1, 2, 8)]
    assert theirs[2] > 6 * theirs[0] > 6 * ours[0]


def test_random_numbers_after_backward_are_those_that_were_to_come() -> None:
    stack, x = build(2, exact, 0.3).train(), torch.randn(1, 4, WIDTH, requires_grad=True)
    y1, y2 = stack(x, x)
    before = torch.get_rng_state()
    (y1 + y2).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_one_module_in_several_pairs_gets_the_sum_of_its_gradients() -> None:
    f, g = Attending(exact()), feeding()
    stack = Reversible([(f, g), (f, g)]).double()
    x = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    ours = gradients(stack, stack, x)
    theirs = gradients(lambda *a: plain(stack, *a), stack, x)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_an_observer_sees_each_attention_once_and_its_change_reaches_the_gradient() -> None:
    seen = []

    class Halving:
        def attention(self, module, parts, mask, attend):  # type: ignore[no-untyped-def]
            seen.append(module)
            return attend(parts, mask) / 2

    stack = build(2).double()
    x = torch.randn(1, 5, WIDTH, dtype=torch.float64)
    observer = Halving()
    probe.attach(observer)
    try:
        looked = gradients(stack, stack, x)
    finally:
        probe.detach(observer)
    assert [m is f.attention for m, f in zip(seen, stack.f, strict=True)] == [True, True]
    halved = copy.deepcopy(stack)
    with torch.no_grad():
        for f in halved.f:
            f.attention.o_proj.weight /= 2
    wanted = gradients(halved, halved, x)
    for a, b in zip(looked[:4], wanted[:4], strict=True):
        torch.testing.assert_close(a, b)


def test_autocast_is_the_same_the_second_time() -> None:
    stack, x = build(3), torch.randn(2, 6, WIDTH)

    def under(call):  # type: ignore[no-untyped-def]
        def run(*given: object) -> tuple[Tensor, Tensor]:
            with torch.autocast("cpu", torch.bfloat16):
                return call(*given)

        return run

    ours = gradients(under(stack), stack, x)
    theirs = gradients(under(lambda *a: plain(stack, *a)), stack, x)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2 * float(b.abs().max()))


def test_a_gradient_that_would_be_lost_is_refused_and_none_is_asked_for_without_need() -> None:
    stack, x = build(1), torch.randn(1, 4, WIDTH)
    with pytest.raises(ValueError, match="detach"):
        stack(x, x, torch.ones(1, requires_grad=True))
    with torch.no_grad():
        assert all(not y.requires_grad for y in stack(x, x))
    for y, wanted in zip(stack(x, x), plain(stack, x, x), strict=True):
        assert torch.equal(y, wanted)
