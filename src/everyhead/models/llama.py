"""Llama (Touvron et al. 2023, 2302.13971 section 2.2; Llama 2, 2307.09288; Llama 3, 2407.21783).

    x = E[ids]
    x ← x + attention(rms x)  ·  x ← x + (silu(rms x W_gate) ∘ rms x W_up) W_down
    logits = rms(x) W_out

A decoder without memory whose q and k are turned by their positions, whose heads may share keys
and values (grouped, 2305.13245), whose norms take no mean away, and whose maps have no biases.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn

from everyhead.layers import rotary_scaling
from everyhead.layers.blocks import Block, Stack
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import GatedFeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.linear import Linear
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import RMSNorm
from everyhead.layers.residual import PreNorm
from everyhead.layers.rotary import Rotary, Rotation
from everyhead.models.text_decoder import TextDecoder

RULES: dict[str, Any] = {
    "linear": rotary_scaling.Linear,
    "ntk": rotary_scaling.NTK,
    "yarn": rotary_scaling.Yarn,
    "llama3": rotary_scaling.Llama3,
}


class RotaryScaling(BaseModel):
    """Other frequencies for longer texts; what each field means: layers/rotary_scaling.py."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear", "ntk", "yarn", "llama3"]
    factor: float = Field(gt=0)
    original_len: int | None = Field(None, gt=0)  # of yarn and llama3
    beta_fast: float | None = None  # of yarn, as the next three
    beta_slow: float | None = None
    attention: float | None = None
    truncate: bool | None = None
    low: float | None = None  # of llama3
    high: float | None = None

    @model_validator(mode="after")
    def _fits(self) -> "RotaryScaling":
        try:
            numbers = self.rule()._asdict()
        except TypeError:
            fields = ", ".join(RULES[self.kind].__annotations__)
            raise ValueError(f"rotary scaling {self.kind} takes {fields}") from None
        for name, number in numbers.items():  # what was left out, as the rule has it
            object.__setattr__(self, name, number)
        return self

    def rule(self) -> rotary_scaling.Scaling:
        """The part that computes the frequencies."""
        numbers = self.model_dump(exclude={"kind"}, exclude_none=True)
        made: rotary_scaling.Scaling = RULES[self.kind](**numbers)
        return made


class LlamaConfig(BaseModel):
    """The numbers of the papers and the choices in which published checkpoints differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(32_000, gt=0)
    d_model: int = Field(4096, gt=0)
    n_heads: int = Field(32, gt=0)
    n_kv_heads: int | None = Field(None, gt=0)  # None: as many as heads
    d_head: int | None = Field(None, gt=0)  # None: d_model / n_heads
    d_ff: int = Field(11_008, gt=0)
    n_layers: int = Field(32, ge=0)
    max_len: int = Field(2048, gt=0)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = "silu"
    norm_eps: float = 1e-5
    rotary_base: float = Field(10_000.0, gt=1)
    rotary_scaling: RotaryScaling | None = None
    attention_bias: bool = False  # of q, k, v and o
    mlp_bias: bool = False  # of gate, up and down
    tie_output: bool = False
    bos_id: int | None = None
    eos_id: int | None = None
    more_eos_ids: tuple[int, ...] = ()  # that end a text too (<|eot_id|>)
    pad_id: int | None = None  # what fills rows; the model itself knows no padding but the mask

    @model_validator(mode="after")
    def _resolve(self) -> "LlamaConfig":
        if self.n_kv_heads is None:
            object.__setattr__(self, "n_kv_heads", self.n_heads)
        if self.d_head is None:
            if self.d_model % self.n_heads:
                raise ValueError(
                    f"d_model {self.d_model} does not divide into {self.n_heads} heads: choose "
                    "n_heads that divides it, or give d_head"
                )
            object.__setattr__(self, "d_head", self.d_model // self.n_heads)
        return self


_COLUMNS = ("vocab_size", "d_model", "n_heads", "n_kv_heads", "d_ff", "n_layers", "max_len",
            "rotary_base", "tie_output")  # fmt: skip
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  #  V        C     H   K  F       L   T     base       tied
        "tiny":          (32_000,  64,   4,  2, 176,    2,  128,  10_000.0,  False),
        "smollm2-135m":  (49_152,  576,  9,  3, 1_536,  30, 8192, 100_000.0, True),
        "llama3-8b":     (128_256, 4096, 32, 8, 14_336, 32, 8192, 500_000.0, False),
    }.items()
}
# fmt: on


class Llama(TextDecoder):
    """Next pieces by a causal stack: `hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        c = self.config = config

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(
                c.d_model,
                c.n_heads,
                n_kv_heads=c.n_kv_heads,
                d_head=c.d_head,
                bias=c.attention_bias,
                dropout=c.attention_dropout,
            )

        def feed_forward() -> GatedFeedForward:
            return GatedFeedForward(c.d_model, c.d_ff, f=c.activation, bias=c.mlp_bias)

        def norm() -> RMSNorm:
            return RMSNorm(c.d_model, eps=c.norm_eps)

        def block() -> Block:
            return Block(attention(), feed_forward(), residual=PreNorm(), norm=norm)

        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        assert c.d_head is not None
        self.rotary = Rotary(
            c.d_head,
            base=c.rotary_base,
            scaling=None if c.rotary_scaling is None else c.rotary_scaling.rule(),
        )
        self.decoder = Stack([block() for _ in range(c.n_layers)], norm())
        tied = self.token_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """N(0, 0.02²) for every map and table, as the published code has it."""
        for part in self.modules():
            if isinstance(part, Linear | TokenEmbedding | VocabularyHead):
                nn.init.normal_(part.weight, std=0.02)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """E[ids]; positions turn q and k instead."""
        return self.token_embed(ids)

    def rotation(self, positions: Tensor) -> Rotation:
        """cos and sin of each position's angles."""
        return self.rotary(positions)
