"""Reformer (Kitaev et al. 2020, 2001.04451): a language model in O(n log n) and at a flat memory.

    x = E[ids] + P[positions]        x₁ = x₂ = x
    x₁ ← x₁ + attention(norm x₂)  ·  x₂ ← x₂ + FFN(norm x₁)  ·  logits = norm [x₁ ; x₂] W + b

Attention is by hashes (layers/lsh.py) or local (layers/local.py), layer by layer. The family's loop
is its own, layers/reversible_blocks.py: two streams, run backwards for the gradient.

A bucket is cut into chunks by itself, so that no later token moves them; config.chunking chooses
the published way, for published weights and comparison. That one sees the future, and cannot go on
from keys that it has: a step reads the whole text again. In both, padding changes nothing,
unlike in the published code. Dropout of positions is plain: theirs drops whole rows of the grid.
"""

import torch
from torch import Tensor, nn

from everyhead.layers import probe
from everyhead.layers.axial import AxialPositions
from everyhead.layers.cache import TextCache
from everyhead.layers.dropout import Dropout
from everyhead.layers.embeddings import TokenEmbedding
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.linear import Linear
from everyhead.layers.local import LocalAttention
from everyhead.layers.lsh import LshAttention, PublishedLshAttention
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.positions import LearnedPositions
from everyhead.layers.reread import RereadCache
from everyhead.layers.reversible_blocks import ReversibleBlock, ReversibleStack
from everyhead.models.reformer_config import PRESETS, Layer, ReformerConfig
from everyhead.models.text_decoder import TextDecoder

__all__ = ["PRESETS", "Reformer", "ReformerConfig"]

EXEMPT = (
    "Its LSH attention has the published chunks, whose edges move when a later token changes: it "
    "sees the future, and a step reads the whole text again. "
    "Open it with chunking within-buckets to have neither."
)


class Reformer(TextDecoder):
    """Next pieces: `hidden` (B, T, 2C), `head`, forward = head of hidden, `cache`."""

    config: ReformerConfig
    decoder: ReversibleStack  # type: ignore[assignment]
    output_head: Linear  # type: ignore[assignment]

    def __init__(self, config: ReformerConfig) -> None:
        super().__init__()
        c = self.config = config

        def block(kind: Layer) -> ReversibleBlock:
            return ReversibleBlock(
                self._attention(kind),
                FeedForward(c.d_model, c.d_ff, f=c.activation, dropout=c.dropout),
                d_model=c.d_model,
                norm_eps=c.norm_eps,
                dropout=c.dropout,
                at_once=c.feed_forward_chunk,
            )

        self.token_embed = TokenEmbedding(c.vocab_size, c.d_model, scale=1.0)
        self.positions = self._positions()
        self.embed_dropout = Dropout(c.dropout)
        blocks = [block(kind) for kind in c.attn_layers[: c.n_layers]]
        self.decoder = ReversibleStack(blocks, c.d_model, norm_eps=c.norm_eps, dropout=c.dropout)
        self.output_head = Linear(2 * c.d_model, c.vocab_size)
        self._start()

    def _attention(self, kind: Layer) -> MultiHeadAttention:
        c = self.config
        if kind == "local":
            return LocalAttention(
                c.d_model,
                c.n_heads,
                chunk=c.local_chunk,
                look=(c.local_before, 0),
                d_head=c.d_head,
                dropout=c.local_dropout,
            )
        attention = (PublishedLshAttention if c.published else LshAttention)(
            c.d_model,
            c.n_heads,
            n_buckets=c.n_buckets,
            n_rounds=c.n_rounds,
            chunk=c.lsh_chunk,
            look=(c.lsh_before, 0),
            d_head=c.d_head,
            dropout=c.lsh_dropout,
        )
        if "local" in c.attn_layers:  # the published code fills a text up for both kinds of chunks
            attention.hashing = attention.hashing._replace(fill=c.local_chunk)
        return attention

    def _positions(self) -> AxialPositions | LearnedPositions:
        c = self.config
        if c.axial_shape is None or c.axial_widths is None:
            return LearnedPositions(c.max_len, c.d_model)
        return AxialPositions(c.axial_shape, c.axial_widths, std=c.axial_std)

    def _start(self) -> None:
        """N(0, 0.02²) for every map and table; rotations by config.hash_seed, if there is one."""
        for part in self.modules():
            if isinstance(part, Linear | TokenEmbedding | LearnedPositions):
                nn.init.normal_(part.weight, std=0.02)
            elif isinstance(part, LshAttention) and self.config.hash_seed is not None:
                part.seed(self.config.hash_seed)

    @property
    def exempt(self) -> dict[str, str]:
        """The laws that do not hold for it by its nature (`everyhead check`), and why."""
        laws = ("future", "cache", "reorder") if self.config.published else ()
        return dict.fromkeys(laws, EXEMPT)

    def redraw(self) -> None:
        """Other rotations for all layers; see LshAttention.redraw."""
        for part in self.modules():
            if isinstance(part, LshAttention):
                part.redraw()

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        """E[ids] + P[positions], each dropped by itself."""
        return self.embed_dropout(self.token_embed(ids)) + self.embed_dropout(
            self.positions(positions)
        )

    def hidden(  # type: ignore[override]
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        cache: TextCache | RereadCache | None = None,
    ) -> Tensor:
        """As TextDecoder's, (B, T, 2C); hashes cannot keep the documents of a row apart.

        Raises:
            ValueError: more tokens than max_len.
        """
        if isinstance(cache, RereadCache):
            whole, real = cache.append(ids, mask)
            return self._published(whole, real)[:, -ids.shape[1] :]
        return super().hidden(ids, mask, cache=cache)

    def real_hidden(  # type: ignore[override]
        self, ids: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """`hidden` at the real tokens alone, row by row: (N, 2C), what a loss needs."""
        return super().real_hidden(ids, mask)

    def cache(  # type: ignore[override]
        self, max_len: int, rows: int = 1, device: torch.device | str | None = None
    ) -> TextCache | RereadCache:
        """An empty cache for at most max_len positions; with published chunks, of ids."""
        if self.config.published:
            return RereadCache(max_len)
        return TextCache(len(self.decoder.blocks), max_len)

    def _whole(
        self,
        ids: Tensor,
        real: Tensor | None,
        documents: Tensor | None,
        packing: Packing | None,
    ) -> Tensor:
        if not self.config.published:
            return super()._whole(ids, real, documents, packing)
        out = self._published(ids, real)
        return out if packing is None else packing.pack(out)

    def _published(self, ids: Tensor, real: Tensor | None) -> Tensor:
        """Rows of one length at a time, without their padding, which would move the chunks.

        Raises:
            ValueError: somebody looks, and would see one of several lengths alone.
        """
        if real is None:
            return super()._whole(ids, None, None, None)
        counts = real.sum(1)
        lengths = [n for n in counts.unique().tolist() if n > 0]
        if probe.active() and len(lengths) > 1:
            raise ValueError(
                f"rows of {len(lengths)} lengths are read one length after the other where chunks "
                "are the published ones: look at rows of one length at a time"
            )
        out = self.decoder.norm.weight.new_zeros(*ids.shape, 2 * self.config.d_model)
        order = (~real).sort(stable=True).indices  # real ones first
        for n in lengths:
            rows = (counts == n).nonzero()  # (b, 1)
            taken = order[rows[:, 0], :n]  # (b, n)
            found = super()._whole(ids[rows, taken], None, None, None)  # (b, n, 2C)
            out = out.index_put((rows, taken), found)
        return out
