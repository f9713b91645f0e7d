"""The criteria of the jobs, as sums over a batch: teacher forcing, the next token, classes.

teacher forcing   −Σ_t log p(y_t | y_<t, x)         translation, T5; B614
next token        −Σ_t log p(w_t | w_<t)            GPT (Radford et al. 2018)
classes           −Σ_n log p(c_n | x_n)             and with smoothing as in objectives.py
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from everyhead.data.batching import Batch
from everyhead.data.token_rows import PackedBatch
from everyhead.training.objectives import TokenLoss, label_smoothed_loss

Hidden = Callable[..., Tensor]


def batch_loss(
    model: Any, batch: Batch, smoothing: float, hidden: Hidden | None = None
) -> TokenLoss:
    """Teacher forcing: the loss of every real label given the labels before it (B614)."""
    states = (hidden or model.real_hidden)(
        batch.source, batch.target_in, batch.source_mask, batch.target_mask
    )  # (N, C)
    head = model.output_head
    labels = batch.labels[batch.target_mask]  # (N,)
    return label_smoothed_loss(states, head.weight, head.bias, labels, smoothing=smoothing)


def class_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> TokenLoss:
    """Sums over N rows: logits (N, K), labels int64 (N,). No row: zeros, never NaN."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    smoothed, nll = (
        F.cross_entropy(logits, labels, reduction="sum", label_smoothing=epsilon)
        for epsilon in (smoothing, 0.0)
    )
    return TokenLoss(smoothed, nll.detach(), labels.shape[0])


def next_token_loss(
    model: Any, batch: PackedBatch, smoothing: float, hidden: Hidden | None = None
) -> TokenLoss:
    """The loss of every piece that follows from pieces of its own document."""
    documents = {} if batch.documents is None else {"documents": batch.documents}
    states = (hidden or model.real_hidden)(batch.ids, batch.mask, **documents)  # (N, C)
    learnt = batch.learnt if batch.mask is None else batch.learnt[batch.mask]
    learnt = learnt.flatten()  # (N,)
    if not bool(learnt.all()):
        states = states[learnt]
    head = model.output_head
    labels = batch.labels[batch.learnt]
    return label_smoothed_loss(states, head.weight, head.bias, labels, smoothing=smoothing)
