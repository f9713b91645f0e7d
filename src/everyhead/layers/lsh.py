"""LSH attention: who looks at whom is decided by hashing, so alike tokens meet in O(n log n).

    q = x W^Q    k = q/|q|    i looks at j where both fall into one bucket, into near chunks of it

Kitaev et al. 2020 (2001.04451) section 2; the hash and the chunks: layers/hashing.py; the matrix:
layers/chunked.py. Here a bucket is cut into chunks by itself, by how many of its tokens came
before, and how many buckets there are does not depend on the length: published chunks move when the
last token changes, and with them what earlier tokens see. The rotations are a buffer, drawn once
and saved: a run that is resumed, and a backward that computes anew, hash as before.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from everyhead.layers import chunked
from everyhead.layers.chunked import LshParts
from everyhead.layers.hashing import Hashing, Layout, across_buckets, seeded, within_buckets
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.rotary import Rotation


class LshAttention(MultiHeadAttention):
    """Multi-head self-attention among tokens of one bucket, any length from 1 up. 2001.04451.

    n_buckets: even, or 1, or factors of their number; look: how many chunks of its bucket a token
    sees before and after its own. Without biases, as published. A step behind a cache hashes all
    keys again: O(n) a token, as exact attention's step.
    """

    layout: Layout = staticmethod(within_buckets)
    rotations: Tensor

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_buckets: int | tuple[int, ...],
        n_rounds: int = 4,
        chunk: int = 64,
        look: tuple[int, int] = (1, 0),
        d_head: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, n_heads, d_head=d_head, scale=1.0, bias=False, dropout=dropout)
        del self.k_proj  # keys are the queries
        factors = (n_buckets,) if isinstance(n_buckets, int) else tuple(n_buckets)
        self.hashing = Hashing(factors, chunk, look).check()
        if n_rounds < 1:
            raise ValueError(f"tokens are hashed at least once; got n_rounds {n_rounds}")
        shape = (n_heads, self.d_head, n_rounds, self.hashing.width)
        self.register_buffer("rotations", nn.init.normal_(torch.zeros(shape)))

    def redraw(self) -> None:
        """Other rotations, as training may want now and then.

        Raises:
            ValueError: in eval, where they are fixed.
        """
        if not self.training:
            raise ValueError("the rotations are fixed in eval: call train() before redraw()")
        nn.init.normal_(self.rotations)

    def seed(self, seed: int) -> None:
        """The rotations that Hugging Face's code draws at every call for its `hash_seed`."""
        self.rotations.copy_(seeded(tuple(self.rotations.shape), seed))

    def is_seeded(self, seed: int) -> bool:
        """Are the rotations those of this seed, still?"""
        kept = self.rotations.to("cpu", torch.float32)
        return torch.equal(kept, seeded(tuple(kept.shape), seed))

    def visible(self, mask: Mask | None) -> Mask | None:
        """The mask itself.

        Raises:
            ValueError: it is more than padding and the causal rule.
        """
        if not chunked.is_fast(mask):
            names = ", ".join(type(rule).__name__.lower() for rule in (mask or Mask()).rules)
            raise ValueError(
                "LSH attention honours padding and the causal rule, which it can apply within its "
                f"chunks; not this mask ({names}): use exact attention"
            )
        return mask

    def project(  # type: ignore[override]
        self,
        x: Tensor,
        memory: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        rotation: Rotation | None = None,
    ) -> LshParts:
        """W^Q on x for queries and, normalised, for keys; W^V.

        Raises:
            ValueError: a memory or a rotation is given.
        """
        if memory is not None:
            _refuse("a memory", "its queries are its keys; use exact attention for cross-attention")
        if rotation is not None:
            _refuse("rotary positions", "they would turn alike tokens into other buckets")
        q, v = self._split(
            self._joined(x, self.q_proj, self.v_proj), packing, (self.n_heads, self.n_heads)
        )
        wide = q.to(torch.promote_types(q.dtype, torch.float32))
        length = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * self.d_head**-0.5
        k = (wide * length).to(q.dtype)  # (B, H, T, D)
        return LshParts(
            q,
            k,
            v,
            self.scale,
            rotations=self.rotations,
            hashing=self.hashing,
            layout=self.layout,
        )

    def attend(  # type: ignore[override]
        self, parts: LshParts, mask: Mask | None, dropout_p: float = 0.0
    ) -> Tensor:
        """(B, H, T, Dv); raises ValueError for a bias that does more than hide keys."""
        mask, parts = chunked.without_bias(parts, mask)
        with torch.autocast(parts.q.device.type, enabled=False):
            return chunked.attend(parts, mask, dropout_p)

    def weights(  # type: ignore[override]
        self,
        parts: LshParts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """The matrix that all rounds stand for: layers/chunked.py."""
        return chunked.weights(parts, mask, heads, rows)

    def mix(  # type: ignore[override]
        self,
        weights: Tensor,
        parts: LshParts,
        mask: Mask | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """What it takes from the values: layers/chunked.py."""
        return chunked.mix(weights, parts, mask)

    def _apply(self, fn: Any, recurse: bool = True) -> "LshAttention":
        """Half precision would round the rotations: they stay in float32."""
        before = self.rotations
        super()._apply(fn, recurse)
        if self.rotations.dtype.itemsize < 4:
            self.rotations = before.to(self.rotations.device)
        return self


class PublishedLshAttention(LshAttention):
    """The published chunks, for loading and for comparison: it sees the future.

    All tokens are sorted by bucket and cut into equal pieces, so an edge moves when a later token
    changes: laws 4 and 5 do not hold (nor can it be decoded with a cache), and as the first chunk
    looks back at the last one, the amount of padding can change an answer. Use `LshAttention`.
    """

    layout: Layout = staticmethod(across_buckets)


def _refuse(what: str, why: str) -> NoReturn:
    raise ValueError(f"LSH attention cannot honour {what}: {why}")
