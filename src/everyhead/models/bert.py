"""BERT (Devlin et al. 2019, 1810.04805): an encoder that reads both ways, learnt by filling gaps.

    x = LayerNorm(E[token] + P[position] + S[segment])           section 3, figure 2
    hidden = post-norm encoder(x)                                 figure 1
    gap:      logits = LayerNorm(f(hidden W + b)) Eᵀ + b_V        section 3.1, task 1 (MLM)
    sentence: logits = tanh(hidden[CLS] W_p + b_p) W_n + b_n      section 3.1, task 2 (NSP)

Positions are counted over real tokens, so padding on the left changes nothing; Hugging Face counts
the padding unless it is handed position_ids.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Stack
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import GapHead
from everyhead.layers.linear import Linear
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packing import Packing, packing_of
from everyhead.layers.positions import LearnedPositions, places
from everyhead.layers.residual import PostNorm


class BertConfig(BaseModel):
    """The numbers of the paper's section 3, and which parts stand above the encoder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(30_522, ge=1)
    d_model: int = Field(768, ge=1)
    n_heads: int = Field(12, ge=1)
    n_layers: int = Field(12, ge=1)
    d_ff: int = Field(3072, ge=1)
    max_len: int = Field(512, ge=1)
    n_segments: int = Field(2, ge=1)
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    norm_eps: float = Field(1e-12, gt=0)
    pad_id: int = Field(0, ge=0)
    tie_output: bool = True
    pooler: bool = True  # tanh(W_p hidden[CLS])
    gap_head: bool = True  # what stands behind [MASK]?
    next_sentence_head: bool = True  # does the second sentence follow the first? needs the pooler

    @property
    def first_position(self) -> int:
        """The row of the table of positions at which a text begins."""
        return 0

    @property
    def gap_activation(self) -> str:
        """f of the head for gaps."""
        return self.activation

    @model_validator(mode="after")
    def _fits(self) -> "BertConfig":
        if self.pad_id >= self.vocab_size:
            raise ValueError(f"pad_id {self.pad_id} lies outside 0 … {self.vocab_size - 1}")
        if self.next_sentence_head and not self.pooler:
            raise ValueError("next_sentence_head reads the pooler: give pooler=True too")
        return self


_COLUMNS = ("d_model", "n_heads", "n_layers", "d_ff")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":      (128,   2,  2, 512),   # Turc et al. 2019 (1908.08962)
        "minilm-l6": (384,  12,  6, 1536),  # Wang et al. 2020 (2002.10957)
        "base":      (768,  12, 12, 3072),
        "large":     (1024, 16, 24, 4096),
    }.items()
}
# fmt: on


