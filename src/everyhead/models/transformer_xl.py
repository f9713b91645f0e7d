"""Transformer-XL (Dai et al. 2019, 1901.02860): text in segments, each remembering those before.

    x = √C·E[ids]
    x ← norm(x + attention(x, memory))  ·  x ← norm(x + FFN(x))  ·  logits = x Eᵀ

Positions are relative (layers/relative.py), so a text has no longest length; in training a row is
read in segments, and no gradient flows into the memory (layers/segments.py). The adaptive tables of
the published models for large vocabularies (1809.10853) are left out; u and v are one pair for all
layers, as the paper's equations write them, or a pair for each, as its largest models have them.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Stack
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.linear import Linear
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packing import Packing
from everyhead.layers.positions import SinusoidalPositions
from everyhead.layers.relative import RelativeAttention, relative_biases
from everyhead.layers.residual import PostNorm, PreNorm
from everyhead.layers.segments import SegmentCache
from everyhead.models.text_decoder import TextDecoder

ENDLESS = 1 << 20  # tokens: more than anybody asks for


class TransformerXLConfig(BaseModel):
    """The numbers of the paper's table 9 and of its published code."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(32_000, gt=0)
    d_model: int = Field(410, gt=0)
    n_heads: int = Field(10, gt=0)
    n_layers: int = Field(16, ge=0)
    d_ff: int = Field(2100, gt=0)
    memory_len: int = Field(150, ge=0)  # positions before its own that a query sees in each layer
    segment_len: int | None = Field(150, gt=0)  # of training; None: a row is one segment
    norm: Literal["post", "pre"] = "post"
    tie_biases: bool = True  # u and v are the same in all layers
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    norm_eps: float = 1e-5
    tie_output: bool = True
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None  # what fills rows; the model itself knows no padding but the mask

    @model_validator(mode="after")
    def _fits(self) -> "TransformerXLConfig":
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model {self.d_model} does not divide into {self.n_heads} heads: choose n_heads "
                "that divides it"
            )
        return self

    @property
    def max_len(self) -> int:
        """Positions are relative, so nothing ends there."""
        return ENDLESS


_COLUMNS = ("d_model", "n_heads", "n_layers", "d_ff", "memory_len", "segment_len")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  #  C    H   L   F     M    segment
        "tiny":         (64,   4,  2,  128,  32,  32),
        "wikitext":     (410,  10, 16, 2100, 150, 150),  # WikiText-103, standard
        "enwik8":       (512,  8,  12, 2048, 512, 512),
    }.items()
}
# fmt: on


class TransformerXL(TextDecoder):
    """Next pieces by a causal stack: `hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        c = self.config = config
        distances = SinusoidalPositions(c.memory_len + 1, c.d_model, layout="halves")
        shared = relative_biases(c.n_heads, c.d_model // c.n_heads) if c.tie_biases else None
        residual = {"post": PostNorm, "pre": PreNorm}[c.norm]

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model, eps=c.norm_eps)

        def block() -> Block:
            attention = RelativeAttention(
                c.d_model,
                c.n_heads,
                distances=distances,
                biases=shared,
                dropout=c.attention_dropout,
            )
            feed_forward = FeedForward(c.d_model, c.d_ff, f=c.activation)
            return Block(attention, feed_forward, residual=residual(c.dropout), norm=norm)

        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model)
        self.embed_dropout = Dropout(c.dropout)
        last = norm() if c.norm == "pre" else None
        self.decoder = Stack([block() for _ in range(c.n_layers)], last)
        tied = self.token_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """N(0, 0.02²) for every map and table, u and v, as the published code has it."""
        for part in self.modules():
            if isinstance(part, Linear | TokenEmbedding | VocabularyHead):
                nn.init.normal_(part.weight, std=0.02)
            elif isinstance(part, RelativeAttention):
                nn.init.normal_(part.u, std=0.02)
                nn.init.normal_(part.w, std=0.02)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """√C·E[ids]; where a token stands is told by the distances."""
        return self.embed_dropout(self.token_embed(ids))

    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> SegmentCache:
        """An empty memory of memory_len positions; max_len: of the whole text."""
        c = self.config
        return SegmentCache(c.n_layers, max_len, reach=c.memory_len)

    def states(self, max_len: int = ENDLESS) -> SegmentCache:
        """A memory that learns: of states, not of keys. For training over several calls."""
        c = self.config
        return SegmentCache(c.n_layers, max_len, reach=c.memory_len, states=True)

    def _whole(
        self,
        ids: Tensor,
        real: Tensor | None,
        documents: Tensor | None,
        packing: Packing | None,
    ) -> Tensor:
        """In eval at once, in training segment by segment: equal but for the gradient."""
        n = self.config.segment_len
        if not self.training or n is None or ids.shape[1] <= n:
            return super()._whole(ids, real, documents, packing)
        cache, out = self.states(ids.shape[1]), []
        for start in range(0, ids.shape[1], n):
            rows = slice(start, start + n)
            seen = slice(max(0, start - self.config.memory_len), start + n)
            rule = masks.causal()
            if real is not None:
                rule = rule & masks.keys(real[:, seen], zeroed=True)
            if documents is not None:
                rule = rule & masks.documents(documents[:, rows], documents[:, seen])
            x = self.embed(ids[:, rows], ids)
            x = x if real is None else x.masked_fill(~real[:, rows, None], 0)
            out.append(self.decoder(x, rule, cache=cache))
        hidden = torch.cat(out, 1)  # (B, T, C)
        return hidden if packing is None else packing.pack(hidden)
