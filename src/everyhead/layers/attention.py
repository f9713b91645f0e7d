"""Scaled dot-product attention.

    Attention(Q, K, V) = softmax(s · Q Kᵀ + B) V                 s = 1/√d_k, B a bias (T5, ALiBi)

Vaswani et al. 2017 (1706.03762) equation 1; grouped keys and values: Ainslie et al. 2023
(2305.13245). `attend` is the fast result, `weights` the matrix it stands for, `mix` what a matrix
does to the values; the three are functions of the projected parts and the mask alone:

    attend(parts, mask) == mix(weights(parts, mask), parts)

A query that may see nothing gets zeros; what the key mask hides may hold anything, even NaN.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.layers.blocked import LONG, attend_blocks
from everyhead.layers.dropout import dropout
from everyhead.layers.masks import Mask
from everyhead.layers.rules import fits

# Below this many scores a head, plain products beat the fused kernel on a processor
# (docs/decisions.md, "Short attention").
SHORT = 128 * 128


class Parts(NamedTuple):
    """What attention is a function of: q (B, H, T, D), k and v (B, K, S, D), scale, bias.

    cap: scores become c·tanh(scores / c) (Gemma 2, 2408.00118 section 2). sinks (H,): one more
    score a row, which takes its share and gives nothing (gpt-oss, 2508.10925 section 2.3).
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    bias: Tensor | None = None
    cap: float | None = None
    sinks: Tensor | None = None


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """softmax(s·QKᵀ + B) V for q (B, H, T, D), k and v (B, K, S, D) → (B, H, T, Dv).

    K divides H (grouped keys and values). 1706.03762 equation 1; documents A59, B117.

    Raises:
        ValueError: the shapes do not fit.
    """
    fits = q.dim() == k.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not fits or q.shape[::3] != k.shape[::3] or q.shape[1] % k.shape[1]:
        raise ValueError(
            "attention takes q (batch, heads, queries, width) and k, v (batch, kv heads, keys, "
            f"width); got {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    return attend(Parts(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale, bias), mask)


def attend(parts: Parts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
    """The fast result (B, H, T, Dv); `dropout_p` drops weights, zero outside training."""
    if parts.cap is not None or parts.sinks is not None:
        return _attend_plain(parts, mask, dropout_p)
    if mask is not None and _is_long(parts, mask):
        q, k, v, scale, bias = filled(parts, mask)[:5]
        return attend_blocks(q, k, v, mask, scale=scale, bias=bias, dropout_p=dropout_p)
    parts = filled(grouped(parts), mask)
    q, k = parts.q, parts.k
    if q.device.type == "cpu" and q.shape[-2] * k.shape[-2] <= SHORT:
        return _attend_short(parts, mask, dropout_p)
    if mask is not None and mask.only_causal and parts.bias is None and q.shape[2] == k.shape[2]:
        return F.scaled_dot_product_attention(
            q, k, parts.v, dropout_p=dropout_p, is_causal=True, scale=parts.scale
        )
    bias, alive = _score_bias(parts, mask)
    bias = None if bias is None else bias.to(q.dtype)
    out = F.scaled_dot_product_attention(
        q, k, parts.v, attn_mask=bias, dropout_p=dropout_p, scale=parts.scale
    )
    return out if alive is None else out * alive


def weights(
    parts: Parts,
    mask: Mask | None,
    heads: list[int] | slice | None = None,
    rows: slice | Tensor | None = None,
) -> Tensor:
    """The matrix itself: softmax rows (B, h, t, S) of the asked-for heads and rows, in plain code.

    Rows sum to 1, or to 0 where nothing is visible. Half precision is computed in float32.
    """
    parts = filled(grouped(parts), mask)
    heads = slice(None) if heads is None else heads
    rows = slice(None) if rows is None else rows
    wide = torch.promote_types(parts.q.dtype, torch.float32)
    q, k = parts.q[:, heads][:, :, rows].to(wide), parts.k[:, heads].to(wide)
    scores = q @ k.transpose(-2, -1) * parts.scale  # (B, h, t, S)
    if parts.cap is not None:
        scores = parts.cap * torch.tanh(scores / parts.cap)
    if parts.bias is not None:
        bias = parts.bias.expand(-1, parts.q.shape[1], parts.q.shape[2], -1)
        scores = scores + bias[:, heads][:, :, rows]
    if mask is not None:
        seen = mask.rows(parts.q.shape[2], parts.k.shape[2], q.device, rows)
        seen = seen if seen.shape[1] == 1 else seen[:, heads]
        scores = scores.masked_fill(~seen, float("-inf"))
    peak = scores.amax(-1, keepdim=True).clamp_min(torch.finfo(wide).min)
    if parts.sinks is None:
        powers = (scores - peak).exp()  # (B, h, t, S)
        return powers / powers.sum(-1, keepdim=True).clamp_min(torch.finfo(wide).tiny)
    sinks = parts.sinks[heads].to(wide)[:, None, None]  # (h, 1, 1)
    peak = torch.maximum(peak, sinks)
    powers = (scores - peak).exp()  # (B, h, t, S)
    return powers / (powers.sum(-1, keepdim=True) + (sinks - peak).exp())


def mix(
    weights: Tensor,
    parts: Parts,
    mask: Mask | None = None,
    rows: slice | Tensor | None = None,
) -> Tensor:
    """What the matrix does to the values: (B, H, t, S) → (B, H, t, Dv).

    rows: which the matrix has; here all of them mix the same values (not in layers/window.py).
    """
    v = filled(grouped(parts), mask).v
    return (weights.to(torch.promote_types(v.dtype, weights.dtype)) @ v.to(weights.dtype)).to(
        v.dtype
    )


def grouped(parts: Parts) -> Parts:
    """Each kv head serves H / K query heads: (B, K, S, D) → (B, H, S, D)."""
    repeats = parts.q.shape[1] // parts.k.shape[1]
    if repeats == 1:
        return parts
    return parts._replace(
        k=parts.k.repeat_interleave(repeats, 1), v=parts.v.repeat_interleave(repeats, 1)
    )


def folded(parts: Parts) -> Parts:
    """Beams of a sentence ask its one memory together: q (n·beams, H, T, D) → (n, H, beams·T, D).

    Raises:
        ValueError: the queries' batch is no multiple of the keys'.
    """
    q, (batch, memories) = parts.q, (parts.q.shape[0], parts.k.shape[0])
    if batch == memories:
        return parts
    if memories == 0 or batch % memories:
        raise ValueError(
            f"{batch} rows cannot share a memory of {memories} sentences: give each sentence the "
            "same number of rows, next to one another"
        )
    beams = (memories, batch // memories)
    return parts._replace(q=q.unflatten(0, beams).transpose(1, 2).flatten(2, 3))


def filled(parts: Parts, mask: Mask | None) -> Parts:
    """k and v with zeros under the key mask: a weight of 0 times NaN would still be NaN."""
    real = None if mask is None else mask.unfilled
    if real is None:
        return parts
    fits("key mask", tuple(real.shape[1:]), (parts.k.shape[2],))
    hidden = ~real[:, None, :, None]  # (B, 1, S, 1)
    return parts._replace(k=parts.k.masked_fill(hidden, 0), v=parts.v.masked_fill(hidden, 0))


def _is_long(parts: Parts, mask: Mask) -> bool:
    """Would the mask's matrix be large, where no flag of the fused kernel says the same?"""
    n_queries, n_keys = parts.q.shape[2], parts.k.shape[2]
    if n_queries * n_keys < LONG or n_queries == 1 or mask.only_keys:
        return False
    return not (mask.only_causal and parts.bias is None and n_queries == n_keys)


def _attend_plain(parts: Parts, mask: Mask | None, dropout_p: float) -> Tensor:
    """By the matrix itself, some rows at a time: no fused kernel has the cap or the sinks."""
    step = max(1, SHORT // max(1, parts.k.shape[2]))
    outputs = []
    for start in range(0, parts.q.shape[2], step):
        rows = weights(parts, mask, rows=slice(start, start + step))
        outputs.append(mix(dropout(rows, dropout_p), parts, mask))
    return torch.cat(outputs, 2) if outputs else parts.q.new_zeros(parts.q.shape)


def _attend_short(parts: Parts, mask: Mask | None, dropout_p: float) -> Tensor:
    """Three plain products: the n×n scores of a short sequence fit the cache."""
    q, k, v = parts.q, parts.k, parts.v
    q_scaled = q if parts.scale == 1.0 else q * parts.scale
    scores = torch.bmm(q_scaled.flatten(0, 1), k.flatten(0, 1).transpose(1, 2))
    scores = scores.unflatten(0, q.shape[:2])  # (B, H, T, S)
    bias, alive = _score_bias(parts, mask)
    if bias is not None:
        scores = scores + bias if scores.dtype != bias.dtype else scores.add_(bias)
    shares = dropout(torch.softmax(scores, -1), dropout_p)
    out = torch.bmm(shares.flatten(0, 1).to(v.dtype), v.flatten(0, 1))
    out = out.unflatten(0, q.shape[:2])  # (B, H, T, Dv)
    return out if alive is None else out * alive


def _score_bias(parts: Parts, mask: Mask | None) -> tuple[Tensor | None, Tensor | None]:
    """Bias and mask as one additive term, and which rows see anything (None: all do)."""
    last = parts.q.shape[2] == 1  # a single query stands at the end, where causal sees all
    if mask is None or not mask.rules or (last and mask.only_causal):
        return parts.bias, None
    seen = mask.rows(parts.q.shape[2], parts.k.shape[2], parts.q.device)
    alive = None
    if not mask.only_causal or parts.q.shape[2] > parts.k.shape[2]:
        alive = seen.any(-1, keepdim=True)
        seen = seen | ~alive  # a softmax over nothing is NaN: over all, then times 0
    hidden = torch.zeros(seen.shape, dtype=parts.q.dtype, device=seen.device)
    hidden = hidden.masked_fill_(~seen, float("-inf"))  # (B|1, H|1, T|1, S)
    if parts.bias is not None:
        hidden = torch.where(seen, parts.bias, hidden)
    return hidden, None if alive is None else alive.to(parts.q.dtype)
