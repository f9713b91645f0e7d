"""Attention by shared queries and keys within chunks of alike tokens, in O(n).

    A_ij ∝ N_ij exp(s·q_i·k_j)     N_ij: in how many rounds j stands where i looks      j ≠ i

Kitaev et al. 2020 (2001.04451) section 2: rounds are combined by their logsumexp, which is the line
above; as in the published code, and unlike their equation 4, a key that is found in several rounds
counts several times. A token sees itself only where it sees nothing else, and then alone. Chunks:
layers/hashing.py. All is computed in at least float32.
"""

from collections.abc import Iterator
from functools import reduce
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from everyhead.layers import attention, replay
from everyhead.layers.attention import Parts, filled
from everyhead.layers.dropout import dropout
from everyhead.layers.hashing import Chunks, Hashing, Layout, hashed, within_buckets
from everyhead.layers.masks import Mask, keys
from everyhead.layers.rules import Causal, Keys

# From so many tokens on, scores are not kept for backward but made again.
LONG = 4096
BLOCK = 64  # chunks whose scores are made at once, small enough for a processor's cache
ROWS = 1 << 22  # scores of a block of rows
FEW = 4  # so many times as many slots of begun chunks as scores of the matrix: then the matrix
LOW = -1e30  # below all scores
NO_BIAS = (
    "LSH attention cannot honour a bias: it is not part of what is hashed, so the keys that it "
    "raises would not be found; use a family without one, or exact attention"
)


