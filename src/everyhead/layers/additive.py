"""Additive attention: a small network scores each state of the decoder against each annotation.

    e_ij = vᵀ tanh(W s_{i−1} + U h_j)        α_i = softmax(e_i)        c_i = Σ_j α_ij h_j

Bahdanau, Cho & Bengio 2015 (1409.0473) section 3.1 and appendix A.1.2; B17-27. It is an attention
of one head whose values are the annotations themselves. As a step's query needs the context of the
step before, it is asked step by step; `Step` says how a call goes on, for those who look.
"""

from functools import partial
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead.layers import attention, masks, probe
from everyhead.layers.attention import Parts, filled
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.dropout import dropout
from everyhead.layers.linear import Linear
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention


class Step(NamedTuple):
    """number: steps before this one; parents (R,): its rows among theirs, None: the same."""

    number: int = 0
    parents: Tensor | None = None


class AdditiveParts(NamedTuple):
    """Parts of layers/attention.py: q = W s, k = U h, v = h, and the vector v (D,) as `score`."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float = 1.0
    bias: Tensor | None = None
    cap: None = None
    sinks: None = None
    score: Tensor = torch.empty(0)
    step: Step | None = None


class AdditiveAttention(MultiHeadAttention):
    """One head of width d_score; queries (…, d_model) read a memory (…, d_memory)."""

    def __init__(self, d_model: int, d_memory: int, *, d_score: int, dropout: float = 0.0) -> None:
        nn.Module.__init__(self)  # other maps than those of dot products
        self.n_heads = self.n_kv_heads = 1
        self.d_head, self.scale, self.dropout = d_score, 1.0, dropout
        self.q_proj = Linear(d_model, d_score, bias=False)  # W
        self.k_proj = Linear(d_memory, d_score, bias=False)  # U
        self.score = nn.Parameter(torch.zeros(d_score))  # v

    def read(
        self, state: Tensor, memory: Tensor, mask: Mask | None, cache: KeyValueCache, step: Step
    ) -> Tensor:
        """state (R, C), memory (B, S, M) where the cache is empty yet → the context (R, M).

        R is B or several rows a sentence, next to one another. The cache holds U h and h.
        """
        if not cache.length:
            cache.append(self.k_proj(memory)[:, None], memory[:, None])
        q = self.q_proj(state)[:, None, None]  # (R, 1, 1, D)
        score = self.score.clone() if probe.active() else self.score  # a trace outlives a step
        parts = AdditiveParts(q, *cache.read(), score=score, step=step)
        parts, mask = _by_row(parts, mask)
        attend = partial(self.attend, dropout_p=self.dropout if self.training else 0.0)
        if probe.active():
            return probe.attention(self, cast(Parts, parts), mask, attend)[:, 0, 0]
        return attend(cast(Parts, parts), mask)[:, 0, 0]

    def attend(self, parts: Parts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
        """The contexts (B, 1, T, M)."""
        parts, alive = filled(parts, mask), None
        scores = _scores(parts)
        if mask is not None:
            seen = mask.rows(parts.q.shape[2], parts.k.shape[2], parts.q.device)
            alive = seen.any(-1, keepdim=True)
            scores = scores.masked_fill(~seen & alive, float("-inf"))
        shares = dropout(torch.softmax(scores, -1), dropout_p)
        out = shares.to(parts.v.dtype) @ parts.v
        return out if alive is None else out * alive

    def weights(
        self,
        parts: Parts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """α of the rows asked for, (B, 1, t, S), in at least float32."""
        parts = filled(parts, mask)
        wide = torch.promote_types(parts.q.dtype, torch.float32)
        rows = slice(None) if rows is None else rows
        whole = parts.q.new_zeros((*parts.q.shape[:3], parts.k.shape[2]), dtype=wide)
        asked = parts._replace(q=parts.q[:, :, rows].to(wide), k=parts.k.to(wide), bias=None)
        whole[:, :, rows] = _scores(asked)
        whole = whole if parts.bias is None else whole + parts.bias
        blank = Parts(whole[..., :1] * 0, parts.k[..., :1].to(wide) * 0, parts.v, 1.0, whole)
        return attention.weights(blank, mask, heads, rows)


def _scores(parts: Parts) -> Tensor:
    """e (B, 1, T, S) with its bias, one query after the other: (B, S, D) is held at once."""
    own = cast(AdditiveParts, parts)
    score = own.score.to(own.q.dtype)[None]
    rows = [F.linear(torch.tanh(q[:, :, None] + own.k), score)[..., 0] for q in own.q.unbind(2)]
    scores = torch.stack(rows, 2) if rows else own.q.new_zeros(*own.q.shape[:3], own.k.shape[2])
    return scores if own.bias is None else scores + own.bias


def _by_row(parts: AdditiveParts, mask: Mask | None) -> tuple[AdditiveParts, Mask | None]:
    """Each row with keys of its own, where several of a sentence share them."""
    each = parts.q.shape[0] // max(1, parts.k.shape[0])
    if each <= 1:
        return parts, mask
    k, v = (x.repeat_interleave(each, 0) for x in (parts.k, parts.v))
    real = None if mask is None else mask.key_mask
    mask = None if real is None else masks.keys(real.repeat_interleave(each, 0), zeroed=True)
    return parts._replace(k=k, v=v), mask
