"""Contrast of pictures and texts: each picture picks its texts among the batch's, and each text.

    loss = ½ (−Σ_i log softmax_j(z_ij) at the right j  −  Σ_j log softmax_i(z_ij) at the right i)

Radford et al. 2021 (2103.00020) figure 3, as sums over the batch's B pairs. Where several pairs say
the same thing, each of them is right, with an equal share (Yang et al. 2022, 2204.03610 equation
2); with all pairs different it is CLIP's own. exp(t) is kept to at most 100 (section 2.5): t is cut
back before each step that uses it.
"""

import math
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from everyhead.models.clip import LARGEST_SCALE
from everyhead.training.objectives import TokenLoss


class PairBatch(NamedTuple):
    """pixels (B, ch, H, W), ids and mask (B, T), meanings (B,): equal where pairs say the same."""

    pixels: Tensor
    ids: Tensor
    mask: Tensor
    meanings: Tensor

    @property
    def n_target(self) -> int:
        return self.ids.shape[0]

    def to(self, device: torch.device | str) -> Self:
        return type(self)(*(x.to(device) for x in self))


def contrast(logits: Tensor, meanings: Tensor) -> Tensor:
    """The loss of logits (B, B), pictures by texts, summed over the B pairs."""
    same = (meanings[:, None] == meanings).to(logits.dtype)  # (B, B)
    right = same / same.sum(1, keepdim=True)
    of_pictures, of_texts = logits.log_softmax(1), logits.t().log_softmax(1)
    return -0.5 * (right * (of_pictures + of_texts)).sum()


def pair_loss(model: Any, batch: PairBatch, smoothing: float) -> TokenLoss:
    """CLIP's loss; smoothing is not used."""
    with torch.no_grad():
        model.log_scale.clamp_(max=math.log(LARGEST_SCALE))
    logits = model(batch.pixels, batch.ids, batch.mask)
    loss = contrast(logits.float() if logits.dtype.itemsize < 4 else logits, batch.meanings)
    return TokenLoss(loss, loss.detach(), batch.n_target)
