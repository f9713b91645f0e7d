"""The Vision Transformer (Dosovitskiy et al. 2020, 2010.11929), figure 1.

    z = encoder([class; patches·E] + E_pos)         logits = LN(z)_class W + b

Pre-norm throughout. Pictures of another size than the trained one get positions between the trained
ones. `pooler` is tanh of one more map over the class token, the head of the paper's pre-training
without its last layer; published bodies carry it.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from everyhead.layers.blocks import Block, Stack
from everyhead.layers.dropout import Dropout
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.linear import Linear
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.patches import GridPositions, Patches, Size, grid_of, sides
from everyhead.layers.residual import PreNorm


class VisionTransformerConfig(BaseModel):
    """The numbers of the paper's table 1 and the choices in which published models differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_classes: int = Field(1000, ge=0)  # 0: no head
    labels: tuple[str, ...] = ()  # the names of the classes
    image_size: Size = (224, 224)
    patch_size: Size = (16, 16)
    n_channels: int = Field(3, ge=1)
    d_model: int = 768
    n_heads: int = 12
    n_layers: int = 12
    d_ff: int = 3072
    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"] = "gelu"
    norm_eps: float = 1e-12
    attention_bias: bool = True  # of W^Q, W^K and W^V
    pooler: bool = False

    _sides = field_validator("image_size", "patch_size", mode="before")(sides)

    @model_validator(mode="after")
    def _fits(self) -> "VisionTransformerConfig":
        grid_of(self.image_size, self.patch_size)
        if self.labels and len(self.labels) != self.n_classes:
            raise ValueError(f"{len(self.labels)} labels name {self.n_classes} classes")
        return self


_COLUMNS = (
    *("image_size", "patch_size", "n_channels", "n_classes"),
    *("d_model", "n_heads", "n_layers", "d_ff"),
)
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":     (8,   2,  1, 10,   64,   4,  2,  128),   # scikit-learn's digits
        "small":    (32,  4,  3, 10,   96,   4,  3,  384),   # easy-VQA's pictures, halved
        "base-16":  (224, 16, 3, 1000, 768,  12, 12, 3072),  # ViT-B/16
        "base-32":  (224, 32, 3, 1000, 768,  12, 12, 3072),
        "large-16": (224, 16, 3, 1000, 1024, 16, 24, 4096),
        "huge-14":  (224, 14, 3, 1000, 1280, 16, 32, 5120),
    }.items()
}
# fmt: on


class VisionTransformer(nn.Module):
    """An encoder over patches: `hidden`, `head`, and forward = head of hidden."""

    def __init__(self, config: VisionTransformerConfig) -> None:
        super().__init__()
        c = self.config = config

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model, c.norm_eps)

        def block() -> Block:
            attention = MultiHeadAttention(
                c.d_model,
                c.n_heads,
                bias=c.attention_bias,
                o_bias=True,
                dropout=c.attention_dropout,
            )
            feed_forward = FeedForward(c.d_model, c.d_ff, f=c.activation)
            return Block(attention, feed_forward, residual=PreNorm(c.dropout), norm=norm)

        self.patches = Patches(c.n_channels, c.d_model, patch=c.patch_size)
        self.class_token = nn.Parameter(torch.empty(c.d_model))
        self.positions = GridPositions(grid_of(c.image_size, c.patch_size), c.d_model)
        self.embed_dropout = Dropout(c.dropout)
        self.encoder = Stack([block() for _ in range(c.n_layers)], norm())
        self.pooler = Linear(c.d_model, c.d_model) if c.pooler else None
        self.classifier = Linear(c.d_model, c.n_classes) if c.n_classes else None
        self._start()

    def _start(self) -> None:
        """The class token and the head start at 0 (2010.11929 appendix D.4 and its code)."""
        nn.init.zeros_(self.class_token)
        if self.classifier is not None:
            nn.init.zeros_(self.classifier.weight)

    def hidden(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → (B, 1 + N, C): the class token, then the patches.

        Raises:
            ValueError: another number of channels, or sides that are no multiple of a patch.
        """
        patches = self.patches(pixels)  # (B, N, C)
        first = self.class_token.expand(len(patches), 1, -1)
        grid = grid_of((pixels.shape[2], pixels.shape[3]), self.config.patch_size)
        x = torch.cat([first, patches], 1) + self.positions(grid)
        return self.encoder(self.embed_dropout(x))

    def pooled(self, hidden: Tensor) -> Tensor:
        """(B, 1 + N, C) → one vector a picture (B, C): the class token's, or the pooler's of it."""
        first = hidden[:, 0]
        return first if self.pooler is None else self.pooler(first).tanh()

    def head(self, hidden: Tensor) -> Tensor:
        """(B, 1 + N, C) → logits (B, n_classes), from the class token.

        Raises:
            ValueError: the model has no head.
        """
        if self.classifier is None:
            raise ValueError("this VisionTransformer has no classes: its n_classes is 0")
        return self.classifier(hidden[:, 0])

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → logits (B, n_classes)."""
        return self.head(self.hidden(pixels))
