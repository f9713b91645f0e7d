"""From the last hidden state to logits: z = h Eᵀ + b.

E is the target embedding itself where the table is tied (1706.03762 section 3.4). b is no
parameter: it is −∞ at padding, which is therefore never predicted and takes no probability, and 0
elsewhere.
"""

import torch
from torch import Tensor, nn

from everyhead.layers.linear import linear


class VocabularyHead(nn.Module):
    """Logits over V pieces."""

    def __init__(
        self, vocab_size: int, d_model: int, *, tied: nn.Parameter | None, pad_id: int | None
    ) -> None:
        super().__init__()
        if tied is None:
            tied = nn.Parameter(torch.empty(vocab_size, d_model))
            nn.init.xavier_uniform_(tied)
        self.weight = tied
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(vocab_size))
        if pad_id is not None:
            self.bias[pad_id] = float("-inf")

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, C) → (…, V)."""
        return linear(hidden, self.weight, self.bias)