class LshParts(NamedTuple):
    """Parts of layers/attention.py with k = q/|q|; rotations (H, D, R, b/2), how to cut chunks."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    bias: Tensor | None = None
    cap: None = None
    sinks: None = None
    rotations: Tensor = torch.empty(0)
    hashing: Hashing = Hashing((1,), 64, (1, 0))
    layout: Layout = within_buckets


class Found(NamedTuple):
    """Of some rounds: Σ e^(s−peak) v (B, H, R, T, D), Σ e^(s−peak) and the peak (B, H, R, T, 1)."""

    mixed: Tensor
    total: Tensor
    peak: Tensor


def attend(parts: LshParts, mask: Mask | None, dropout_p: float = 0.0) -> Tensor:
    """(B, H, T, Dv): in O(n) where queries and keys are the same tokens, by rows where not."""
    if not is_fast(mask) or parts.q.shape[2] != parts.k.shape[2] or _is_short(parts):
        return _attend_rows(parts, mask, dropout_p)
    wide, real = _wide(parts, mask)
    causal = mask is not None and any(isinstance(rule, Causal) for rule in mask.rules)
    pads = ~real[:, None, :, None]  # (B, 1, T, 1)
    q, k, v = (wide.q * wide.scale).masked_fill(pads, 0), wide.k.contiguous(), wide.v.contiguous()
    layouts = wide.layout(_buckets(wide), real, wide.hashing)
    found = reduce(_joined, (_attend_chunks(q, k, v, each, causal, dropout_p) for each in layouts))
    shares = (found.peak - found.peak.amax(2, keepdim=True)).exp()  # (B, H, R, T, 1)
    mixed, total = (found.mixed * shares).sum(2), (found.total * shares).sum(2)
    out = mixed / total.masked_fill(total == 0, 1)  # (B, H, T, Dv)
    alone = dropout((total == 0).to(out.dtype), dropout_p)
    return (out + alone * v).masked_fill(pads, 0).to(parts.v.dtype)


def _is_short(parts: LshParts) -> bool:
    """Would most chunks be all but empty, and is the matrix small? Told by the shapes alone."""
    how, (batch, heads, n) = parts.hashing, parts.k.shape[:3]
    begun = parts.rotations.shape[2] * how.n_buckets * how.chunk**2 * (1 + sum(how.look))
    within = parts.layout is within_buckets
    return within and FEW * n * n < begun and batch * heads * n * n <= ROWS


def _joined(a: Found, b: Found) -> Found:
    """Of two rounds (R = 1 each) the sums of both."""
    peak = torch.maximum(a.peak, b.peak)
    of_a, of_b = (a.peak - peak).exp(), (b.peak - peak).exp()  # (B, H, 1, T, 1)
    mixed = torch.addcmul(a.mixed * of_a, b.mixed, of_b)
    return Found(mixed, a.total * of_a + b.total * of_b, peak)


def _attend_chunks(
    q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, causal: bool, dropout_p: float
) -> Found:
    """Each chunk with those it sees, some chunks at a time; k and v under padding are finite."""
    source, near, slots = chunks
    batch, heads, m, size = source.shape
    first = torch.arange(batch * heads, device=q.device).view(batch, heads, 1, 1) * m
    near = (near + first).flatten(0, 2)  # (B·H·M, L)
    laid = [picked(x, source.clamp_min(0).flatten(2)).view(-1, size, x.shape[3]) for x in (q, k, v)]
    own = source.view(-1, size).int()
    sides = (laid[0].split(BLOCK), own.split(BLOCK), *(_looked(x, near) for x in (*laid[1:], own)))
    found = []
    for block in zip(*sides, strict=True):
        given = (*block, causal, dropout_p)
        if torch.is_grad_enabled() and q.shape[2] >= LONG:
            found.append(checkpoint(_attend_block, *given, use_reentrant=False))
        else:
            found.append(_attend_block(*given))
    back = (torch.cat(each).view(batch, heads, m * size, -1) for each in zip(*found, strict=True))
    return Found(*(picked(x, slots.flatten(2)).unflatten(2, slots.shape[2:]) for x in back))


def _attend_block(
    q: Tensor, own: Tensor, k: Tensor, v: Tensor, there: Tensor, causal: bool, dropout_p: float
) -> tuple[Tensor, Tensor, Tensor]:
    """q (N, C, D) of tokens own (N, C), k and v (N, L·C, D) of tokens there; −1: an empty slot."""
    if causal:
        far = there.masked_fill(there < 0, torch.iinfo(there.dtype).max)
        hidden = far[:, None] >= own[..., None]  # (N, C, L·C)
    else:
        hidden = (there[:, None] == own[..., None]) | (there < 0)[:, None]
    scores = torch.bmm(q, k.transpose(1, 2)).masked_fill_(hidden, float("-inf"))
    peak = scores.detach().amax(-1, keepdim=True).clamp_min(LOW)  # finite: what is hidden is e^−∞
    powers = scores.sub_(peak).exp_()
    mixed = torch.bmm(dropout(powers, dropout_p), v)  # (N, C, Dv)
    return mixed, powers.sum(-1, keepdim=True), peak


def _looked(x: Tensor, near: Tensor) -> Iterator[Tensor]:
    """The chunks (N, C, …) that each sees, (·, L·C, …) for BLOCK chunks at a time.

    For a gradient they are taken at once: its backward would else be as large for every block.
    """
    if x.requires_grad:
        whole = x.index_select(0, near.flatten()).view(len(near), -1, *x.shape[2:])
        yield from whole.split(BLOCK)
    else:
        for part in near.split(BLOCK):
            yield x.index_select(0, part.flatten()).view(len(part), -1, *x.shape[2:])


def weights(
    parts: LshParts,
    mask: Mask | None,
    heads: list[int] | slice | None = None,
    rows: slice | Tensor | None = None,
) -> Tensor:
    """The matrix that all rounds stand for, (B, h, t, S): rows sum to 1, or 0."""
    mask, parts = without_bias(parts, mask)
    wide, real = _wide(parts, mask)
    heads = slice(None) if heads is None else heads
    n_queries, n = wide.q.shape[2], wide.k.shape[2]
    taken = slice(None) if rows is None else rows
    at = torch.arange(n - n_queries, n, device=wide.k.device)[taken]  # (t,)
    q, k = wide.q[:, heads][:, :, taken], wide.k[:, heads]
    buckets = _buckets(wide._replace(k=k, rotations=wide.rotations[heads]))
    counts = k.new_zeros(*q.shape[:3], n)
    for source, near, slots in wide.layout(buckets, real, wide.hashing):
        chunk = slots[..., at] // source.shape[-1]  # (B, h, R, t)
        there = picked(source, picked(near, chunk.flatten(2)).flatten(2))  # (B, h, R·t·L, C)
        there = there.view(*chunk.shape, -1).transpose(2, 3).flatten(3)  # (B, h, t, R·L·C)
        counts.scatter_add_(-1, there.clamp_min(0), (there >= 0).to(counts.dtype))
    seen = real[:, None, at, None] & real[:, None, None]  # (B, 1, t, S)
    if mask is not None:
        allowed = mask.rows(n_queries, n, q.device, rows)
        seen = seen & (allowed if allowed.shape[1] == 1 else allowed[:, heads])
    own = at[:, None] == torch.arange(n, device=at.device)  # (t, S)
    counts = counts.masked_fill(~seen | own, 0)
    scores = (q @ k.transpose(-2, -1) * wide.scale).masked_fill(counts == 0, LOW)
    powers = (scores - scores.amax(-1, keepdim=True)).exp() * counts
    total = powers.sum(-1, keepdim=True)
    shares = powers / total.masked_fill(total == 0, 1)
    return torch.where(total > 0, shares, (seen & own).to(shares.dtype))


def mix(weights: Tensor, parts: LshParts, mask: Mask | None = None) -> Tensor:
    """What the matrix takes from the values: (B, H, t, Dv)."""
    mask, parts = without_bias(parts, mask)
    return attention.mix(weights, cast(Parts, parts), mask)


def picked(x: Tensor, index: Tensor) -> Tensor:
    """x (B, H, n, …) at index (B, H, m) → (B, H, m, …)."""
    batch, heads, n = x.shape[:3]
    first = torch.arange(batch * heads, device=x.device).view(batch, heads, 1) * n
    taken = x.flatten(0, 2).index_select(0, (index + first).flatten())
    return taken.view(*index.shape, *x.shape[3:])


def is_fast(mask: Mask | None) -> bool:
    """Nothing but padding and the causal rule."""
    rules = () if mask is None else mask.rules
    return all(
        isinstance(rule, Keys) or (isinstance(rule, Causal) and rule.offset is None)
        for rule in rules
    )


def buckets_of(parts: LshParts, heads: list[int] | slice, mask: Mask | None = None) -> Tensor:
    """The bucket of each key in each round, (B, h, R, S); of padding it says nothing."""
    wide, _ = _wide(parts, mask)
    return _buckets(wide._replace(k=wide.k[:, heads], rotations=wide.rotations[heads]))


def _buckets(parts: LshParts) -> Tensor:
    return replay.decided(lambda: hashed(parts.k, parts.rotations, parts.hashing.factors))


def _wide(parts: LshParts, mask: Mask | None) -> tuple[LshParts, Tensor]:
    """Parts in at least float32, filled, and which keys are real (B, S)."""
    parts = cast(LshParts, filled(cast(Parts, parts), mask))
    wide = torch.promote_types(parts.q.dtype, torch.float32)
    real = None if mask is None else mask.key_mask
    if real is None:
        real = torch.ones(1, 1, dtype=torch.bool, device=parts.k.device)
    real = real.expand(parts.k.shape[0], parts.k.shape[2])
    return parts._replace(q=parts.q.to(wide), k=parts.k.to(wide), v=parts.v.to(wide)), real


def without_bias(parts: LshParts, mask: Mask | None) -> tuple[Mask | None, LshParts]:
    """A bias that only hides keys (a step behind left padding) is a mask again.

    Raises:
        ValueError: any other bias.
    """
    if parts.bias is None:
        return mask, parts
    real = parts.bias == 0
    if parts.bias.shape[1:3] != (1, 1) or not bool((real | parts.bias.isneginf()).all()):
        raise ValueError(NO_BIAS)
    seen = real[:, 0, 0].expand(parts.k.shape[0], -1)
    return keys(seen, zeroed=True) & mask, parts._replace(bias=None)


def _attend_rows(parts: LshParts, mask: Mask | None, dropout_p: float) -> Tensor:
    """Some rows of the matrix at a time: steps behind a cache, and what an observer hides."""
    n_queries, n = parts.q.shape[2], parts.k.shape[2]
    step = max(1, ROWS // max(1, n * parts.q.shape[1]))
    blocks = []
    for start in range(0, n_queries, step):
        shares = weights(parts, mask, rows=slice(start, start + step))
        blocks.append(mix(dropout(shares, dropout_p), parts, mask))
    return torch.cat(blocks, 2)
