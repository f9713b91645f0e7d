"""Longformer (Beltagy et al. 2020, 2004.05150): RoBERTa's encoder with a window and global tokens.

    x = LayerNorm(E[token] + P[padding + 1 + position] + S[segment])     1907.11692
    hidden = post-norm encoder(x), attention as in layers/window.py      section 3.1
    gap:    logits = LayerNorm(gelu(hidden W + b)) Eᵀ + b_V
    text:   logits = tanh(hidden[first] W_p + b_p) W_n + b_n, the first token global (section 6)

Bert (models/bert.py) with another attention. Any length: Hugging Face pads to a multiple of the
window. Positions are counted over what the mask says is real; theirs over all ids but padding's.
"""

from typing import Any

from pydantic import Field, model_validator
from torch import Tensor

from everyhead.layers.masks import Mask, global_tokens
from everyhead.layers.positions import places
from everyhead.layers.window import WindowAttention
from everyhead.models.bert import Bert, BertConfig, keys_of


class LongformerConfig(BertConfig):
    """Bert's numbers and each layer's window, half on each side of a token; one for all, or a list.

    global_first: the first real token is global where the caller names none, as below a classifier.
    """

    vocab_size: int = Field(50_265, ge=1)
    max_len: int = Field(4096, ge=1)
    windows: int | tuple[int, ...] = 512
    global_first: bool = False
    n_segments: int = Field(1, ge=1)
    norm_eps: float = Field(1e-5, gt=0)
    pad_id: int = Field(1, ge=0)
    pooler: bool = False
    next_sentence_head: bool = False

    @model_validator(mode="after")
    def _one_a_layer(self) -> "LongformerConfig":
        windows = self.windows
        if isinstance(windows, int):
            windows = (windows,) * self.n_layers
            object.__setattr__(self, "windows", windows)
        if len(windows) != self.n_layers:
            raise ValueError(
                f"{len(windows)} windows for {self.n_layers} layers: give each layer one, or one "
                "number for all"
            )
        if any(width < 2 or width % 2 for width in windows):
            raise ValueError(
                f"a window is an even number, half of it on each side; got {list(windows)}"
            )
        return self

    @property
    def first_position(self) -> int:
        return self.pad_id + 1

    @property
    def gap_activation(self) -> str:
        return "gelu"


_COLUMNS = ("d_model", "n_heads", "n_layers", "d_ff", "max_len", "windows")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  # C   H   L   F     T     w
        "tiny":      (128,   2,  2,  512,  512,  32),
        "base":      (768,  12, 12, 3072, 4096, 512),  # table 7 on: 149 M parameters
        "large":     (1024, 16, 24, 4096, 4096, 512),
    }.items()
}
# fmt: on


class Longformer(Bert):
    """Bert's verbs; each takes `global_tokens`, bool (B, T): who sees all and is seen by all."""

    config: LongformerConfig

    def _attention(self, layer: int) -> WindowAttention:
        c, half = self.config, _widths(self.config)[layer] // 2
        return WindowAttention(
            c.d_model, c.n_heads, left=half, right=half, dropout=c.attention_dropout
        )

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        global_tokens: Tensor | None = None,
    ) -> Tensor:
        """ids int64 (B, T), mask and global_tokens bool (B, T) → (B, T, C).

        Raises:
            ValueError: T is beyond the model's longest length, or the marks do not fit the ids.
        """
        rule = self._rule(ids, mask, global_tokens)
        return self._read(ids, mask, segments, rule, packed=False)

    def real_hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        global_tokens: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, C)."""
        rule = self._rule(ids, mask, global_tokens)
        return self._read(ids, mask, segments, rule, packed=True)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        global_tokens: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) where there is a head for gaps, else hidden states (B, T, C)."""
        hidden = self.hidden(ids, mask, segments=segments, global_tokens=global_tokens)
        return hidden if self.gap_head is None else self.head(hidden)

    def _rule(self, ids: Tensor, mask: Tensor | None, marked: Tensor | None) -> Mask | None:
        """Which keys are real and which tokens are global; the window is each layer's own."""
        if marked is None and self.config.global_first:
            first = places(mask, ids.shape[1]).expand_as(ids) == 0  # (B, T)
            marked = first.to(ids.device)
        if marked is None:
            return keys_of(mask)
        if marked.shape != ids.shape or marked.dtype.is_floating_point:
            raise ValueError(
                f"global_tokens is bool like ids {tuple(ids.shape)}, True = global; got "
                f"{marked.dtype} of shape {tuple(marked.shape)}"
            )
        marked = marked.bool() if mask is None else marked.bool() & mask
        return global_tokens(marked) & keys_of(mask)


def _widths(c: LongformerConfig) -> tuple[int, ...]:
    """Of every layer."""
    assert isinstance(c.windows, tuple)  # since _one_a_layer
    return c.windows
