"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3).

    x = E[ids] + P[positions]
    x ← x + attention(norm x)  ·  x ← x + FFN(norm x)  ·  logits = norm(x) Eᵀ

A Transformer's decoder without memory, with the norm before each sublayer and one more at the end,
learned positions, the tanh form of GELU, and the table of embeddings as the output's. GPT-3 (Brown
et al. 2020, 2005.14165, table 2.1) is the same but for sparse attention in every other layer,
which was never published in full: dense here.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers.blocks import Block, Stack
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.linear import Linear
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.positions import LearnedPositions
from everyhead.layers.residual import PreNorm
from everyhead.models.text_decoder import TextDecoder


class GPT2Config(BaseModel):
    """The numbers of the paper's table 2 and the choices in which published checkpoints differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(50_257, gt=0)
    d_model: int = Field(768, gt=0)
    n_heads: int = Field(12, gt=0)
    n_layers: int = Field(12, ge=0)
    d_ff: int | None = None  # None: 4 d_model
    max_len: int = Field(1024, gt=0)
    dropout: float = Field(0.1, ge=0, lt=1)  # of each sublayer's output
    embed_dropout: float | None = Field(None, ge=0, lt=1)  # None: as dropout
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    activation: Literal["gelu_tanh", "gelu", "relu", "silu"] = "gelu_tanh"
    norm_eps: float = 1e-5
    scale_by_layer: bool = False  # scores of layer i are divided by i + 1 too (Stanford's)
    tie_output: bool = True
    bos_id: int | None = None
    eos_id: int | None = None
    more_eos_ids: tuple[int, ...] = ()  # that end a text too
    pad_id: int | None = None  # what fills rows; the model itself knows no padding but the mask

    @model_validator(mode="after")
    def _resolve(self) -> "GPT2Config":
        if self.d_ff is None:
            object.__setattr__(self, "d_ff", 4 * self.d_model)
        if self.embed_dropout is None:
            object.__setattr__(self, "embed_dropout", self.dropout)
        return self


_COLUMNS = ("d_model", "n_heads", "n_layers", "max_len")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  #  C      H   L   T
        "tiny":      (64,    4,  2,  128),
        "small":     (768,   12, 12, 1024),  # 124 M
        "medium":    (1024,  16, 24, 1024),  # 355 M
        "large":     (1280,  20, 36, 1024),  # 774 M
        "xl":        (1600,  25, 48, 1024),  # 1.6 B
        "gpt3-175b": (12288, 96, 96, 2048),  # 175 B; for the meta device
    }.items()
}
# fmt: on


class GPT2(TextDecoder):
    """Next pieces by a causal stack: `hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        c = self.config = config

        def attention(layer: int) -> MultiHeadAttention:
            scale = (c.d_model // c.n_heads) ** -0.5 / (layer + 1 if c.scale_by_layer else 1)
            return MultiHeadAttention(
                c.d_model, c.n_heads, scale=scale, dropout=c.attention_dropout
            )

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model, eps=c.norm_eps)

        def block(layer: int) -> Block:
            feed_forward = FeedForward(c.d_model, c.d_ff or 4 * c.d_model, f=c.activation)
            return Block(attention(layer), feed_forward, residual=PreNorm(c.dropout), norm=norm)

        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.positions = LearnedPositions(c.max_len, c.d_model)
        self.embed_dropout = Dropout(c.embed_dropout or 0.0)
        self.decoder = Stack([block(i) for i in range(c.n_layers)], norm())
        tied = self.token_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """N(0, 0.02²); what is added to the residual stream is smaller by √(2 n_layers)."""
        for name, part in self.named_modules():
            if isinstance(part, Linear):
                last = name.endswith(("o_proj", "down_proj"))
                std = 0.02 / (2 * self.config.n_layers) ** 0.5 if last else 0.02
                nn.init.normal_(part.weight, std=std)
        for table in (self.token_embed, self.positions, self.output_head):
            nn.init.normal_(table.weight, std=0.02)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """E[ids] + P[positions]."""
        return self.embed_dropout(self.token_embed(ids) + self.positions(positions))
