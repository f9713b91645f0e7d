"""Token embeddings: row `id` of a table, times √d_model in the Transformer, as it is elsewhere.

Vaswani et al. 2017 (1706.03762) section 3.4, where the same table also makes the logits
(Press & Wolf 2017, 1608.05859; layers/heads.py). The row of padding is zero and stays zero.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class TokenEmbedding(nn.Module):
    """V rows of width C, drawn from N(0, 1/C), so that the scaled rows have variance 1.

    scale: √C by default; 1.0 where the family adds its rows as they are.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        pad_id: int | None = None,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.pad_id = pad_id
        self.scale = math.sqrt(d_model) if scale is None else scale
        nn.init.normal_(self.weight, std=d_model**-0.5)
        if pad_id is not None:
            nn.init.zeros_(self.weight[pad_id])

    def forward(self, ids: Tensor) -> Tensor:
        """ids int64 (…) → (…, C)."""
        rows = F.embedding(ids, self.weight, self.pad_id)
        return rows if self.scale == 1.0 else rows * self.scale
