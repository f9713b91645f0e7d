"""One vector for a sentence: the states of its tokens, pooled, and scaled to length 1.

mean:  v = Σ_t m_t h_t / Σ_t m_t        m: 1 at real tokens       Reimers & Gurevych 2019
v ← v / max(‖v‖, 1e-12)                 then the dot product is the cosine     (1908.10084)
"""

from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from everyhead.models.bert import first_real
from everyhead.models.tasks import last_real, mean_of

Pooling = Literal["mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"]


class SentenceRule(NamedTuple):
    """How a model's states become a sentence's vector; the names are sentence-transformers'.

    max_len: longer texts are cut, None: at what the model takes. prompt: put before every text.
    """

    pooling: Pooling = "mean"
    normalise: bool = True
    max_len: int | None = None
    lowercase: bool = False
    prompt: str = ""


def sentence_vectors(hidden: Tensor, mask: Tensor, rule: SentenceRule) -> Tensor:
    """hidden (B, T, C), mask bool (B, T) True = token → (B, C)."""
    vectors = _pooled(hidden, mask, rule.pooling)
    return F.normalize(vectors, dim=-1) if rule.normalise else vectors


def _pooled(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    if pooling == "mean":
        return mean_of(hidden, mask)
    if pooling == "mean_sqrt_len":
        n = mask.sum(1, keepdim=True).clamp_min(1).to(hidden.dtype)
        return mean_of(hidden, mask) * n.sqrt()
    if pooling == "max":
        return hidden.masked_fill(~mask[..., None], float("-inf")).amax(1)
    if pooling == "weightedmean":  # later tokens of a decoder have seen more (2202.08904)
        weight = mask.cumsum(1).masked_fill(~mask, 0)[..., None].to(hidden.dtype)
        return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)
    return first_real(hidden, mask) if pooling == "cls" else last_real(hidden, mask)
