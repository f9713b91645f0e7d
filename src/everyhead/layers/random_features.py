"""Random features: φ with E[φ(q)·φ(k)] = exp(s·q·k), and a cheaper one of ReLU.

    φ(x) = exp(ω x' − |x'|²/2) / √m    x' = √s·x    ω (m, D) orthogonal rows, each like N(0, 1)
    φ(x) = ReLU(ω x' / √m) + 10⁻³      the generalised attention

Choromanski et al. 2021 (2009.14794) lemma 1, sections 2.3 and 3.2. What all features of a query
have in common cancels in attention, 1/√m too, so it is left out; what those of a key have in common
is kept apart as `peak`, an exponent, so that nothing overflows. A floor of 10⁻²⁴ beside a largest
feature of 1 keeps every denominator from 0.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

KERNELS = ("softmax", "relu")
LOW = -1e30  # the peak of what is hidden, below all others
FLOOR, RELU_FLOOR = 1e-24, 1e-3


class Features(NamedTuple):
    """φ(x) = values · e^peak: values (B, H, n, m), peak (B, H, n)."""

    values: Tensor
    peak: Tensor


def orthogonal(n_features: int, d_head: int, generator: torch.Generator | None = None) -> Tensor:
    """ω (m, D): rows from N(0, 1), orthogonal to one another in groups of D. Section 3.2."""
    blocks = []
    for _ in range(-(-n_features // d_head)):
        drawn = nn.init.normal_(torch.zeros(d_head, d_head), generator=generator)
        q, r = torch.linalg.qr(drawn)
        blocks.append((q * r.diagonal().sign()).T)  # without the signs it is not uniform
    lengths = nn.init.normal_(torch.zeros(n_features, d_head), generator=generator).norm(dim=1)
    return torch.cat(blocks)[:n_features] * lengths[:, None]


def features(x: Tensor, projection: Tensor, *, scale: float, kernel: str) -> Features:
    """x (B, H, n, D), at least float32, and ω (m, D) → its features."""
    logits = x @ (projection.to(x.dtype) * scale**0.5).T  # (B, H, n, m)
    if kernel == "relu":
        values = (logits * logits.shape[-1] ** -0.5).relu() + RELU_FLOOR
        return Features(values, logits.new_zeros(logits.shape[:-1]))
    largest = logits.detach().amax(-1, keepdim=True)
    peak = largest[..., 0] - x.square().sum(-1) * (scale / 2)
    if torch.is_grad_enabled():
        values = (logits - largest).exp() + FLOOR
    else:
        values = logits.sub_(largest).exp_().add_(FLOOR)  # passes over memory cost more than sums
    return Features(values, peak.clamp_min(LOW / 10))
