"""Cross-entropy with smoothed labels, summed over real tokens.

    q(v) = (1 − ε)·[v = y] + ε / V'        V' pieces that can be predicted: all but padding
    loss = −Σ_v q(v) log p(v) = lse(z) − (1 − ε) z_y − (ε / V') Σ_v z_v

Szegedy et al. 2016 (1512.00567) section 7; Vaswani et al. 2017 (1706.03762) section 5.4; B619. The
document's picture [ε, ε, 1−3ε, ε] spends ε on each wrong class; here ε is the whole mass.

Logits z = h Eᵀ are made in chunks of rows and turned into their own gradient at once, so the
logits of a batch never exist together and the matrix is passed over a few times, not a dozen.
The caller divides the sum once, by all real tokens of the step (law 6).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyhead.training.compiled_loss import can_compute, row_losses

# Entries of one chunk of logits: 16 MiB in float32. Fewer rows make slower products, more leave the
# cache of a processor.
CHUNK = 1 << 22


class TokenLoss(NamedTuple):
    """Sums over the real tokens: what is trained on, and −log p of the right piece."""

    smoothed: Tensor
    nll: Tensor
    n_tokens: int


def label_smoothed_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    smoothing: float = 0.0,
    pad_id: int | None = None,
) -> TokenLoss:
    """Loss of hidden states (N, C) under the head (weight (V, C), bias (V,), −∞ = never).

    labels int64 (N,). Rows labelled pad_id are left out. No rows: zeros, never NaN.

    Raises:
        ValueError: smoothing outside [0, 1), or counts that differ.
    """
    if not 0 <= smoothing < 1:
        raise ValueError(f"label smoothing is a share in [0, 1); got {smoothing}")
    if hidden.shape[0] != labels.shape[0]:
        raise ValueError(f"{hidden.shape[0]} hidden rows meet {labels.shape[0]} labels")
    if pad_id is not None and bool((labels == pad_id).any()):
        hidden, labels = hidden[labels != pad_id], labels[labels != pad_id]
    # Inside a custom function gradients are always off, so it must be told whether any is wanted.
    wanted = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    smoothed, nll = _ChunkedLoss.apply(hidden, weight, bias, labels, smoothing, wanted)
    return TokenLoss(smoothed, nll, labels.shape[0])


class _ChunkedLoss(torch.autograd.Function):
    """Both sums, with the gradients of the first made in the same pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        smoothing: float,
        wanted: bool,
    ) -> tuple[Tensor, Tensor]:
        dtype = _product_type(hidden)
        h = hidden.detach().to(dtype)
        head = _Head.of(weight.detach().to(dtype), bias)
        grad_h = torch.empty_like(h) if wanted else None
        grad_w = torch.zeros_like(weight) if wanted else None
        sums = torch.zeros(2, dtype=torch.float64, device=hidden.device)
        step = max(1, CHUNK // weight.shape[0])
        for start in range(0, h.shape[0], step):
            rows = slice(start, start + step)
            dz, losses = _chunk(h[rows], head, labels[rows], smoothing, wanted)
            sums += losses
            if grad_h is not None and grad_w is not None:
                dz = dz.to(dtype)
                torch.mm(dz, head.weight, out=grad_h[rows])  # (n, C)
                _add_product(grad_w, dz, h[rows])  # (V, C)
        if wanted:
            ctx.save_for_backward(grad_h, grad_w)
        ctx.types = hidden.dtype, weight.dtype
        smoothed, nll = sums.to(torch.promote_types(hidden.dtype, torch.float32)).unbind()
        ctx.mark_non_differentiable(nll)
        return smoothed, nll

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_h, grad_w = ctx.saved_tensors
        hidden_type, weight_type = ctx.types
        grads = (grad_h * grad).to(hidden_type), (grad_w * grad).to(weight_type)
        return *grads, None, None, None, None


class _Head(NamedTuple):
    """The head, and what each chunk would otherwise find out anew."""

    weight: Tensor  # (V, C)
    bias: Tensor | None  # (V,), None where the open pieces have none
    closed: Tensor  # pieces that can never be predicted
    n_open: int
    weight_sum: Tensor  # (C,) over open pieces: Σ_v z_v = h · Σ_v w_v + Σ_v b_v
    bias_sum: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> "_Head":
        if bias is None:
            bias = weight.new_zeros(weight.shape[0])
        bias = bias.detach().to(weight.dtype)
        is_open = torch.isfinite(bias)
        closed = (~is_open).nonzero()[:, 0]
        some = bias.masked_fill(~is_open, 0)
        wide = torch.promote_types(weight.dtype, torch.float32)
        weight_sum = weight.sum(0, dtype=wide) - weight[closed].sum(0, dtype=wide)
        n_open = weight.shape[0] - closed.numel()
        kept = bias if bool(some.any()) else None
        return cls(weight, kept, closed, n_open, weight_sum, some.sum(dtype=wide))

    def logits(self, h: Tensor) -> Tensor:
        """(n, C) → (n, V), at least float32, −∞ where closed."""
        w = self.weight.t()
        z = torch.mm(h, w) if self.bias is None else torch.addmm(self.bias, h, w)
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        return z.index_fill_(1, self.closed, float("-inf")) if self.closed.numel() else z


def _chunk(
    h: Tensor, head: _Head, labels: Tensor, smoothing: float, wanted: bool
) -> tuple[Tensor, Tensor]:
    """dloss/dz (n, V) of one chunk, and the two sums (2,)."""
    z = head.logits(h)  # (n, V)
    other = smoothing / head.n_open
    if can_compute(z):
        lse, picked = row_losses(z, labels, right=1 - smoothing, other=other, wanted=wanted)
        if wanted and head.closed.numel():
            z.index_fill_(1, head.closed, 0)
        return z, _sums(lse, picked, h, head, smoothing)
    picked = z.gather(1, labels[:, None])[:, 0]  # (n,)
    p = torch.softmax(z, 1)
    lse = z.amax(1) - p.amax(1).log()  # the largest p is at the peak: log p = z − lse
    if wanted:
        p -= other
        if head.closed.numel():
            p.index_fill_(1, head.closed, 0)
        p.scatter_add_(1, labels[:, None], p.new_full((p.shape[0], 1), smoothing - 1))
    return p, _sums(lse, picked, h, head, smoothing)


def _sums(lse: Tensor, picked: Tensor, h: Tensor, head: _Head, smoothing: float) -> Tensor:
    """Of the smoothed loss and of −log p, (2,), from each row's log Σ e^z and z of its label."""
    total = h.to(head.weight_sum.dtype) @ head.weight_sum + head.bias_sum  # (n,), Σ_v z_v
    smoothed = lse - (1 - smoothing) * picked - smoothing / head.n_open * total
    return torch.stack([loss.sum(dtype=torch.float64) for loss in (smoothed, lse - picked)])


def _add_product(total: Tensor, dz: Tensor, h: Tensor) -> None:
    """total += dzᵀ h."""
    if total.dtype == dz.dtype:
        total.addmm_(dz.t(), h)
    else:
        total += dz.t() @ h


def _product_type(x: Tensor) -> torch.dtype:
    """bf16 where autocast asks for it; products inside a custom function do not see it."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return x.dtype
