"""One optimizer step: Σ loss / Σ count over all of its batches, clipped, skipped if not finite."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from everyhead.training.job import AnyBatch, LossOf, Measured, named, one_count
from everyhead.training.optimizers import clip
from everyhead.training.precision import autocast


class Part(NamedTuple):
    """One criterion over the whole step: what was trained on, Σ −log p, and their divisor."""

    smoothed: float
    nll: float
    n: int


class StepReport(NamedTuple):
    """Sums over the step's real targets, the gradients' norm, and whether it was taken."""

    smoothed: float
    nll: float
    n_tokens: int
    norm: float
    finite: bool
    parts: dict[str, Part]

    @property
    def loss(self) -> float:
        """What was trained on: each criterion's sum by its own count."""
        return sum(part.smoothed / max(part.n, 1) for part in self.parts.values())


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[AnyBatch],
    *,
    loss: LossOf,
    smoothing: float,
    limit: float | None,
    precision: str,
    counts: Callable[[Any], Mapping[str, int]] = one_count,
) -> StepReport:
    """Forward, backward and update over `batches`, which count as one.

    A loss or gradient that is not finite leaves the weights and the optimizer as they were.
    """
    device = next(model.parameters()).device
    divisors: Counter[str] = Counter()
    for batch in batches:
        divisors.update(counts(batch))
    sums = {name: [0.0, 0.0] for name in divisors}
    for batch in batches:
        with autocast(precision, device):
            found = named(loss(model, batch.to(device), smoothing))
        _backward(found, divisors)
        for name, each in found.items():
            sums[name][0] += float(each.smoothed.detach())
            sums[name][1] += float(each.nll)
    norm = float(clip(model.parameters(), limit))
    smoothed, nll = (sum(values) for values in zip(*sums.values(), strict=True))
    finite = all(map(torch.isfinite, torch.tensor([smoothed, norm])))
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    parts = {name: Part(sums[name][0], sums[name][1], n) for name, n in divisors.items()}
    n_tokens = sum(batch.n_target for batch in batches)
    return StepReport(smoothed, nll, n_tokens, norm, finite, parts)


def _backward(found: Mapping[str, Any], divisors: Mapping[str, int]) -> None:
    """Add the gradient of Σ_c smoothed_c / divisor_c."""
    learnt = {name: each.smoothed for name, each in found.items() if each.smoothed.requires_grad}
    if learnt:
        grads = [x.new_tensor(1 / max(divisors[name], 1)) for name, x in learnt.items()]
        torch.autograd.backward(list(learnt.values()), grads)


@torch.no_grad()
def evaluate_parts(
    model: nn.Module, batches: Sequence[AnyBatch], *, loss: LossOf, precision: str
) -> dict[str, Measured]:
    """Σ −log p and Σ count of each criterion over the batches, without dropout or smoothing."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    sums: dict[str, Measured] = {}
    for batch in batches:
        with autocast(precision, device):
            found = named(loss(model, batch.to(device), 0.0))
        for name, each in found.items():
            nll, n = sums.get(name, Measured(0.0, 0))
            sums[name] = Measured(nll + float(each.nll), n + each.n_tokens)
    model.train(was_training)
    return sums


def evaluate_loss(
    model: nn.Module, batches: Sequence[AnyBatch], precision: str, *, loss: LossOf
) -> tuple[float, int]:
    """As `evaluate_parts`, for a job with one criterion."""
    (only,) = evaluate_parts(model, batches, loss=loss, precision=precision).values()
    return only
