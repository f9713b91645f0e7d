"""Learning rates by step; steps count from 1.

    inverse square root:  lr = d^-0.5 · min(step^-0.5, step · warmup^-1.5)       (factor in front)
    cosine:               linear to the peak over the warm-up, then
                          low + (peak − low)(1 + cos(π t))/2, t from 0 to 1 over the rest

Vaswani et al. 2017 (1706.03762) equation 3; Loshchilov & Hutter 2017 (1608.03983) equation 5. The
document's heading says the second and its code is the first (B623-628): here each has its name.
"""

import math
from collections.abc import Callable

from everyhead.training.sections import TrainRecipe

Schedule = Callable[[int], float]


def rate_at(step: int, recipe: TrainRecipe, d_model: int) -> float:
    """The recipe's learning rate at `step` ≥ 1."""
    r = recipe
    if r.schedule == "cosine":
        return cosine(step, peak=r.peak, warmup=r.warmup, total=r.max_steps, low=r.low)
    return inverse_square_root(step, d_model=d_model, warmup=r.warmup, factor=r.factor)


def _from_one(step: int) -> None:
    if step < 1:
        raise ValueError(f"steps count from 1; there is no learning rate for step {step}")


def inverse_square_root(step: int, *, d_model: int, warmup: int, factor: float = 1.0) -> float:
    """The paper's rate at `step` ≥ 1.

    Raises:
        ValueError: a step below 1.
    """
    _from_one(step)
    return factor * d_model**-0.5 * min(step**-0.5, step * max(warmup, 1) ** -1.5)


def cosine(step: int, *, peak: float, warmup: int, total: int, low: float = 0.0) -> float:
    """Warm-up and cosine decay at `step` ≥ 1; `low` after the last step.

    Raises:
        ValueError: a step below 1.
    """
    _from_one(step)
    if step <= warmup:
        return peak * step / warmup
    t = min((step - warmup) / max(total - warmup, 1), 1.0)
    return low + (peak - low) * (1 + math.cos(math.pi * t)) / 2
