"""A convolutional network for pictures, over torch.nn, to compare the Vision Transformer with.

    x ← pool(relu(norm(conv3×3(x))))  a stage        logits = mean over places of x · W + b

LeCun et al. 1989 and what came of it: the same small kernel at every place (equivariant to
translation), halved in size after each stage, averaged at the end (invariant); B711. Norm: one
group of all channels (Wu & He 2018, 1803.08494), which works with batches of any size.
"""

import itertools
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from everyhead.layers.patches import Size, sides


class PictureConvolutionConfig(BaseModel):
    """Channels of each stage; every stage halves the sides."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_classes: int = Field(10, ge=1)
    labels: tuple[str, ...] = ()  # the names of the classes
    image_size: Size = (64, 64)
    n_channels: int = Field(3, ge=1)
    channels: tuple[int, ...] = (32, 64, 128)
    dropout: float = Field(0.0, ge=0, lt=1)

    _sides = field_validator("image_size", mode="before")(sides)

    @model_validator(mode="after")
    def _fits(self) -> "PictureConvolutionConfig":
        if self.labels and len(self.labels) != self.n_classes:
            raise ValueError(f"{len(self.labels)} labels name {self.n_classes} classes")
        if min(self.image_size) < 2 ** len(self.channels):
            raise ValueError(
                f"pictures of {self.image_size[0]} × {self.image_size[1]} pixels cannot be halved "
                f"{len(self.channels)} times"
            )
        return self

    @property
    def d_model(self) -> int:
        """Of the last stage, which the head reads."""
        return self.channels[-1]


_COLUMNS = ("image_size", "n_channels", "channels")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  # as many parameters as the Vision Transformer's preset of that name
        "tiny":  (8,  1, (36, 64, 81)),             # 69,079 and 69,194
        "small": (32, 3, (32, 64, 128, 218)),  # 347,676 and 347,722, with 10 classes
    }.items()
}
# fmt: on


class PictureConvolution(nn.Module):
    """Stages of one convolution each: `hidden`, `head`, and forward = head of hidden."""

    def __init__(self, config: PictureConvolutionConfig) -> None:
        super().__init__()
        c = self.config = config
        widths = (c.n_channels, *c.channels)
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1),
                nn.GroupNorm(1, after),
                nn.ReLU(),
                nn.MaxPool2d(2),
            )
            for before, after in itertools.pairwise(widths)
        )
        self.dropout = nn.Dropout(c.dropout)
        self.classifier = nn.Linear(widths[-1], c.n_classes)
        self._start()

    def _start(self) -> None:
        """He et al. 2015 (1502.01852), for ReLU; the head at 0."""
        for stage in self.stages:
            for part in stage.modules():
                if isinstance(part, nn.Conv2d) and part.bias is not None:
                    nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
                    nn.init.zeros_(part.bias)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def hidden(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → (B, h·w, C), the places of the last stage.

        Raises:
            ValueError: another number of axes or channels.
        """
        if pixels.dim() != 4 or pixels.shape[1] != self.config.n_channels:
            raise ValueError(
                f"pictures are (batch, {self.config.n_channels} channels, height, width); got "
                f"{tuple(pixels.shape)}"
            )
        x = pixels
        for stage in self.stages:
            x = stage(x)  # (B, C, h, w)
        return x.flatten(2).transpose(1, 2)

    def head(self, hidden: Tensor) -> Tensor:
        """(B, h·w, C) → logits (B, n_classes)."""
        return self.classifier(self.dropout(hidden.mean(1)))

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, ch, H, W) → logits (B, n_classes)."""
        return self.head(self.hidden(pixels))
