"""What comes next, and what a sampler leaves of it: temperature, top-k, top-p.

    p = softmax(z / τ)      top-k: the k most likely; top-p: the fewest whose sum reaches p

Holtzman et al. 2020 (1904.09751) section 3.1: nucleus; Fan et al. 2018 (1805.04833): top-k. Both
cut the distribution at temperature τ, in this order, and what is left is made to sum to 1.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.errors import UserError

LEAST = 1e-3  # below it z / τ may leave what a number can hold


class Shape(NamedTuple):
    """How a sampler is set: temperature (0: the most likely alone), k (0: all), p."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def check(self) -> None:
        """
        Raises:
            UserError: a number that makes no sense.
        """
        if self.temperature != 0 and not LEAST <= self.temperature <= 100:  # NaN is neither
            raise UserError(
                f"The temperature is {self.temperature:g}; it must be 0 (the most likely alone) "
                f"or {LEAST:g} … 100."
            )
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}; it must be 0 (all) or more.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top-p is {self.top_p:g}; it must be above 0 and at most 1.")


def shaped(logits: Tensor, shape: Shape) -> Tensor:
    """Logits (V,) → probabilities (V,) that the sampler draws from, float64."""
    shape.check()
    z = logits.double()
    if shape.temperature == 0:
        return torch.nn.functional.one_hot(z.argmax(), len(z)).double()
    p = (z / shape.temperature).softmax(-1)
    order = p.argsort(descending=True)
    sorted_p = p[order]
    kept = torch.ones_like(sorted_p, dtype=torch.bool)
    if shape.top_k:
        kept[shape.top_k :] = False
    left = torch.where(kept, sorted_p, 0.0)
    before = left.cumsum(-1) - left
    kept &= before < shape.top_p * left.sum()
    left = torch.where(kept, sorted_p, 0.0)
    return torch.zeros_like(p).scatter(0, order, left / left.sum())
