"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017, 1706.03762), figure 1.

    memory = encoder(√d·E_s[source] + PE)
    hidden = decoder(√d·E_t[target] + PE, memory)       logits = hidden E_tᵀ

Post-norm as in the paper, pre-norm by choice; one joint vocabulary with one tied table, or two.
The sinusoid's layout is "halves", as in the published translation models (docs/decisions.md).
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Memory, Stack
from everyhead.layers.cache import DecoderCache
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packing import Packing, only_right, packing_of
from everyhead.layers.positions import LearnedPositions, SinusoidalPositions
from everyhead.layers.residual import PostNorm, PreNorm
from everyhead.models.encoder_decoder import EncoderDecoder


class TransformerConfig(BaseModel):
    """The numbers of the paper's table 3 and the choices in which published models differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int  # of the target, or of both sides when joint
    source_vocab_size: int | None = None  # None: one joint vocabulary
    d_model: int = 512
    n_heads: int = 8
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    norm: Literal["post", "pre"] = "post"
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_len: int = 512
    pad_id: int = -1  # −1: the last id
    source_pad_id: int = -1
    eos_id: int = 0
    tie_output: bool = True

    @model_validator(mode="after")
    def _resolve(self) -> "TransformerConfig":
        source = self.vocab_size if self.source_vocab_size is None else self.source_vocab_size
        for name, size in (("pad_id", self.vocab_size), ("source_pad_id", source)):
            if getattr(self, name) < 0:
                object.__setattr__(self, name, size + getattr(self, name))
            if not 0 <= getattr(self, name) < size:
                raise ValueError(f"{name} {getattr(self, name)} lies outside 0 … {size - 1}")
            if self.source_vocab_size is None and name == "pad_id" and self.source_pad_id < 0:
                object.__setattr__(self, "source_pad_id", self.pad_id)
        if not 0 <= self.eos_id < self.vocab_size or self.eos_id == self.pad_id:
            raise ValueError(f"eos_id {self.eos_id} must be an id other than pad_id {self.pad_id}")
        return self


_COLUMNS = ("d_model", "n_heads", "n_encoder_layers", "n_decoder_layers", "d_ff", "dropout")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":  (64,    4, 2, 2, 256,  0.1),
        "small": (256,   4, 3, 3, 1024, 0.1),
        "base":  (512,   8, 6, 6, 2048, 0.1),
        "big":   (1024, 16, 6, 6, 4096, 0.3),
    }.items()
}
# fmt: on


class Transformer(EncoderDecoder):
    """Encoder and decoder; see EncoderDecoder for the verbs. Logits are −∞ at padding."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        c = self.config = config

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(c.d_model, c.n_heads, dropout=c.attention_dropout)

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model)

        def block(cross: MultiHeadAttention | None = None) -> Block:
            residual = PostNorm(c.dropout) if c.norm == "post" else PreNorm(c.dropout)
            feed_forward = FeedForward(c.d_model, c.d_ff, f=c.activation)
            return Block(attention(), feed_forward, residual=residual, norm=norm, cross_attn=cross)

        def last() -> LayerNorm | None:
            return norm() if c.norm == "pre" else None

        def positions() -> SinusoidalPositions | LearnedPositions:
            if c.positions == "learned":
                return LearnedPositions(c.max_len, c.d_model)
            return SinusoidalPositions(c.max_len, c.d_model, layout="halves")

        self.target_embed = TokenEmbedding(c.vocab_size, c.d_model, pad_id=c.pad_id)
        self.source_embed = self.target_embed
        if c.source_vocab_size is not None:
            size = c.source_vocab_size
            self.source_embed = TokenEmbedding(size, c.d_model, pad_id=c.source_pad_id)
        self.source_positions = positions()
        self.target_positions = positions() if c.positions == "learned" else self.source_positions
        self.embed_dropout = Dropout(c.dropout)
        self.encoder = Stack([block() for _ in range(c.n_encoder_layers)], last())
        self.decoder = Stack([block(attention()) for _ in range(c.n_decoder_layers)], last())
        tied = self.target_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=c.pad_id)
        self._start()

    def _start(self) -> None:
        """Every matrix from N(0, 1/10d), the rows of padding 0 (docs/decisions.md, "The start")."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=(10 * self.config.d_model) ** -0.5)
        for table in (self.source_embed, self.target_embed):
            nn.init.zeros_(table.weight[table.pad_id])

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        """source int64 (B, S), mask bool (B, S) True = token → what the decoder reads.

        Raises:
            ValueError: S is beyond the model's longest length.
        """
        packing = packing_of(source_mask)
        x = self._embed(self.source_embed, self.source_positions, source, source_mask, packing)
        mask = None if source_mask is None else masks.keys(source_mask, zeroed=True)
        return Memory(self.encoder(x, mask, packing=packing), mask, packing)

    def read_target(
        self,
        target: Tensor,
        memory: Memory,
        target_mask: Tensor | None,
        packing: Packing | None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """The decoder's stack: (B, T, C), or packed (N, C).

        Raises:
            ValueError: T is beyond the model's longest length.
        """
        start = 0 if cache is None else cache.length
        x = self._embed(
            self.target_embed, self.target_positions, target, target_mask, packing, start
        )
        if cache is not None:
            n = target.shape[1]
            cache.note_bias(self.step_bias(n, start + n, x))
        mask = masks.causal()
        if target_mask is not None and not only_right(target_mask, packing):
            mask = mask & masks.keys(target_mask, zeroed=True)
        return self.decoder(x, mask, memory, packing=packing, cache=cache)

    def _embed(
        self,
        table: TokenEmbedding,
        places: nn.Module,
        ids: Tensor,
        real: Tensor | None,
        packing: Packing | None,
        start: int = 0,
    ) -> Tensor:
        """√d·E[ids] + PE → (B, T, C), or (N, C) packed; hidden rows are zero."""
        if start + ids.shape[1] > self.config.max_len:
            raise ValueError(
                f"{start + ids.shape[1]} tokens are more than the model's max_len "
                f"{self.config.max_len}: cut the text or split it"
            )
        if packing is not None:
            x = table(ids.flatten()[packing.index]) + places(packing.positions)
            return self.embed_dropout(x)  # (N, C)
        if real is None:
            return self.embed_dropout(table(ids) + places(slice(start, start + ids.shape[1])))
        positions = (real.long().cumsum(1) - 1).clamp_min(0)  # (B, T)
        x = self.embed_dropout(table(ids) + places(positions))
        return x.masked_fill(~real[..., None], 0)
