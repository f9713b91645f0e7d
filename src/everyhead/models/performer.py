"""Performer (Choromanski et al. 2021, 2009.14794): a language model in O(n).

    x = E[ids] + P[positions]
    x ← x + favor(norm x)  ·  x ← x + FFN(norm x)  ·  logits = norm(x) Eᵀ

GPT-2's decoder with random features in the place of softmax attention; in decoding, what was read
is a sum of fixed size. The paper replaces the attention of a model that is otherwise as it was; its
own models are post-norm. Positions are learned, or turn q and k (rotary), which have no end.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers.blocks import Block, Stack
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.favor import FavorAttention
from everyhead.layers.feature_cache import FeatureCache
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.linear import Linear
from everyhead.layers.norms import LayerNorm
from everyhead.layers.positions import LearnedPositions
from everyhead.layers.residual import PreNorm
from everyhead.layers.rotary import Rotary, Rotation
from everyhead.models.text_decoder import TextDecoder


class PerformerConfig(BaseModel):
    """GPT-2's numbers, how many features a head has, and of which kind."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(32_000, gt=0)
    d_model: int = Field(512, gt=0)
    n_heads: int = Field(8, gt=0)
    n_layers: int = Field(6, ge=0)
    d_ff: int | None = None  # None: 4 d_model
    max_len: int = Field(8192, gt=0)
    n_features: int = Field(256, gt=0)
    kernel: Literal["softmax", "relu"] = "softmax"
    positions: Literal["learned", "rotary"] = "learned"
    dropout: float = Field(0.1, ge=0, lt=1)
    activation: Literal["gelu_tanh", "gelu", "relu", "silu"] = "gelu_tanh"
    norm_eps: float = 1e-5
    tie_output: bool = True
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None  # what fills rows; the model itself knows no padding but the mask

    @model_validator(mode="after")
    def _resolve(self) -> "PerformerConfig":
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        return self


_COLUMNS = ("d_model", "n_heads", "n_layers", "d_ff", "max_len", "n_features")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  # C   H  L  F     T     m
        "tiny":      (64,  4, 2, 256,  128,  32),
        "regular":   (512, 8, 6, 2048, 8192, 256),  # the paper's, appendix A
    }.items()
}
# fmt: on


class Performer(TextDecoder):
    """Next pieces by a causal stack: `hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__()
        c = self.config = config

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model, eps=c.norm_eps)

        def block() -> Block:
            attention = FavorAttention(
                c.d_model, c.n_heads, n_features=c.n_features, kernel=c.kernel
            )
            feed_forward = FeedForward(c.d_model, c.d_ff or 4 * c.d_model, f=c.activation)
            return Block(attention, feed_forward, residual=PreNorm(c.dropout), norm=norm)

        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        learned = c.positions == "learned"
        self.positions = LearnedPositions(c.max_len, c.d_model) if learned else None
        self.rotary = None if learned else Rotary(c.d_model // c.n_heads)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack([block() for _ in range(c.n_layers)], norm())
        tied = self.token_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """As GPT-2: N(0, 0.02²), smaller by √(2 n_layers) where it is added to the stream."""
        for name, part in self.named_modules():
            if isinstance(part, Linear):
                last = name.endswith(("o_proj", "down_proj"))
                std = 0.02 / (2 * self.config.n_layers) ** 0.5 if last else 0.02
                nn.init.normal_(part.weight, std=std)
            elif isinstance(part, TokenEmbedding | VocabularyHead | LearnedPositions):
                nn.init.normal_(part.weight, std=0.02)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """E[ids] + P[positions]; rotary positions turn q and k instead."""
        x = self.token_embed(ids)
        return self.embed_dropout(x if self.positions is None else x + self.positions(positions))

    def rotation(self, positions: Tensor) -> Rotation | None:
        """cos and sin of each position's angles, where positions are rotary."""
        return None if self.rotary is None else self.rotary(positions)

    def redraw(self) -> None:
        """Other projections for all layers; see FavorAttention.redraw."""
        for part in self.modules():
            if isinstance(part, FavorAttention):
                part.redraw()

    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> FeatureCache:
        """An empty cache, as large for max_len positions as for one."""
        return FeatureCache(self.config.n_layers, max_len)
