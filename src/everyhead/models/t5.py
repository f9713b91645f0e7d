"""T5 (Raffel et al. 2020, 1910.10683, section 2.1): text to text by an encoder and a decoder.

    memory = encoder(E[source], B_enc)      hidden = decoder(E[target], memory, B_dec)

Every layer adds its stack's one relative-position bias B to the scores of self-attention, which are
not divided by √d (the start of W^Q does that); norms are pre-norms without mean, maps have no
biases. v1.0: ReLU, logits = hidden Eᵀ / √C. v1.1 (1910.10683 in its published code, after Shazeer
2020, 2002.05202): a gated GELU, an output table of its own, nothing divided.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Memory, Stack
from everyhead.layers.cache import DecoderCache
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward, GatedFeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.linear import WideLinear
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import RMSNorm
from everyhead.layers.packing import Packing, only_right, packing_of
from everyhead.layers.relative_bias import RelativeBias
from everyhead.layers.residual import PreNorm
from everyhead.models.encoder_decoder import EncoderDecoder


class T5Config(BaseModel):
    """The numbers of the published models and the choices in which they differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(32_128, gt=0)
    d_model: int = Field(512, gt=0)
    n_heads: int = Field(8, gt=0)
    d_head: int = Field(64, gt=0)
    d_ff: int = Field(2048, gt=0)
    n_encoder_layers: int = Field(6, ge=0)
    n_decoder_layers: int = Field(6, ge=0)
    n_buckets: int = 32
    max_distance: int = 128
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    gated: bool = False
    tie_output: bool = True  # and divide by √C
    dropout: float = Field(0.1, ge=0, lt=1)  # everywhere, of attention's weights too
    norm_eps: float = Field(1e-6, gt=0)
    max_len: int = Field(512, gt=0)  # of the texts it learnt from; it reads longer ones as well
    pad_id: int = 0  # the decoder's start, too
    eos_id: int = 1

    @model_validator(mode="after")
    def _ids_exist(self) -> "T5Config":
        for name in ("pad_id", "eos_id"):
            if not 0 <= getattr(self, name) < self.vocab_size:
                raise ValueError(f"{name} {getattr(self, name)} is no id below {self.vocab_size}")
        return self

    @property
    def source_vocab_size(self) -> None:
        """None: one vocabulary for both sides."""
        return None

    @property
    def source_pad_id(self) -> int:
        return self.pad_id


_COLUMNS = ("d_model", "n_heads", "d_head", "d_ff", "n_encoder_layers", "n_decoder_layers")
_V11: dict[str, Any] = {"activation": "gelu_tanh", "gated": True, "tie_output": False}
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True)) | more
    for name, (row, more) in {
        "tiny":       ((64,   4,  16, 256,  2,  2),  {}),
        "small":      ((512,  8,  64, 2048, 6,  6),  {}),    # 61 M
        "base":       ((768,  12, 64, 3072, 12, 12), {}),    # 223 M
        "tiny-v1.1":  ((64,   4,  16, 192,  2,  2),  _V11),
        "small-v1.1": ((512,  6,  64, 1024, 8,  8),  _V11),  # 77 M
        "base-v1.1":  ((768,  12, 64, 2048, 12, 12), _V11),  # 248 M
    }.items()
}
# fmt: on


