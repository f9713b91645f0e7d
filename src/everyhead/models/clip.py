"""CLIP (Radford et al. 2021, 2103.00020), figure 3: one space for pictures and texts.

    logits = exp(t) · ‖image · W_i‖ ‖text · W_t‖ᵀ        ‖x‖ = x / |x|, t a trained temperature

The picture's tower is a Vision Transformer with one more norm before its blocks, the text's a
causal decoder that is read where the text ends. In training the factor exp(t) is kept to at most
100 (section 2.5; training/contrastive.py).
"""

import math
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Stack
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.linear import Linear
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.patches import GridPositions, Patches, Size, grid_of, sides
from everyhead.layers.positions import LearnedPositions, places
from everyhead.layers.residual import PreNorm

LARGEST_SCALE = 100.0
START = math.log(1 / 0.07)


class ClipConfig(BaseModel):
    """The numbers of the paper's table 20; those of the picture's tower begin with image_."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = 49408
    max_len: int = 77
    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 12
    d_ff: int = 2048
    image_size: Size = (224, 224)
    patch_size: Size = (32, 32)
    n_channels: int = Field(3, ge=1)
    image_d_model: int = 768
    image_n_heads: int = 12
    image_n_layers: int = 12
    image_d_ff: int = 3072
    d_embed: int = 512
    activation: Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"] = "quick_gelu"
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    norm_eps: float = 1e-5
    bos_id: int = 49406
    eos_id: int | None = 49407  # where a text is read; None: at the largest id of each
    pad_id: int = 1

    _sides = field_validator("image_size", "patch_size", mode="before")(sides)

    @model_validator(mode="after")
    def _fits(self) -> "ClipConfig":
        grid_of(self.image_size, self.patch_size)
        return self


_COLUMNS = (
    *("d_model", "n_heads", "n_layers", "d_ff", "image_size", "patch_size"),
    *("image_d_model", "image_n_heads", "image_n_layers", "image_d_ff", "d_embed"),
)
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":     (64,  4,  2,  128,  32,  4,  96,   4,  3,  384,  64),
        "base-32":  (512, 8,  12, 2048, 224, 32, 768,  12, 12, 3072, 512),
        "base-16":  (512, 8,  12, 2048, 224, 16, 768,  12, 12, 3072, 512),
        "large-14": (768, 12, 12, 3072, 224, 14, 1024, 16, 24, 4096, 768),
    }.items()
}
# fmt: on


class Clip(nn.Module):
    """Two towers: `image_features`, `text_features`; forward: every picture with every text."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        c = self.config = config

        def tower(d_model: int, n_heads: int, n_layers: int, d_ff: int) -> Stack:
            def norm() -> LayerNorm:
                return LayerNorm(d_model, c.norm_eps)

            def block() -> Block:
                attention = MultiHeadAttention(d_model, n_heads, dropout=c.attention_dropout)
                feed_forward = FeedForward(d_model, d_ff, f=c.activation)
                return Block(attention, feed_forward, residual=PreNorm(), norm=norm)

            return Stack([block() for _ in range(n_layers)])

        grid = grid_of(c.image_size, c.patch_size)
        width = c.image_d_model
        self.patches = Patches(c.n_channels, width, patch=c.patch_size, bias=False)
        self.class_token = nn.Parameter(torch.empty(width))
        self.image_positions = GridPositions(grid, width)
        self.image_first_norm = LayerNorm(width, c.norm_eps)
        self.image = tower(width, c.image_n_heads, c.image_n_layers, c.image_d_ff)
        self.image_norm = LayerNorm(width, c.norm_eps)  # of the class token alone
        self.image_proj = Linear(width, c.d_embed, bias=False)
        self.embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.text_positions = LearnedPositions(c.max_len, c.d_model)
        self.text = tower(c.d_model, c.n_heads, c.n_layers, c.d_ff)
        self.text_norm = LayerNorm(c.d_model, c.norm_eps)
        self.text_proj = Linear(c.d_model, c.d_embed, bias=False)
        self.log_scale = nn.Parameter(torch.tensor(START))
        self._start()

    def _start(self) -> None:
        """As the published code draws it; the paper names only the temperature's start, 0.07."""
        c = self.config
        nn.init.normal_(self.class_token, std=c.image_d_model**-0.5)
        nn.init.normal_(self.image_positions.weight, std=c.image_d_model**-0.5)
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.text_positions.weight, std=0.01)
        nn.init.normal_(self.image_proj.weight, std=c.image_d_model**-0.5)
        nn.init.normal_(self.text_proj.weight, std=c.d_model**-0.5)
        towers = (self.image, c.image_d_model, c.image_n_layers), (self.text, c.d_model, c.n_layers)
        for tower, width, n_layers in towers:
            last = width**-0.5 * (2 * n_layers) ** -0.5  # what is added to the residual stream
            stds = {"o_proj": last, "down_proj": last, "up_proj": (2 * width) ** -0.5}
            for name, part in tower.named_modules():
                if isinstance(part, Linear):
                    nn.init.normal_(part.weight, std=stds.get(name.split(".")[-1], width**-0.5))

    def image_hidden(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → (B, 1 + N, C'), the last block's output.

        Raises:
            ValueError: another number of channels, or sides that are no multiple of a patch.
        """
        patches = self.patches(pixels)  # (B, N, C')
        first = self.class_token.expand(len(patches), 1, -1)
        grid = grid_of((pixels.shape[2], pixels.shape[3]), self.config.patch_size)
        x = torch.cat([first, patches], 1) + self.image_positions(grid)
        return self.image(self.image_first_norm(x))

    def text_hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids int64 (B, T), mask bool (B, T) True = token → (B, T, C), after the last norm.

        Raises:
            ValueError: T is beyond the model's longest length.
        """
        if ids.shape[1] > self.config.max_len:
            raise ValueError(
                f"{ids.shape[1]} tokens are more than the model's max_len {self.config.max_len}: "
                "cut the text"
            )
        x = self.embed(ids) + self.text_positions(places(mask, ids.shape[1]).to(ids.device))
        rule = masks.causal()
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
            rule = rule & masks.keys(mask, zeroed=True)
        return self.text_norm(self.text(x, rule))

    def image_features(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → (B, E), not yet of length one; raises as `image_hidden`."""
        return self.image_proj(self.image_norm(self.image_hidden(pixels)[:, 0]))

    def text_features(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """ids (B, T), mask (B, T) → (B, E), not yet of length one.

        Raises:
            ValueError: as `text_hidden`, or a text does not end in eos_id.
        """
        hidden = self.text_hidden(ids, mask)
        rows = torch.arange(len(ids), device=ids.device)
        return self.text_proj(hidden[rows, self.ends(ids, mask)])

    def ends(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Where each text ends, (B,): its first eos_id, or its first largest id where none is set.

        Raises:
            ValueError: a text has no eos_id.
        """
        ids = ids if mask is None else ids.masked_fill(~mask, -1)
        if self.config.eos_id is None:
            return ids.argmax(1)
        found = ids == self.config.eos_id
        if not torch.compiler.is_compiling() and not bool(found.any(1).all()):
            raise ValueError(
                f"a text has no end: CLIP reads it at the token {self.config.eos_id}, which its "
                "tokenizer puts behind every text"
            )
        return found.int().argmax(1)

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """Features (B, E) and (A, E) → exp(t) times the cosine of each pair, (B, A)."""
        images = images / images.norm(dim=-1, keepdim=True)
        texts = texts / texts.norm(dim=-1, keepdim=True)
        return self.log_scale.exp() * images @ texts.t()

    def forward(self, pixels: Tensor, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """B pictures and A texts → logits (B, A) of every picture with every text."""
        return self.logits(self.image_features(pixels), self.text_features(ids, mask))
