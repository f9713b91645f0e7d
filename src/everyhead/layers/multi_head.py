"""Multi-head attention: h attentions side by side.

    MultiHead(X, M) = [head_1; …; head_h] W^O,  head_i = Attention(X W_i^Q, M W_i^K, M W_i^V)

Vaswani et al. 2017 (1706.03762) section 3.2.2; B200-227. M = X in self-attention, the encoder's
output in cross-attention.
"""

from functools import partial

from torch import Tensor, nn

from everyhead.layers import attention, probe
from everyhead.layers.attention import Parts, folded
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.compiled import computes
from everyhead.layers.linear import Linear, linear, stacked
from everyhead.layers.masks import Mask
from everyhead.layers.packed_attention import (
    WIDEST,
    Shape,
    attend_packed,
    can_attend,
    spread_parts,
)
from everyhead.layers.packing import Packing
from everyhead.layers.rotary import Rotation, rotated
from everyhead.layers.rules import Causal

# W^Q, W^K and W^V start as the thirds of one Xavier matrix (3C, C), as in torch.nn: learning begins
# from flatter attention and goes much faster (docs/decisions.md, "The start of attention").
THREE_AS_ONE = 0.5**0.5
# What a variant that has equations of its own overrides.
STEPS = ("attend", "project", "completed")


