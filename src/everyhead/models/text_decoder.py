"""The verbs of a decoder that reads no memory: text in, the next piece at each place out.

    hidden = stack(embed(ids, positions), causal)        logits = hidden Eᵀ

Which embedding, which blocks and which positions is the family's choice (models/gpt2.py,
models/llama.py); how padding, packed documents and a cache enter is the same for all of them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from everyhead.layers import masks, probe
from everyhead.layers.blocks import Stack
from everyhead.layers.cache import TextCache
from everyhead.layers.favor import FavorAttention
from everyhead.layers.feature_cache import FeatureCache
from everyhead.layers.heads import VocabularyHead
from everyhead.layers.lsh import LshAttention
from everyhead.layers.packing import Packing, only_right, packing_of
from everyhead.layers.positions import places, places_within
from everyhead.layers.rotary import Rotation
from everyhead.layers.sliding import SlidingAttention

ENDLESS = 1 << 40  # tokens


class TextDecoder(nn.Module):
    """`hidden`, `real_hidden`, `head`, forward = head of hidden, and `cache`."""

    config: Any  # with max_len and n_layers
    decoder: Stack
    output_head: VocabularyHead

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """ids and positions int64, (B, T) or packed (N,) → (…, C)."""
        raise NotImplementedError

    def rotation(self, positions: Tensor) -> Rotation | None:
        """What turns q and k at positions int64 (B|1, T); None: nothing does."""
        return None

    def hidden(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        documents: Tensor | None = None,
        cache: TextCache | None = None,
    ) -> Tensor:
        """ids int64 (B, T) → (B, T, C), everything before the head.

        Args:
            ids: with a cache, the new positions alone.
            mask: bool (B, T), True = real token; positions count real tokens, so left padding
                changes nothing, and neither does right padding.
            documents: int64 (B, T), whose token each is, where several texts lie one after the
                other in a row; none sees another's, and positions start anew in each.
            cache: of `cache()`, for going on where the last call ended.

        Raises:
            ValueError: more tokens than max_len, or documents beside a cache.
        """
        if cache is not None:
            if documents is not None:
                raise ValueError("a cache holds one text a row: leave documents out")
            return self._further(ids, mask, cache)
        packing = packing_of(mask)
        out = self._whole(ids, mask, documents, packing)
        return out if packing is None else packing.unpack(out)

    def real_hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, documents: Tensor | None = None
    ) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, C), what a loss needs."""
        packing = packing_of(mask)
        out = self._whole(ids, mask, documents, packing)
        if packing is not None:
            return out
        return out.flatten(0, 1) if mask is None else out[mask]

    def head(self, hidden: Tensor) -> Tensor:
        """(…, C) → logits (…, V)."""
        return self.output_head(hidden)

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) of the piece after each place."""
        return self.head(self.hidden(ids, mask))

    def cache(
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> TextCache:
        """An empty cache for at most max_len positions; rows and device come with the first ids."""
        n, limit = self.config.n_layers, self.config.max_len
        own = self._own_attention()
        if isinstance(own, SlidingAttention):
            return own.text_cache(n, max_len, max_len=limit, rotary=getattr(self, "rotary", None))
        kind = FeatureCache if isinstance(own, FavorAttention) else TextCache
        return kind(n, max_len)

    @property
    def longest(self) -> int:
        """Tokens of the longest text that it reads step by step.

        There is no end where a window slides over rotary positions (layers/sliding_cache.py).
        """
        own, limit = self._own_attention(), int(self.config.max_len)
        if not isinstance(own, SlidingAttention) or getattr(self, "rotary", None) is None:
            return limit
        return ENDLESS if own.first + own.size <= limit else limit

    @property
    def keeps_apart(self) -> bool:
        """Can its attention keep the documents of a row to themselves? Hashing cannot."""
        return not isinstance(self._own_attention(), LshAttention)

    def _own_attention(self) -> nn.Module | None:
        first = next(iter(getattr(getattr(self, "decoder", None), "blocks", ())), None)
        return getattr(first, "self_attn", None)

    def _whole(
        self,
        ids: Tensor,
        real: Tensor | None,
        documents: Tensor | None,
        packing: Packing | None,
    ) -> Tensor:
        positions = places(real, ids.shape[1]).to(ids.device)  # (B|1, T)
        rule = masks.causal()
        if real is not None and not only_right(real, packing):
            rule = rule & masks.keys(real, zeroed=True)
        if documents is not None:
            positions = places_within(documents, real)  # (B, T)
            rule = rule & masks.documents(documents)
        self._check_length(ids.shape[1], positions)
        if packing is None:
            x = _zeroed(self.embed(ids, positions), real)  # (B, T, C)
        else:
            packed = positions.expand_as(ids).flatten()[packing.index]
            x = self.embed(ids.flatten()[packing.index], packed)  # (N, C)
        return self.decoder(x, rule, packing=packing, rotation=self.rotation(positions))

    def _further(self, ids: Tensor, real: Tensor | None, cache: TextCache) -> Tensor:
        """New positions after those in the cache: (B, T, C)."""
        positions = cache.places(real, ids.shape[1]).to(ids.device)  # (B|1, T)
        self._check_length(cache.length + ids.shape[1], positions)
        x = _zeroed(self.embed(ids, positions), real)
        seen, rule, bias = cache.note(real, ids), masks.causal(), None
        if seen is not None and ids.shape[1] == 1 and not probe.active():
            bias = _hidden(seen, x.dtype)  # made once, not in every layer
        elif seen is not None:
            rule = rule & masks.keys(seen, zeroed=True)
        cache.note_bias(bias)
        return self.decoder(x, rule, cache=cache, rotation=self.rotation(positions))

    def _check_length(self, n: int, positions: Tensor) -> None:
        limit = self.config.max_len
        if n > limit and (n := int(positions.max()) + 1) > limit:
            raise ValueError(
                f"{n} tokens are more than the model's max_len {limit}: cut the text or split it"
            )


def _hidden(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, 1, 1, S): −∞ at keys that are not real, nothing in rows that have none that are."""
    hidden = ~seen & seen.any(1, keepdim=True)  # (B, S)
    bias = torch.zeros(hidden.shape, dtype=dtype, device=seen.device)
    return bias.masked_fill_(hidden, float("-inf"))[:, None, None]


def _zeroed(x: Tensor, real: Tensor | None) -> Tensor:
    return x if real is None else x.masked_fill(~real[..., None], 0)
