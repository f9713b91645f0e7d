"""The verbs of a model of two halves: the encoder reads the source, the decoder writes the target.

    memory = encode(source)        hidden = decode(target, memory)        logits = head(hidden)

Which embeddings, blocks and positions is the family's choice (models/t5.py); how padding, packed
rows and a cache enter is the same for all of them.
"""

from typing import Any

from torch import Tensor, nn

from everyhead.layers.beam_cache import BeamDecoderCache
from everyhead.layers.blocks import Memory
from everyhead.layers.cache import DecoderCache
from everyhead.layers.favor import FavorAttention
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.lsh import LshAttention
from everyhead.layers.packing import Packing, packing_of
from everyhead.layers.sliding import SlidingAttention


class EncoderDecoder(nn.Module):
    """`encode`, `decode`, `hidden`, `real_hidden`, `head`, forward = head of hidden, `cache`."""

    config: Any  # with n_decoder_layers
    output_head: VocabularyHead

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Memory:
        """source int64 (B, S), mask bool (B, S) True = token → what the decoder reads."""
        raise NotImplementedError

    def read_target(
        self,
        target: Tensor,
        memory: Memory,
        target_mask: Tensor | None,
        packing: Packing | None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """`decode` for the family to write: (B, T, C), or packed (N, C) where packing is given."""
        raise NotImplementedError

    def decode(
        self,
        target: Tensor,
        memory: Memory,
        *,
        target_mask: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Tensor:
        """target int64 (B, T) → hidden states (B, T, C), zeros at padding.

        With a cache, target holds the new positions only and must have no padding.

        Raises:
            ValueError: a cache meets padding.
        """
        if cache is not None and target_mask is not None and not bool(target_mask.all()):
            raise ValueError("decoding with a cache takes no padding: leave target_mask out")
        target_mask = None if cache is not None else target_mask
        packing = packing_of(target_mask)
        hidden = self.read_target(target, memory, target_mask, packing, cache)
        return hidden if packing is None else packing.unpack(hidden)

    def hidden(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Everything before the head: (B, T, C), zeros at padding."""
        return self.decode(target, self.encode(source, source_mask), target_mask=target_mask)

    def real_hidden(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """`hidden` at the real target tokens alone, row by row: (N, C), what a loss needs."""
        memory = self.encode(source, source_mask)
        packing = packing_of(target_mask)
        hidden = self.read_target(target, memory, target_mask, packing)
        if packing is not None:
            return hidden
        return hidden.flatten(0, 1) if target_mask is None else hidden[target_mask]

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → logits (…, V)."""
        return self.output_head(hidden)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (B, T, V) of the piece after each target position (teacher forcing)."""
        return self.head(self.hidden(source, target, source_mask, target_mask))

    def step_bias(self, n: int, n_keys: int, like: Tensor) -> Tensor | None:
        """What one new position of n_keys does not see is −∞, (1, 1, 1, S); None: nothing."""
        own = self._own_attention()
        if n > 1 or not isinstance(own, SlidingAttention):
            return None
        return own.step_bias(n_keys, like)

    def cache(self, memory: Memory, max_len: int, *, beams: int = 1) -> DecoderCache:
        """An empty cache for at most max_len target positions, of `beams` rows a sentence."""
        mask, n_layers = memory.mask, self.config.n_decoder_layers
        real = mask.key_mask if mask is not None and mask.only_keys else None
        own = self._own_attention()
        if beams == 1 or isinstance(own, FavorAttention | LshAttention):  # no bias tells beams
            return DecoderCache(n_layers, max_len, memory_mask=real)
        return BeamDecoderCache(n_layers, max_len, beams=beams, memory_mask=real)

    def _own_attention(self) -> nn.Module | None:
        first = next(iter(getattr(self.decoder, "blocks", ())), None)
        return getattr(first, "self_attn", None)
