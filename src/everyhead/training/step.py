"""One optimizer step: Σ loss / Σ tokens over all of its batches, clipped, skipped if not finite."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.data.batching import Batch
from everyhead.models.transformer import Transformer
from everyhead.training.objectives import TokenLoss, label_smoothed_loss
from everyhead.training.optimizers import clip
from everyhead.training.precision import autocast

Hidden = Callable[..., Tensor]


class StepReport(NamedTuple):
    """Sums over the step's real target tokens, the gradients' norm, and whether it was taken."""

    smoothed: float
    nll: float
    n_tokens: int
    norm: float
    finite: bool


def batch_loss(
    model: Transformer, batch: Batch, smoothing: float, hidden: Hidden | None = None
) -> TokenLoss:
    """Teacher forcing: the loss of every real label given the labels before it (B614)."""
    states = (hidden or model.real_hidden)(
        batch.source, batch.target_in, batch.source_mask, batch.target_mask
    )  # (N, C)
    head = model.output_head
    labels = batch.labels[batch.target_mask]  # (N,)
    return label_smoothed_loss(states, head.weight, head.bias, labels, smoothing=smoothing)


def train_step(
    model: Transformer,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Batch],
    *,
    smoothing: float,
    limit: float | None,
    precision: str,
    hidden: Hidden | None = None,
) -> StepReport:
    """Forward, backward and update over `batches`, which count as one.

    A loss or gradient that is not finite leaves the weights and the optimizer as they were.
    """
    device = next(model.parameters()).device
    n_tokens = sum(batch.n_target for batch in batches)
    smoothed = nll = 0.0
    for batch in batches:
        batch = batch.to(device)
        with autocast(precision, device):
            loss = batch_loss(model, batch, smoothing, hidden)
        loss.smoothed.backward(loss.smoothed.new_tensor(1 / max(n_tokens, 1)))
        smoothed += float(loss.smoothed.detach())
        nll += float(loss.nll)
    norm = float(clip(model.parameters(), limit))
    finite = all(map(torch.isfinite, torch.tensor([smoothed, norm])))
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepReport(smoothed, nll, n_tokens, norm, finite)


@torch.no_grad()
def evaluate_loss(
    model: Transformer, batches: Sequence[Batch], precision: str
) -> tuple[float, int]:
    """Σ −log p and Σ tokens over the batches, without dropout or smoothing."""
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    total, n_tokens = 0.0, 0
    for batch in batches:
        with autocast(precision, device):
            loss = batch_loss(model, batch.to(device), 0.0)
        total, n_tokens = total + float(loss.nll), n_tokens + loss.n_tokens
    model.train(was_training)
    return total, n_tokens
