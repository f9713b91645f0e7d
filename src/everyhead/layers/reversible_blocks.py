"""Blocks of two streams, and a stack of them that is run backwards for its gradient.

    y₁ = x₁ + attention(norm x₂)    y₂ = x₂ + FFN(norm y₁)        the stack: norm [y₁ ; y₂]

Kitaev et al. 2020 (2001.04451) section 3; layers/reversible.py. A block takes and gives both
streams side by side, (…, 2C). The feed-forward may go over some tokens at a time ("chunking"
there): then d_ff is wide for those alone, in backward too.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everyhead.layers import probe
from everyhead.layers.cache import DecoderCache, KeyValueCache
from everyhead.layers.dropout import Dropout
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.packing import Packing
from everyhead.layers.reversible import Reversible, Sublayer


class ReversibleBlock(nn.Module):
    """Attention that reads the second stream, and a feed-forward that reads the first.

    at_once: tokens of a row that the feed-forward takes together, None: all.
    """

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        feed_forward: nn.Module,
        *,
        d_model: int,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
        at_once: int | None = None,
    ) -> None:
        super().__init__()
        self.self_attn, self.self_attn_norm = self_attn, LayerNorm(d_model, norm_eps)
        self.feed_forward, self.feed_forward_norm = feed_forward, LayerNorm(d_model, norm_eps)
        self.sublayer_dropout, self.at_once = Dropout(dropout), at_once

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        packing: Packing | None = None,
        *,
        cache: KeyValueCache | None = None,
        half: str | None = None,
    ) -> Tensor:
        """Both streams (B, T, 2C) or packed (N, 2C) → the same shape.

        half: "attention" or "feed_forward", for what one of them adds to a stream (…, C).
        """
        if half == "attention":
            return self._attended(x, mask, packing, cache)
        if half == "feed_forward":
            return self._fed(x)
        x1, x2 = x.chunk(2, -1)  # (…, C) each
        x1 = x1 + self._attended(x2, mask, packing, cache)
        x2 = x2 + self._fed(x1)
        return torch.cat([x1, x2], -1)  # (…, 2C)

    def _attended(
        self, x: Tensor, mask: Mask | None, packing: Packing | None, cache: KeyValueCache | None
    ) -> Tensor:
        y = self.self_attn(self.self_attn_norm(x), mask, packing=packing, cache=cache)
        return self.sublayer_dropout(y)

    def _fed(self, x: Tensor) -> Tensor:
        if self.at_once is None or x.shape[-2] <= self.at_once:
            return self._fed_whole(x)
        pieces = x.split(self.at_once, -2)
        if torch.is_grad_enabled():
            fed = [checkpoint(self._fed_whole, piece, use_reentrant=False) for piece in pieces]
        else:
            fed = [self._fed_whole(piece) for piece in pieces]
        return torch.cat(fed, -2)

    def _fed_whole(self, x: Tensor) -> Tensor:
        return self.sublayer_dropout(self.feed_forward(self.feed_forward_norm(x)))


class Half(NamedTuple):
    """One of a block's two sublayers."""

    block: nn.Module
    name: str

    def __call__(self, x: Tensor, *given: Any) -> Tensor:
        return self.block(x, *given, half=self.name)

    def parameters(self) -> Iterator[nn.Parameter]:
        """All of the block's: those of the other half get no gradient here."""
        return self.block.parameters()

    @property
    def training(self) -> bool:
        return self.block.training


class ReversibleStack(Reversible):
    """n blocks in a row, both streams starting as x, and a norm over both at the end.

    Activations are kept where blocks run one after the other: behind a cache, where somebody looks,
    and in a traced graph, which cannot be told how to go backwards.
    """

    def __init__(
        self,
        blocks: list[ReversibleBlock],
        d_model: int,
        *,
        norm_eps: float = 1e-5,
        dropout: float = 0.0,
    ) -> None:
        nn.Module.__init__(self)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.last_dropout = LayerNorm(2 * d_model, norm_eps), Dropout(dropout)

    def pairs(self) -> list[tuple[Sublayer, Sublayer]]:
        return [(Half(b, "attention"), Half(b, "feed_forward")) for b in self.blocks]

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        mask: Mask | None = None,
        *,
        packing: Packing | None = None,
        cache: DecoderCache | None = None,
        rotation: None = None,
    ) -> Tensor:
        """x (B, T, C) or packed (N, C) → (…, 2C); positions are in x, there is no rotation."""
        kept = cache is not None or probe.active() or torch.compiler.is_compiling()
        if not kept and torch.is_grad_enabled():
            y = torch.cat(super().forward(x, x, mask, packing), -1)  # (…, 2C)
        else:
            y = torch.cat([x, x], -1)  # (…, 2C)
            for i, block in enumerate(self.blocks):
                own = None if cache is None else cache.self_attn[i]
                y = block(y, mask, packing=packing, cache=own)
        return self.last_dropout(self.norm(y))