class Bert(nn.Module):
    """`hidden`, `head` (what stands in the gaps), `pooled`, `next_sentence`."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        c = self.config = config

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model, c.norm_eps)

        def block(layer: int) -> Block:
            feed_forward = FeedForward(c.d_model, c.d_ff, f=c.activation)
            residual = PostNorm(c.dropout)
            return Block(self._attention(layer), feed_forward, residual=residual, norm=norm)

        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, pad_id=c.pad_id, scale=1.0)
        self.position_embed = LearnedPositions(c.first_position + c.max_len, c.d_model)
        self.segment_embed = TokenEmbedding(c.n_segments, c.d_model, scale=1.0)
        self.embed_norm, self.embed_dropout = norm(), Dropout(c.dropout)
        self.encoder = Stack([block(layer) for layer in range(c.n_layers)])
        self.pooler = Linear(c.d_model, c.d_model) if c.pooler else None
        tied = self.token_embed.weight if c.tie_output else None
        self.gap_head = (
            GapHead(c.vocab_size, c.d_model, tied=tied, f=c.gap_activation, norm=norm())
            if c.gap_head
            else None
        )
        self.next_sentence_head = Linear(c.d_model, 2) if c.next_sentence_head else None
        self._start()

    def _attention(self, layer: int) -> MultiHeadAttention:
        """That of one layer; a family with another says so here."""
        c = self.config
        return MultiHeadAttention(c.d_model, c.n_heads, dropout=c.attention_dropout)

    def _start(self) -> None:
        """Every matrix from N(0, 0.02²), biases 0, norms 1, the row of padding 0."""
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.zeros_(self.token_embed.weight[self.config.pad_id])

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, segments: Tensor | None = None
    ) -> Tensor:
        """ids int64 (B, T), mask bool (B, T) True = token, segments int64 (B, T) → (B, T, C).

        Without segments all tokens are of the first sentence.

        Raises:
            ValueError: T is beyond the model's longest length.
        """
        return self._read(ids, mask, segments, keys_of(mask), packed=False)

    def real_hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, segments: Tensor | None = None
    ) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, C), what a loss needs."""
        return self._read(ids, mask, segments, keys_of(mask), packed=True)

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → logits (…, V) of the token in each place.

        Raises:
            ValueError: the model has no such head (config.gap_head).
        """
        if self.gap_head is None:
            raise ValueError(
                f"this {type(self).__name__} has no head for gaps: make it with gap_head=True"
            )
        return self.gap_head(hidden)

    def pooled(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, C) → tanh(W_p h + b_p) of each row's first real token, (B, C).

        Raises:
            ValueError: the model has no pooler (config.pooler).
        """
        if self.pooler is None:
            raise ValueError(f"this {type(self).__name__} has no pooler: make it with pooler=True")
        return self.pooler(first_real(hidden, mask)).tanh()

    def next_sentence(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, C) → logits (B, 2): the second sentence follows the first, or does not.

        Raises:
            ValueError: the model has no such head (config.next_sentence_head).
        """
        if self.next_sentence_head is None:
            raise ValueError(
                f"this {type(self).__name__} has no next_sentence_head: make it with one"
            )
        return self.next_sentence_head(self.pooled(hidden, mask))

    def forward(
        self, ids: Tensor, mask: Tensor | None = None, *, segments: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V) where there is a head for gaps, else hidden states (B, T, C)."""
        hidden = self.hidden(ids, mask, segments=segments)
        return hidden if self.gap_head is None else self.head(hidden)

    def _read(
        self,
        ids: Tensor,
        mask: Tensor | None,
        segments: Tensor | None,
        rule: Mask | None,
        *,
        packed: bool,
    ) -> Tensor:
        """The encoder's output where attention sees what `rule` says: (B, T, C), packed (N, C)."""
        packing = packing_of(mask)
        x = self.encoder(self._embed(ids, mask, segments, packing), rule, packing=packing)
        if packing is not None:
            return x if packed else packing.unpack(x)
        if not packed:
            return x
        return x.flatten(0, 1) if mask is None else x[mask]

    def _embed(
        self, ids: Tensor, mask: Tensor | None, segments: Tensor | None, packing: Packing | None
    ) -> Tensor:
        """What enters the encoder: (B, T, C), or (N, C) packed."""
        if ids.shape[1] > self.config.max_len:
            raise ValueError(
                f"{ids.shape[1]} tokens are more than the model's max_len {self.config.max_len}: "
                "cut the text or split it"
            )
        first = self.config.first_position
        positions = places(mask, ids.shape[1], first).to(ids.device)
        if packing is not None:
            ids, positions = ids.flatten()[packing.index], packing.positions + first
            segments = None if segments is None else segments.flatten()[packing.index]
        if segments is None or self.config.n_segments == 1:
            segments = ids.new_zeros(())
        x = self.token_embed(ids) + self.segment_embed(segments) + self.position_embed(positions)
        if mask is not None and packing is None:
            x = x.masked_fill(~mask[..., None], 0)  # before the norm, whose gradient sees all of x
        return self.embed_dropout(self.embed_norm(x))  # (B, T, C) or (N, C)


def keys_of(mask: Tensor | None) -> Mask | None:
    """Real tokens alone may be looked at; the others are finite where they enter the stack."""
    return None if mask is None else masks.keys(mask, zeroed=True)


def first_real(hidden: Tensor, mask: Tensor | None) -> Tensor:
    """hidden (B, T, C) at each row's first real token: (B, C)."""
    if mask is None:
        return hidden[:, 0]
    index = mask.long().argmax(1)[:, None, None].expand(-1, 1, hidden.shape[2])  # (B, 1, C)
    return hidden.gather(1, index)[:, 0]
