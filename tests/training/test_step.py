"""One step: sums divided once, and nothing changed by a step that is not finite."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from everyhead.training.losses import batch_loss
from everyhead.training.metrics import perplexity
from everyhead.training.optimizers import make_optimizer, optimizer_tensors, set_rate
from everyhead.training.step import evaluate_loss, train_step
from tests.training import tiny


def new(dropout: float = 0.0):
    model = tiny.model(dropout=dropout)
    optimizer = make_optimizer(model, "adamw", weight_decay=0.1)
    set_rate(optimizer, 1e-2)
    return model, optimizer


def step(model, optimizer, batches, **changes):
    settings = {"loss": batch_loss, "smoothing": 0.1, "limit": 1.0, "precision": "fp32"} | changes
    return train_step(model, optimizer, batches, **settings)


class Keeps:
    """An optimizer that takes no step and leaves the gradients where they are."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def step(self) -> None: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...


# ---------------------------------------------------------------- law 6: a sum is divided once


@pytest.mark.parametrize("sizes", [(1, 1), (3, 1), (1, 2, 5)])
def test_accumulating_ragged_batches_is_one_large_batch(sizes: tuple[int, ...]):
    """Defect: accumulate 2×1 ≠ 1×2 for ragged samples."""
    ids, start, parts = tiny.pairs(), 0, []
    for size in sizes:
        parts.append(tiny.batch(ids, list(range(start, start + size))))
        start += size
    whole = [tiny.batch(ids, list(range(start)))]
    assert len({part.n_target / part.n_sentences for part in parts}) > 1
    outcomes = []
    for batches in (parts, whole):
        model = tiny.model(dropout=0.0).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        reports = [step(model, optimizer, batches) for _ in range(3)]
        outcomes.append((tiny.weights(model), [report[:4] for report in reports]))
    torch.testing.assert_close(outcomes[0], outcomes[1])


def test_the_gradient_is_that_of_the_mean_over_all_real_tokens():
    ids = tiny.pairs()
    model, _ = new()
    batches = [tiny.batch(ids, [0, 1, 2]), tiny.batch(ids, [3])]
    report = step(model, Keeps(model), batches, limit=None)
    ours = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    total = torch.zeros(())
    for i in range(4):  # sentence by sentence, so without any padding
        one = tiny.batch(ids, [i])
        logits = model(one.source, one.target_in)[0, :, : tiny.CONFIG.pad_id]
        total = total + F.cross_entropy(logits, one.labels[0], label_smoothing=0.1, reduction="sum")
    n_tokens = sum(len(row) + 1 for row in ids.target[:4])
    (total / n_tokens).backward()
    assert report.n_tokens == n_tokens
    assert report.smoothed == pytest.approx(total.item(), rel=1e-5)
    theirs = {name: p.grad for name, p in model.named_parameters()}
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_perplexity_does_not_depend_on_the_batch_size(size: int):
    """Defect: perplexity = exp(mean of means), padding counted."""
    model, ids = tiny.model(), tiny.pairs(17)
    evaluate = partial(evaluate_loss, model, precision="fp32", loss=batch_loss)
    nll, n_tokens = evaluate(tiny.batches(ids, size))
    alone = [evaluate([tiny.batch(ids, [i])]) for i in range(17)]
    assert n_tokens == sum(n for _, n in alone) == sum(len(row) + 1 for row in ids.target)
    expected = math.exp(sum(total for total, _ in alone) / n_tokens)
    assert perplexity(nll, n_tokens) == pytest.approx(expected, rel=1e-5)


def test_the_loss_stays_when_only_ids_under_the_padding_change():
    """Defect: a ragged batch's loss moves with the pad ids."""
    model = tiny.model(dropout=0.0)
    batch = tiny.batch(tiny.pairs(), [0, 1, 2, 3])
    assert not batch.source_mask.all() and not batch.target_mask.all()
    other = batch._replace(
        source=batch.source.masked_fill(~batch.source_mask, 5),
        target_in=batch.target_in.masked_fill(~batch.target_mask, 6),
        labels=batch.labels.masked_fill(~batch.target_mask, 7),
    )
    assert torch.equal(
        batch_loss(model, batch, 0.1).smoothed, batch_loss(model, other, 0.1).smoothed
    )


