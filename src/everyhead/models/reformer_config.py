"""The numbers of a Reformer (models/reformer.py), and the sizes that were published.

Kitaev et al. 2020 (2001.04451), published code and checkpoints.
"""

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Layer = Literal["local", "lsh"]


class ReformerConfig(BaseModel):
    """Numbers of tokens, buckets and chunks; by default those of the smaller published model.

    attn_layers is repeated until there are n_layers (None: as many as it names).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = Field(320, gt=0)
    d_model: int = Field(256, gt=0)
    n_heads: int = Field(2, gt=0)
    d_head: int | None = Field(None, gt=0)  # None: d_model / n_heads
    d_ff: int = Field(512, gt=0)
    n_layers: int | None = Field(None, ge=0)
    attn_layers: tuple[Layer, ...] = Field(("local", "lsh") * 3, min_length=1)
    max_len: int = Field(524_288, gt=0)
    positions: Literal["axial", "learned"] = "axial"
    axial_shape: tuple[int, ...] | None = None  # None: rows of about √max_len
    axial_widths: tuple[int, ...] | None = None  # None: a quarter for the rows
    axial_std: float = 1.0
    local_chunk: int = Field(64, gt=0)
    local_before: int = Field(1, ge=0)
    lsh_chunk: int = Field(64, gt=0)
    lsh_before: int = Field(1, ge=0)
    n_buckets: int | tuple[int, ...] = 64
    n_rounds: int = Field(1, gt=0)
    hash_seed: int | None = None  # None: the rotations are drawn as weights are
    chunking: Literal["within-buckets", "published"] = "within-buckets"
    feed_forward_chunk: int | None = Field(None, gt=0)  # tokens at once, None: all
    dropout: float = Field(0.05, ge=0, lt=1)
    local_dropout: float = Field(0.05, ge=0, lt=1)
    lsh_dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "relu"
    norm_eps: float = 1e-12
    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None  # what fills rows; the model itself knows no padding but the mask

    @model_validator(mode="after")
    def _resolve(self) -> "ReformerConfig":
        n = len(self.attn_layers) if self.n_layers is None else self.n_layers
        layers = (self.attn_layers * math.ceil(n / len(self.attn_layers)))[:n] or self.attn_layers
        found: dict[str, Any] = {"n_layers": n, "attn_layers": layers}
        if self.d_head is None:
            found["d_head"] = max(1, self.d_model // self.n_heads)
        found |= self._grid()
        if "lsh" not in layers[:n]:
            found["chunking"] = "within-buckets"  # there is nothing to choose
        for name, value in found.items():
            object.__setattr__(self, name, value)
        return self

    def _grid(self) -> dict[str, tuple[int, ...] | None]:
        if self.positions == "learned":
            return {"axial_shape": None, "axial_widths": None}
        columns = 1 << math.ceil(math.log2(self.max_len) / 2)
        shape = self.axial_shape or (math.ceil(self.max_len / columns), columns)
        rows = max(1, self.d_model // 4)
        widths = self.axial_widths or (rows, self.d_model - rows)
        if math.prod(shape) < self.max_len or len(shape) != len(widths):
            raise ValueError(
                f"a grid of {'×'.join(map(str, shape))} with {len(widths)} widths has no place "
                f"for max_len {self.max_len}: give axial_shape and axial_widths that do, or neither"
            )
        if sum(widths) != self.d_model or min(widths) < 1:
            raise ValueError(f"axial_widths {widths} must add up to d_model {self.d_model}")
        return {"axial_shape": shape, "axial_widths": widths}

    @property
    def hashes(self) -> bool:
        """Is there a layer of LSH attention?"""
        return "lsh" in self.attn_layers[: self.n_layers]

    @property
    def published(self) -> bool:
        """Do chunks lie as published?"""
        return self.chunking == "published"


_COLUMNS = (
    "vocab_size", "d_model", "n_heads", "d_head", "d_ff", "n_layers", "attn_layers", "max_len",
    "axial_shape", "local_chunk", "lsh_chunk", "n_buckets", "n_rounds",
)  # fmt: skip
_EVEN: tuple[Layer, ...] = ("local", "lsh")
_FEW: tuple[Layer, ...] = ("local", "local", "lsh", "local")
_MANY = (64, 128)  # 8,192 buckets by 96 directions
_SMALL = "crime-and-punishment"  # what the published model of this size has read
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {  # V  C    H  D     F     L   layers  T       grid         local     b      r
        "tiny":   (320, 64,   4, None, 128,  2,  _EVEN, 128,     None,        16,  16,  8,     2),
        _SMALL:   (320, 256,  2, 64,   512,  6,  _EVEN, 524_288, (512, 1024), 64,  64,  _MANY, 1),
        "enwik8": (258, 1024, 8, 128,  4096, 12, _FEW,  65_536,  (128, 512),  128, 256, 512,   4),
    }.items()
}
# fmt: on
