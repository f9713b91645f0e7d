"""From the last hidden state to logits: z = h Eᵀ + b.

E is the target embedding itself where the table is tied (1706.03762 section 3.4). b is no
parameter: it is −∞ at padding, which is therefore never predicted and takes no probability, and 0
elsewhere.
"""

import torch
from torch import Tensor, nn

from everyhead.layers.feed_forward import activation
from everyhead.layers.linear import Linear, linear


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


class GapHead(nn.Module):
    """What stands in a gap: z = norm(f(h W + b)) Eᵀ + b_V; b_V is learnt, no piece is closed.

    Devlin et al. 2019 (1810.04805) section 3.1, as their published code has it.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        tied: nn.Parameter | None,
        f: str,
        norm: nn.Module,
    ) -> None:
        super().__init__()
        if tied is None:
            tied = nn.Parameter(torch.empty(vocab_size, d_model))
            nn.init.xavier_uniform_(tied)
        self.transform = Linear(d_model, d_model)
        self.activation = activation(f)
        self.norm = norm
        self.weight = tied
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def prepared(self, hidden: Tensor) -> Tensor:
        """(…, C) → (…, C), what the table is multiplied with."""
        return self.norm(self.activation(self.transform(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, C) → (…, V)."""
        return linear(self.prepared(hidden), self.weight, self.bias)
