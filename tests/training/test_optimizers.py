"""Adam and AdamW are PyTorch's; decay, clipping, and the state by name."""

import pytest
import torch
from torch import nn

from everyhead.training.optimizers import (
    clip,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_rate,
)
from tests.training import tiny


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, n: int, seed: int = 0) -> None:
    torch.manual_seed(seed)
    for _ in range(n):
        optimizer.zero_grad()
        (model(torch.randn(3, 4)) - 1).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_equal_to_pytorchs_plain_loop_with_the_papers_numbers(kind: str):
    theirs = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    ours, plain = net(), net()
    optimizer = make_optimizer(ours, kind)
    set_rate(optimizer, 0.01)
    steps(ours, optimizer, 5)
    numbers = {"lr": 0.01, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.0}
    steps(plain, theirs(plain.parameters(), foreach=False, fused=False, **numbers), 5)
    torch.testing.assert_close(tiny.weights(ours), tiny.weights(plain))


def test_a_rate_of_zero_until_the_first_step_sets_it():
    model = net()
    before = tiny.weights(model)
    steps(model, make_optimizer(model, "adamw", weight_decay=0.5), 2)
    assert tiny.same(before, tiny.weights(model))


def test_adamw_decays_matrices_and_neither_norms_nor_biases():
    model = net()
    before = tiny.weights(model)
    optimizer = make_optimizer(model, "adamw", weight_decay=0.5)
    set_rate(optimizer, 0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for name, p in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if p.dim() > 1 else 1
        torch.testing.assert_close(p.detach(), before[name] * factor)


def test_what_is_frozen_stays():
    model = net()
    model[0].requires_grad_(False)
    optimizer = make_optimizer(model, "adam")
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 4


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="no optimizer 'sgd'; there are adam, adamw"):
        make_optimizer(net(), "sgd")


def test_the_state_by_name_goes_round_and_training_goes_on_bit_equal():
    one, other = net(), net()
    first, second = make_optimizer(one, "adamw"), make_optimizer(other, "adamw")
    set_rate(first, 0.01)
    set_rate(second, 0.01)
    steps(one, first, 3)
    other.load_state_dict(one.state_dict())
    tensors = optimizer_tensors(one, first)
    assert {"0.weight/exp_avg", "1.bias/exp_avg_sq", "2.bias/step"} <= tensors.keys()
    restore_optimizer(other, second, tensors)
    steps(one, first, 3, seed=5)
    steps(other, second, 3, seed=5)
    assert tiny.same(tiny.weights(one), tiny.weights(other))
    assert tiny.same(optimizer_tensors(one, first), optimizer_tensors(other, second))


def test_restored_state_is_a_copy():
    model = net()
    optimizer = make_optimizer(model, "adam")
    set_rate(optimizer, 0.01)
    steps(model, optimizer, 1)
    tensors = {name: t.clone() for name, t in optimizer_tensors(model, optimizer).items()}
    kept = {name: t.clone() for name, t in tensors.items()}
    restore_optimizer(model, optimizer, tensors)
    steps(model, optimizer, 1)
    assert tiny.same(tensors, kept)


def test_a_state_that_does_not_fit_is_refused_and_named():
    model = net()
    optimizer = make_optimizer(model, "adam")
    set_rate(optimizer, 0.01)
    steps(model, optimizer, 1)
    good = optimizer_tensors(model, optimizer)
    fresh = make_optimizer(model, "adam")
    with pytest.raises(ValueError, match=r"9\.weight, which the model lacks"):
        restore_optimizer(model, fresh, good | {"9.weight/exp_avg": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"no 0\.weight/exp_avg for \(8, 4\)"):
        restore_optimizer(model, fresh, good | {"0.weight/exp_avg": torch.zeros(4, 8)})
    del good["0.weight/exp_avg_sq"]
    with pytest.raises(ValueError, match=r"no 0\.weight/exp_avg_sq"):
        restore_optimizer(model, fresh, good)
    assert not fresh.state


@pytest.mark.parametrize("limit", [0.5, 1e9, None])
def test_clipping_is_pytorchs_and_gives_the_norm_before(limit: float | None):
    one, other = net(), net()
    for model in (one, other):
        (model(torch.ones(3, 4)) * 9).square().sum().backward()
    norm = clip(one.parameters(), limit)
    theirs = nn.utils.clip_grad_norm_(other.parameters(), limit or float("inf"))
    torch.testing.assert_close(norm, theirs)
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_a_norm_that_is_not_finite_leaves_the_gradients_as_they_are():
    model = net()
    model(torch.ones(3, 4)).sum().backward()
    model[0].weight.grad[0, 0] = float("nan")
    before = model[2].weight.grad.clone()
    assert torch.isnan(clip(model.parameters(), 0.1))
    assert torch.equal(before, model[2].weight.grad)