class MultiHeadAttention(nn.Module):
    """h attentions side by side: project → attend → join. 1706.03762 section 3.2.2; B200-227."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        scale: float | None = None,
        bias: bool = True,
        o_bias: bool | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if d_head is None and d_model % n_heads:
            raise ValueError(
                f"d_model {d_model} does not divide into {n_heads} heads: choose n_heads that "
                "divides it, or give d_head"
            )
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads or n_heads
        if n_heads % self.n_kv_heads:
            raise ValueError(
                f"{n_kv_heads} kv heads cannot serve {n_heads} heads evenly: choose n_kv_heads "
                "that divides n_heads"
            )
        self.d_head = d_head or d_model // n_heads
        self.scale = self.d_head**-0.5 if scale is None else scale
        self.dropout = dropout
        n_q, n_kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        self.q_proj = Linear(d_model, n_q, bias=bias, gain=THREE_AS_ONE)
        self.k_proj = Linear(d_model, n_kv, bias=bias, gain=THREE_AS_ONE)
        self.v_proj = Linear(d_model, n_kv, bias=bias, gain=THREE_AS_ONE)
        self.o_proj = Linear(n_q, d_model, bias=bias if o_bias is None else o_bias)

    def forward(
        self,
        x: Tensor,
        mask: Mask | None = None,
        memory: Tensor | None = None,
        *,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        cache: KeyValueCache | None = None,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """x (B, T, C), or (N, C) packed rows; memory likewise → the shape of x.

        bias (B|1, H|1, T, S) is added to the scores; rotation turns q and k by their positions.
        """
        mask = self.visible(mask)
        keys = packing if memory is None else memory_packing
        plain = cache is None and bias is None and rotation is None
        if plain and self._reads_rows(x) and can_attend(mask, packing, keys):
            return self.o_proj(self._attend_rows(x, memory, mask, packing, keys))
        if cache is not None and cache.fixed and cache.length:
            (q,) = self._split(self.q_proj(x), packing, (self.n_heads,))
            parts = Parts(q, *cache.read(), self.scale)
        else:
            parts = self.project(x, memory, packing, memory_packing, rotation)
            if cache is not None:
                parts = cache.entered(parts)
        parts = self.completed(parts, x, mask, packing)
        parts = folded(parts if bias is None else parts._replace(bias=bias))
        if cache is not None and not (cache.fixed and probe.active()) and cache.bias is not None:
            parts, mask = parts._replace(bias=cache.bias), None  # made once, not in every layer
        dropout = self.dropout if self.training else 0.0
        if probe.active():
            out = probe.attention(self, parts, mask, partial(self.attend, dropout_p=dropout))
        else:
            out = self.attend(parts, mask, dropout)  # (B, H, T, D)
        return self.o_proj(self._join(out, x, packing))

    def _reads_rows(self, x: Tensor) -> bool:
        """May packed rows be read where they lie? Of the plain equation, in float32."""
        own = all(getattr(type(self), name) is getattr(MultiHeadAttention, name) for name in STEPS)
        no_dropout = self.dropout == 0.0 or not self.training
        fits = self.n_kv_heads == self.n_heads and self.d_head <= WIDEST
        return own and fits and no_dropout and computes(x)

    def _attend_rows(
        self,
        x: Tensor,
        memory: Tensor | None,
        mask: Mask | None,
        packing: Packing | None,
        keys: Packing | None,
    ) -> Tensor:
        """layers/packed_attention.py: rows (N, C) → (N, H·D)."""
        assert packing is not None and keys is not None and mask is not None
        causal = any(isinstance(rule, Causal) for rule in mask.rules)
        shape = Shape(packing, keys, self.n_heads, self.d_head, self.scale, causal)
        both: Tensor | None = None
        if memory is None:
            own = self._joined(x, self.q_proj, self.k_proj, self.v_proj)  # (N, 3·H·D)
        else:
            own, both = self.q_proj(x), self._joined(memory, self.k_proj, self.v_proj)
        if not probe.active():
            return attend_packed(own, both, shape)
        q, k, v = spread_parts(own, both, shape)
        parts = Parts(q, k, v, self.scale)

        def attend(used: Parts, seen: Mask | None) -> Tensor:
            """Unchanged parts are attended as if nobody looked."""
            if used is not parts or seen is not mask:
                return self.attend(used, seen)
            rows = attend_packed(own, both, shape)
            return packing.spread(rows, (self.n_heads,), self.d_head)[0]  # (B, H, T, D)

        return packing.join(probe.attention(self, parts, mask, attend))

    def visible(self, mask: Mask | None) -> Mask | None:
        """Who may look where: the mask, and what a variant adds to it."""
        return mask

    def completed(
        self, parts: Parts, x: Tensor, mask: Mask | None, packing: Packing | None
    ) -> Parts:
        """The parts, and what a variant needs of x besides under this mask."""
        return parts

    def attend(self, parts: Parts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
        """The fast result (B, H, T, D); a variant overrides it, `weights` and maybe `mix`."""
        return attention.attend(parts, mask, dropout_p)

    def weights(
        self,
        parts: Parts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """The matrix that `attend` stands for, (B, h, t, S): layers/attention.py."""
        return attention.weights(parts, mask, heads, rows)

    def mix(
        self,
        weights: Tensor,
        parts: Parts,
        mask: Mask | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """What these rows of a matrix (B, H, t, S) take from the values, (B, H, t, D)."""
        return attention.mix(weights, parts, mask)

    def project(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        rotation: Rotation | None = None,
    ) -> Parts:
        """W^Q on x, W^K and W^V on the memory (x itself in self-attention)."""
        if memory is None:
            joined = self._joined(x, self.q_proj, self.k_proj, self.v_proj)  # (…, (H+2K)·D)
            sizes = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
            q, k, v = self._split(joined, packing, sizes)
        else:
            (q,) = self._split(self.q_proj(x), packing, (self.n_heads,))
            joined = self._joined(memory, self.k_proj, self.v_proj)  # (…, 2K·D)
            k, v = self._split(joined, memory_packing, (self.n_kv_heads, self.n_kv_heads))
        if rotation is not None:
            q, k = rotated(q, rotation), rotated(k, rotation)
        return Parts(q, k, v, self.scale)

    def _joined(self, x: Tensor, *maps: Linear) -> Tensor:
        """Several maps of one x side by side, as one product."""
        return linear(x, *stacked(maps))

    def _split(self, x: Tensor, packing: Packing | None, heads: tuple[int, ...]) -> list[Tensor]:
        """(B, T, heads·D) or packed (N, heads·D) → one (B, h, T, D) for each of `heads`."""
        if packing is not None:
            return packing.spread(x, heads, self.d_head)
        rows = x.unflatten(-1, (sum(heads), self.d_head))  # (B, T, heads, D)
        return list(rows.transpose(-3, -2).split(heads, dim=-3))

    def _join(self, out: Tensor, x: Tensor, packing: Packing | None) -> Tensor:
        """Heads side by side again: (B, H, T, D) → (B, T, H·D), or packed (N, H·D)."""
        if packing is not None:
            if out.shape[0] != packing.batch:  # folded
                out = out.unflatten(2, (-1, packing.length)).transpose(1, 2).flatten(0, 1)
            return packing.join(out)
        out = out.transpose(1, 2)  # (B, T, H, D), or (n, beams·T, H, D)
        return out.reshape(*x.shape[:-1], -1)
