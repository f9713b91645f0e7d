"""Pythia (Biderman et al. 2023, 2304.01373), shaped as GPT-NeoX (Black et al. 2022, 2204.06745).

    x ← x + attention(norm₁ x) + FFN(norm₂ x)          section 2.1 of GPT-NeoX: both at once

A quarter of each head's channels is turned by its position; in Hugging Face's these come first,
here they are the first of each half: the same up to an order of channels.
"""

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from everyhead.layers.blocks import Block, Stack
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.residual import PreNorm
from everyhead.layers.rotary import Rotary, Rotation
from everyhead.models.text_decoder import TextDecoder


class PythiaConfig(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    vocab_size: int = 50_304
    d_model: int = 512
    n_heads: int = 8
    n_layers: int = 6
    max_len: int = 2048
    eos_id: int | None = None


PRESETS = {"tiny": {"vocab_size": 512, "d_model": 64, "n_heads": 4, "n_layers": 2}, "70m": {}}


class ParallelBlock(Block):
    def forward(self, x: Tensor, mask=None, memory=None, *, caches=None, **more) -> Tensor:
        cache = None if caches is None else caches[0]
        attended = self.self_attn(self.self_attn_norm(x), mask, cache=cache, **more)
        return x + attended + self.feed_forward(self.feed_forward_norm(x))


class Pythia(TextDecoder):
    def __init__(self, config: PythiaConfig) -> None:
        super().__init__()
        c = self.config = config
        blocks = [
            ParallelBlock(
                MultiHeadAttention(c.d_model, c.n_heads),
                FeedForward(c.d_model, 4 * c.d_model, f="gelu"),
                residual=PreNorm(),
                norm=lambda: LayerNorm(c.d_model),
            )
            for _ in range(c.n_layers)
        ]
        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.decoder = Stack(blocks, LayerNorm(c.d_model))
        self.output_head = VocabularyHead(c.vocab_size, c.d_model, tied=None, pad_id=None)
        self.rotary = Rotary(c.d_model // c.n_heads // 4)
        for matrix in (p for p in self.parameters() if p.dim() > 1):
            nn.init.normal_(matrix, std=0.02)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.token_embed(ids)

    def rotation(self, positions: Tensor) -> Rotation:
        cos, sin = self.rotary(positions)  # (B, 1, T, D/4)
        still = torch.ones_like(cos).repeat(1, 1, 1, 3).chunk(2, -1)  # (B, 1, T, 3D/8), twice
        halves = list(zip(cos.chunk(2, -1), sin.chunk(2, -1), still, strict=True))
        cos = torch.cat([torch.cat([c, one], -1) for c, _, one in halves], -1)
        return Rotation(cos, torch.cat([torch.cat([s, 0 * one], -1) for _, s, one in halves], -1))
