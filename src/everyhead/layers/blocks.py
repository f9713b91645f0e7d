"""A block is attention and feed-forward, each inside a residual; a stack is blocks in a row.

    x ← residual(x, self_attn)  ·  x ← residual(x, cross_attn with memory)  ·  x ← residual(x, FFN)

Vaswani et al. 2017 (1706.03762) figure 1; B419, B540. The encoder's block has no cross-attention.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor, nn

from everyhead.layers.cache import DecoderCache, KeyValueCache
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.residual import Residual
from everyhead.layers.rotary import Rotation


class Memory(NamedTuple):
    """What a decoder reads: states (B, S, C), or (N, C) packed rows, and the mask over S."""

    states: Tensor
    mask: Mask | None = None
    packing: Packing | None = None


class Block(nn.Module):
    """The sublayers of one layer and their norms."""

    def __init__(
        self,
        self_attn: MultiHeadAttention,
        feed_forward: nn.Module,
        *,
        residual: Residual,
        norm: Callable[[], nn.Module],
        cross_attn: MultiHeadAttention | None = None,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.self_attn, self.self_attn_norm = self_attn, norm()
        self.cross_attn, self.cross_attn_norm = cross_attn, norm() if cross_attn else None
        self.feed_forward, self.feed_forward_norm = feed_forward, norm()

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        memory: Memory | None = None,
        *,
        packing: Packing | None = None,
        caches: tuple[KeyValueCache, KeyValueCache] | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """x (B, T, C) or packed (N, C) → the same shape; bias and rotation: of self-attention."""
        self_cache, cross_cache = caches or (None, None)
        x = self.residual(
            x,
            self.self_attn_norm,
            lambda y: self.self_attn(
                y, mask, packing=packing, cache=self_cache, bias=bias, rotation=rotation
            ),
        )
        if self.cross_attn is not None and memory is not None:
            cross = self.cross_attn
            x = self.residual(
                x,
                self.cross_attn_norm,
                lambda y: cross(
                    y,
                    memory.mask,
                    memory.states,
                    packing=packing,
                    memory_packing=memory.packing,
                    cache=cross_cache,
                ),
            )
        return self.residual(x, self.feed_forward_norm, self.feed_forward)


class Stack(nn.Module):
    """n blocks in a row and, for pre-norm, a last norm."""

    def __init__(self, blocks: list[Block], norm: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        memory: Memory | None = None,
        *,
        packing: Packing | None = None,
        cache: DecoderCache | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """x (B, T, C) or packed (N, C) → the same shape; bias and rotation: of self-attention."""
        y: Tensor | None = None
        if cache is not None and bias is None and rotation is None:
            y = self.at_once(x, mask, memory, cache)
        if y is None:
            y = x
            for i, block in enumerate(self.blocks):
                y = block(
                    y,
                    mask,
                    memory,
                    packing=packing,
                    caches=None if cache is None else (cache.self_attn[i], cache.cross_attn[i]),
                    bias=bias,
                    rotation=rotation,
                )
        return y if self.norm is None else self.norm(y)

    def at_once(
        self, x: Tensor, mask: Mask | None, memory: Memory | None, cache: DecoderCache
    ) -> Tensor | None:
        """All blocks in one call (layers/compiled_step.py); None: there is no such call."""
        return None