def test_the_end_of_sentence_has_a_label_and_the_padding_has_none():
    """Defect: pad = eos, labels masked by id, so the model never learns to stop."""
    model = tiny.model(dropout=0.0)
    batch = tiny.batch(tiny.pairs(), [0, 1, 2])
    loss = batch_loss(model, batch, 0.0)
    log_p = model(*batch[:1], batch.target_in, batch.source_mask, batch.target_mask).log_softmax(-1)
    by_hand = sum(
        -log_p[b, t, batch.labels[b, t]].item()
        for b in range(3)
        for t in range(batch.labels.shape[1])
        if batch.target_mask[b, t]
    )
    assert loss.nll.item() == pytest.approx(by_hand, rel=1e-5)
    assert (batch.labels[batch.target_mask] == 0).sum() == 3  # one </s> a sentence


def test_evaluation_is_without_dropout_or_smoothing_and_leaves_the_mode_as_it_was():
    model, batches = tiny.model(dropout=0.5), tiny.batches(tiny.pairs(), 5)
    model.train()
    state = torch.get_rng_state()
    first = evaluate_loss(model, batches, "fp32", loss=batch_loss)
    assert first == evaluate_loss(model, batches, "fp32", loss=batch_loss)
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    model.eval()
    evaluate_loss(model, batches, "fp32", loss=batch_loss)
    assert not model.training


# ---------------------------------------------------------------- steps that are not finite


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("limit", [1.0, None])
def test_a_step_that_is_not_finite_changes_neither_weights_nor_optimizer(where, limit):
    model, optimizer = new()
    batches = tiny.batches(tiny.pairs(8), 4)
    step(model, optimizer, batches)
    weights = tiny.weights(model)
    state = {k: t.clone() for k, t in optimizer_tensors(model, optimizer).items()}
    if where == "gradient":
        parameter = model.get_parameter("decoder.blocks.0.feed_forward.up_proj.bias")
        handle = parameter.register_hook(lambda grad: grad * float("inf"))
        report = step(model, optimizer, batches, limit=limit)
        handle.remove()
        assert math.isfinite(report.smoothed)
    else:
        report = step(model, optimizer, batches, limit=limit, loss=poisoned(model))
        assert math.isnan(report.smoothed)
    assert not report.finite
    assert tiny.same(weights, tiny.weights(model))
    assert tiny.same(state, optimizer_tensors(model, optimizer))
    assert all(p.grad is None for p in model.parameters())
    assert step(model, optimizer, batches).finite
    assert not tiny.same(weights, tiny.weights(model))


def poisoned(model):
    """The loss of hidden states of which one is NaN."""

    def hidden(*batch):
        states = model.real_hidden(*batch)
        return torch.cat([states[:-1], states[-1:] * float("nan")])

    return partial(batch_loss, hidden=hidden)


def test_bf16_is_close_to_float32_and_keeps_the_weights_float32():
    batches = tiny.batches(tiny.pairs(8), 4)
    reports = []
    for precision in ("fp32", "bf16"):
        model, optimizer = new()
        reports.append(step(model, optimizer, batches, precision=precision))
        assert all(p.dtype == torch.float32 for p in model.parameters())
    assert reports[1].smoothed == pytest.approx(reports[0].smoothed, rel=1e-2)
    assert reports[1].norm == pytest.approx(reports[0].norm, rel=5e-2)
    assert reports[1].smoothed != reports[0].smoothed


def test_the_limit_bounds_the_step_and_the_report_has_the_norm_before():
    batches = tiny.batches(tiny.pairs(8), 4)
    model, _ = new()
    free = step(model, Keeps(model), batches, limit=None)
    model.zero_grad()
    bound = step(model, Keeps(model), batches, limit=free.norm / 10)
    assert bound.norm == pytest.approx(free.norm, rel=1e-5)
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    assert norm.item() == pytest.approx(free.norm / 10, rel=1e-4)