class T5(EncoderDecoder):
    """Encoder and decoder over one table of embeddings; see EncoderDecoder for the verbs."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        c = self.config = config

        def norm() -> RMSNorm:
            return RMSNorm(c.d_model, eps=c.norm_eps)

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                c.d_model, c.n_heads, d_head=c.d_head, scale=1.0, bias=False, dropout=c.dropout
            )

        def feed_forward() -> FeedForward | GatedFeedForward:
            kind = GatedFeedForward if c.gated else FeedForward
            made = kind(c.d_model, c.d_ff, f=c.activation, bias=False, dropout=c.dropout)
            made.down_proj = WideLinear(c.d_ff, c.d_model, bias=False)
            return made

        def block(cross: MultiHeadAttention | None = None) -> Block:
            return Block(
                attention(),
                feed_forward(),
                residual=PreNorm(c.dropout),
                norm=norm,
                cross_attn=cross,
            )

        def bias(causal: bool) -> RelativeBias:
            return RelativeBias(c.n_buckets, c.n_heads, max_distance=c.max_distance, causal=causal)

        self.source_embed = self.target_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.stream_dropout = Dropout(c.dropout)  # where the stream enters and leaves a stack
        self.encoder_bias, self.decoder_bias = bias(causal=False), bias(causal=True)
        self.encoder = Stack([block() for _ in range(c.n_encoder_layers)], norm())
        self.decoder = Stack([block(attention()) for _ in range(c.n_decoder_layers)], norm())
        tied = self.target_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """Embeddings N(0, 1), maps N(0, 1/in), W^Q N(0, 1/(C·D)), biases of the scores N(0, 1/C).

        An output table of its own is a map: at N(0, 1) the first logits would be √C too large.
        """
        c = self.config
        nn.init.normal_(self.output_head.weight, std=c.d_model**-0.5)
        nn.init.normal_(self.target_embed.weight, std=1.0)  # the same table where it is tied
        for part in self.modules():
            if isinstance(part, FeedForward | GatedFeedForward | MultiHeadAttention):
                for _, each in part.named_parameters():
                    nn.init.normal_(each, std=each.shape[1] ** -0.5)
            if isinstance(part, MultiHeadAttention):
                nn.init.normal_(part.q_proj.weight, std=(c.d_model * c.d_head) ** -0.5)
            if isinstance(part, RelativeBias):
                nn.init.normal_(part.weight, std=c.d_model**-0.5)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        """source int64 (B, S), mask bool (B, S) True = token → what the decoder reads."""
        packing, n = packing_of(source_mask), source.shape[1]
        mask = None if source_mask is None else masks.keys(source_mask, zeroed=True)
        x = self._embed(source, source_mask, packing)
        x = self.encoder(x, mask, packing=packing, bias=self.encoder_bias(n, n))
        return Memory(self.stream_dropout(x), mask, packing)

    def read_target(
        self,
        target: Tensor,
        memory: Memory,
        target_mask: Tensor | None,
        packing: Packing | None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """The decoder's stack, and the division by √C: (B, T, C) or packed (N, C)."""
        n, before = target.shape[1], 0 if cache is None else cache.length
        own = self.decoder_bias(n, before + n)
        bias: Tensor | None = own
        if cache is not None:
            hidden = self.step_bias(n, before + n, own)
            cache.note_bias(None if n > 1 else own if hidden is None else own + hidden)
            bias = None if n == 1 else own
        x = self._embed(target, target_mask, packing)
        mask = masks.causal()
        if target_mask is not None and not only_right(target_mask, packing):
            mask = mask & masks.keys(target_mask, zeroed=True)
        x = self.decoder(x, mask, memory, packing=packing, cache=cache, bias=bias)
        return self.stream_dropout(x) * self.output_scale

    @property
    def output_scale(self) -> float:
        """What the last states are multiplied by before the head: 1 / √C with a tied table."""
        return self.config.d_model**-0.5 if self.config.tie_output else 1.0

    def _embed(self, ids: Tensor, real: Tensor | None, packing: Packing | None) -> Tensor:
        """E[ids] → (B, T, C), or (N, C) packed; hidden rows are zero.

        The stream's sums pass the largest float16 in published models: there it is float32.
        """
        ids = ids if packing is None else ids.flatten()[packing.index]
        x = self.stream_dropout(self.target_embed(ids))
        x = x.float() if x.dtype == torch.float16 else x
        return x if real is None or packing is not None else x.masked_fill(~real[..., None], 0)
