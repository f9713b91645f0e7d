"""VisionText: one decoder over image patches and words, which answers questions about a picture.

    x = [patches·E_p + P_p; E[ids] + P]         hidden = stack(x)         logits = hidden_words Eᵀ

One architecture for several modalities (B744): whatever the input was, it is a row of vectors. All
see the picture, as the prefix of Raffel et al. 2019 (1910.10683) figure 4; words see those before
them. Several texts about one picture may lie in a row, none seeing another's (`documents`); a text
without a picture is read, too.
"""

from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Stack
from everyhead.layers.cache import TextCache
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.patches import GridPositions, Patches, Size, grid_of, sides
from everyhead.layers.positions import LearnedPositions, places, places_within
from everyhead.layers.residual import PreNorm


class VisionTextConfig(BaseModel):
    """The numbers of the decoder, the pictures' size, and the ids that end a question or answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int
    max_len: int = 64  # words and their pieces, the picture not counted
    image_size: Size = (32, 32)
    patch_size: Size = (4, 4)
    n_channels: int = Field(3, ge=1)
    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 4
    d_ff: int = 256
    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] = "gelu"
    norm_eps: float = 1e-5
    tie_output: bool = True
    sep_id: int = 0  # stands between question and answer
    eos_id: int = 1
    pad_id: int = 2

    _sides = field_validator("image_size", "patch_size", mode="before")(sides)

    @model_validator(mode="after")
    def _fits(self) -> "VisionTextConfig":
        grid_of(self.image_size, self.patch_size)
        return self


_COLUMNS = ("image_size", "patch_size", "d_model", "n_heads", "n_layers", "d_ff")
# fmt: off
PRESETS: dict[str, dict[str, Any]] = {
    name: dict(zip(_COLUMNS, row, strict=True))
    for name, row in {
        "tiny":   (32,  4,  96,  4, 3, 384),  # easy-VQA's pictures, halved
        "small":  (128, 16, 256, 4, 6, 1024),
    }.items()
}
# fmt: on


class PictureCache(TextCache):
    """A decoder's cache that knows how many of its keys are patches."""

    n_patches = 0


class VisionText(nn.Module):
    """Words after a picture: `hidden`, `head`, forward = head of hidden, `cache`."""

    def __init__(self, config: VisionTextConfig) -> None:
        super().__init__()
        c = self.config = config

        def norm() -> LayerNorm:
            return LayerNorm(c.d_model, c.norm_eps)

        def block() -> Block:
            attention = MultiHeadAttention(c.d_model, c.n_heads, dropout=c.attention_dropout)
            feed_forward = FeedForward(c.d_model, c.d_ff, f=c.activation)
            return Block(attention, feed_forward, residual=PreNorm(c.dropout), norm=norm)

        grid = grid_of(c.image_size, c.patch_size)
        self.patches = Patches(c.n_channels, c.d_model, patch=c.patch_size)
        self.patch_positions = GridPositions(grid, c.d_model, before=0)
        self.embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.positions = LearnedPositions(c.max_len, c.d_model)
        self.embed_dropout = Dropout(c.dropout)
        self.decoder = Stack([block() for _ in range(c.n_layers)], norm())
        tied = self.embed.weight if c.tie_output else None
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=tied, pad_id=c.pad_id)
        self._start()

    def _start(self) -> None:
        """Tables from N(0, 0.02²) as in GPT-2, maps as Glorot and Bengio have them."""
        for table in (self.embed.weight, self.output_head.weight):
            nn.init.normal_(table, std=0.02)

    def hidden(
        self,
        pixels: Tensor | None,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        documents: Tensor | None = None,
        cache: PictureCache | None = None,
    ) -> Tensor:
        """The words' states (B, T, C), everything before the head.

        Args:
            pixels: (B, ch, H, W); None: no picture, or it is in the cache already.
            ids: int64 (B, T); with a cache, the new ones alone.
            mask: bool (B, T), True = real token.
            documents: int64 (B, T), whose token each is, where several texts lie in a row.
            cache: of `cache()`.

        Raises:
            ValueError: more words than max_len, a second picture in a cache, documents beside one.
        """
        given = [] if pixels is None else [self._picture(pixels)]
        n = 0 if pixels is None else given[0].shape[1]
        real, rule, positions = mask, masks.causal(), places(mask, ids.shape[1])
        if documents is not None:
            positions = places_within(documents, mask)
            rule = rule & masks.documents(_behind(documents, n, -1))
        if mask is not None:
            real = _behind(mask, n, True)
        if cache is not None:
            if documents is not None or (n and cache.length):
                raise ValueError("a cache holds one picture and one text a row")
            positions = places(mask, ids.shape[1], cache.counts - cache.n_patches)
            cache.n_patches = cache.n_patches or n
            n = cache.n_patches
            real = cache.note(real, _behind(ids, 0 if pixels is None else n, 0))
        x = torch.cat([*given, self._words(ids, mask, positions)], 1)  # (B, N + T, C)
        rule = masks.prefix(n, rule) if n else rule
        if real is not None:
            rule = rule & masks.keys(real, zeroed=True)
        return self.decoder(x, rule, cache=cache)[:, -ids.shape[1] :]

    def real_hidden(
        self,
        pixels: Tensor | None,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        documents: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, C), what a loss needs."""
        hidden = self.hidden(pixels, ids, mask, documents=documents)
        return hidden.flatten(0, 1) if mask is None else hidden[mask]

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → logits (…, V); −∞ at padding."""
        return self.output_head(hidden)

    def forward(self, pixels: Tensor | None, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the piece after each word."""
        return self.head(self.hidden(pixels, ids, mask))

    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> PictureCache:
        """An empty cache for a picture and max_len words; rows and device come with the ids."""
        grid = self.patch_positions.grid
        return PictureCache(self.config.n_layers, max_len + grid[0] * grid[1])

    def _picture(self, pixels: Tensor) -> Tensor:
        patches = self.patches(pixels)  # (B, N, C)
        grid = grid_of((pixels.shape[2], pixels.shape[3]), self.config.patch_size)
        return self.embed_dropout(patches + self.patch_positions(grid))

    def _words(self, ids: Tensor, real: Tensor | None, positions: Tensor) -> Tensor:
        limit = self.config.max_len
        if ids.shape[1] and (n := int(positions.max()) + 1) > limit:
            raise ValueError(f"{n} words are more than the model's max_len {limit}: cut the text")
        x = self.embed_dropout(self.embed(ids) + self.positions(positions.to(ids.device)))
        return x if real is None else x.masked_fill(~real[..., None], 0)


def _behind(values: Tensor, n: int, first: int | bool) -> Tensor:
    """(B, T) with n equal ones before: (B, n + T)."""
    return torch.cat([values.new_full((len(values), n), first), values], 1)
