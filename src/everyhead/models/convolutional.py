"""A convolution as a language model: each layer looks back a little, and twice as far as the last.

    x ← x + W f(Σ_j K_j norm(x)_{t − j·d} + b) + c        j = 0 … k − 1, d = 1, 2, 4, … by layer
    reach = 1 + (k − 1)(1 + 2 + 4 + …)                    places that an output depends on (B27)

Causal dilated convolutions: van den Oord et al. 2016 (1609.03499); as a language model: Bai et al.
2018 (1803.01271), here with the norm before each layer. Over torch.nn.Conv1d; the family owns its
loop, as there are no attentions: every place is computed at once, and far places only by depth.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from everyhead.layers.dropout import Dropout, add_dropped
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import activation
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.norms import LayerNorm
from everyhead.layers.states import StateCache


class ConvolutionalConfig(BaseModel):
    """kernel_size places a layer, doubled distance from layer to layer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(10_000, gt=0)
    d_model: int = Field(256, gt=0)
    n_layers: int = Field(6, gt=0)
    kernel_size: int = Field(3, ge=2)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    dropout: float = Field(0.1, ge=0, lt=1)
    tie_output: bool = True
    max_len: int = Field(1024, gt=0)  # of the texts it learns from; it reads longer ones as well
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None

    @property
    def reach(self) -> int:
        """How many places an output depends on."""
        return 1 + (self.kernel_size - 1) * (2**self.n_layers - 1)


_COLUMNS = ("d_model", "n_layers", "kernel_size")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":  (64,  4, 3),  # reach 31
        "small": (512, 8, 3),  # reach 511
    }.items()
}
# fmt: on


class CausalConvolution(nn.Module):
    """norm → K over places t, t − d, t − 2d, … → f → W over channels."""

    def __init__(self, d_model: int, *, kernel_size: int, dilation: int, f: str) -> None:
        super().__init__()
        self.past = (kernel_size - 1) * dilation  # places before the first
        self.norm = LayerNorm(d_model)
        self.kernel = nn.Conv1d(d_model, d_model, kernel_size, dilation=dilation)
        self.activation = activation(f)
        self.mix = nn.Conv1d(d_model, d_model, 1)

    def forward(self, x: Tensor, real: Tensor | None, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (B, T, C), past (B, past, C) or None for zeros → (B, T, C) and the next call's past."""
        y = self.norm(x)
        if real is not None:
            y = y.masked_fill(~real[..., None], 0)
        y = F.pad(y, (0, 0, self.past, 0)) if past is None else _joined(past, y, real)
        inner = self.activation(self.kernel(y.transpose(1, 2)))  # (B, C, T)
        return self.mix(inner).transpose(1, 2), y[:, y.shape[1] - self.past :]


def _joined(past: Tensor, y: Tensor, real: Tensor | None) -> Tensor:
    """What was before and what is new without a gap: the new rows' padding goes before both."""
    whole = torch.cat([past, y], 1)
    if real is None:
        return whole
    seen = torch.cat([real.new_ones(past.shape[:2]), real], 1).to(torch.uint8)
    order = seen.sort(dim=1, stable=True).indices[..., None]
    return whole.gather(1, order.expand_as(whole))


class Convolutional(nn.Module):
    """Next pieces: `hidden`, `real_hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: ConvolutionalConfig) -> None:
        super().__init__()
        c = self.config = config
        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.stream_dropout = Dropout(c.dropout)
        self.layers = nn.ModuleList(
            CausalConvolution(c.d_model, kernel_size=c.kernel_size, dilation=2**i, f=c.activation)
            for i in range(c.n_layers)
        )
        self.norm = LayerNorm(c.d_model)
        tied = self.token_embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=None)
        self._start()

    def _start(self) -> None:
        """The table N(0, 1/C); the convolutions as torch.nn draws them."""
        nn.init.normal_(self.output_head.weight, std=self.config.d_model**-0.5)
        nn.init.normal_(self.token_embed.weight, std=self.config.d_model**-0.5)

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, cache: StateCache | None = None
    ) -> Tensor:
        """ids int64 (B, T), mask bool (B, T) True = token → (B, T, C), zeros at padding.

        Padding is moved to the left, where it is as the nothing before a text, wherever it stood.
        With a cache, ids are the new positions alone.

        Raises:
            ValueError: more positions than the cache holds.
        """
        if cache is not None:
            cache.check(ids.shape[1])
        x = self.stream_dropout(self.token_embed(ids))  # (B, T, C)
        order = real = None
        if mask is not None:
            last = mask.to(torch.uint8).sort(dim=1, stable=True).indices  # real ones last
            order = last[..., None]  # (B, T, 1)
            x = x.masked_fill(~mask[..., None], 0).gather(1, order.expand_as(x))
            real = mask.gather(1, order[..., 0])
        x = self._layers(x, real, cache)
        if order is None or mask is None:
            return x
        return (
            torch.zeros_like(x).scatter(1, order.expand_as(x), x).masked_fill(~mask[..., None], 0)
        )

    def _layers(self, x: Tensor, real: Tensor | None, cache: StateCache | None) -> Tensor:
        before = cache.state if cache is not None else None
        rate = self.config.dropout if self.training else 0.0
        after = []
        for i, layer in enumerate(self.layers):
            y, past = layer(x, real, None if before is None else before[i])
            x = add_dropped(x, y, rate)
            after.append(past)
        if cache is not None:
            cache.append(x.shape[1], tuple(after))
        return self.norm(x)

    def real_hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, C), what a loss needs."""
        out = self.hidden(ids, mask)
        return out.flatten(0, 1) if mask is None else out[mask]

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → logits (…, V)."""
        return self.output_head(hidden)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the piece after each place."""
        return self.head(self.hidden(ids, mask))

    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> StateCache:
        """An empty cache for at most max_len positions; rows and device come with the first ids."""
        return StateCache(max_len)
