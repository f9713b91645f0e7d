"""Exact attention in O(n) memory: some queries at a time, each with the keys it can reach.

    rows [i₀, i₁):  softmax(s·q K[J]ᵀ + B) V[J]        J = the keys that the rules let them see

The numbers are those of attention whole (Rabe & Staats 2021, 2112.05682; Dao et al. 2022,
2205.14135): a query's softmax is never cut. Under a window J is short and time is O(n·w) too.
Global tokens and a prefix are seen from anywhere: they join J; the rows of global tokens, which see
everything, are computed apart. Where a window is dilated by d, a block's queries stand d apart as
its keys do, so that no score is made in vain.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead.layers.masks import Mask
from everyhead.layers.pieces import Index, piece, pieces
from everyhead.layers.rules import Causal, Window, far_keys, far_queries, span_of, step_of

ROWS = 256  # queries of a block
LONG = 1 << 20  # scores of a head from which a mask is not made whole


class Reach(NamedTuple):
    """Queries start, start + step, … below stop, and the keys they can see: a range or numbers."""

    start: int
    stop: int
    keys: Index
    step: int = 1


class Hidden(NamedTuple):
    """−∞ where nothing may be seen, (B|1, H|1, t, s), and which rows see anything; None: all."""

    added: Tensor
    alive: Tensor | None


def attend_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask,
    *,
    scale: float,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """q (B, H, T, D), k and v (B, K, S, D), where K divides H → (B, H, T, Dv)."""

    shifting = all(isinstance(rule, Window | Causal) for rule in mask.rules)
    kept: dict[tuple[int, int, int], Hidden] = {}  # of blocks that stand alike to their keys

    def hidden(index: Index, keys: Index) -> Hidden:
        if not (shifting and isinstance(index, slice) and isinstance(keys, slice)):
            return _hidden(_seen(mask, q, k, index, keys), q.dtype)
        alike = index.stop - index.start, keys.start - index.start, keys.stop - index.start
        if alike not in kept:
            kept[alike] = _hidden(_seen(mask, q, k, index, keys), q.dtype)
        return kept[alike]

    def rows(taken: tuple[Tensor, Tensor, Tensor], index: Index, keys: Index) -> Tensor:
        part = None if bias is None else _columns(_columns(bias, index, -2), keys, -1)
        return _attend(*taken, hidden(index, keys), part, scale, dropout_p)

    out = None
    if not torch.is_grad_enabled():
        out = q.new_empty(*q.shape[:3], v.shape[-1])
    blocks, step = [], 1
    for reach, taken in _taken(q, k, v, mask):
        start, stop, keys, step = reach
        block = rows(taken, slice(start, stop, step), keys)
        if out is None:
            blocks.append(block)
        else:
            out[:, :, start:stop:step] = block
    out = _in_order(torch.cat(blocks, 2), step) if out is None else out
    everywhere = _far_rows(mask, q.shape[2], k.shape[2])
    for some in everywhere.split(ROWS) if everywhere.numel() else ():
        out = out.index_copy(2, some, rows((piece(q, some), k, v), some, slice(None)))
    return out


def reaches(mask: Mask, n_queries: int, n_keys: int, device: torch.device) -> Iterator[Reach]:
    """The blocks of queries, and what each can see."""
    offset = n_keys - n_queries
    step, phase = max([(1, 0), *(step_of(rule, offset) for rule in mask.rules)])
    found = [far for rule in mask.rules if (far := far_keys(rule, device)) is not None]
    far = torch.cat(found).unique() if found else None
    starts = (range(first, n_queries, ROWS * step) for first in range(min(step, n_queries)))
    for start in itertools.chain.from_iterable(starts):
        stop, first, last = min(start + ROWS * step, n_queries), 0, n_keys
        for rule in mask.rules:
            near = span_of(rule, start, stop, n_keys, offset)
            first, last = max(first, near[0]), min(last, near[1])
        first += (start + phase - first) % step
        last = max(first, last)
        keys: Index = slice(first, last, None if step == 1 else step)
        if far is not None:
            apart = (far < first) | (far >= last) | ((far - first) % step != 0)
            near_keys = torch.arange(first, last, step, device=device)
            keys = torch.cat([far[apart], near_keys]).sort().values
        yield Reach(start, stop, keys, step)


def _taken(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask
) -> Iterator[tuple[Reach, tuple[Tensor, Tensor, Tensor]]]:
    """Each block with its rows of q, k and v: cut in two steps, so that no gradient is long.

    Some blocks whose keys overlap share a piece, of which each takes its part: of a window, the
    gradients that wait to be put back are then about twice as long as k. Where global tokens join,
    each block has copies of its keys, and gradients as long.
    """
    found = list(reaches(mask, q.shape[2], k.shape[2], q.device))
    groups = _groups(found)
    queries = pieces(q, [slice(reach.start, reach.stop, reach.step) for reach in found])
    spans = [span for span, _ in groups]
    for (span, group), keys, values in zip(groups, pieces(k, spans), pieces(v, spans), strict=True):
        for reach in group:
            near = _within(reach.keys, span, reach.step)
            yield reach, (next(queries), piece(keys, near), piece(values, near))


def _groups(found: list[Reach]) -> list[tuple[Index, list[Reach]]]:
    """Neighbours whose keys together are at most twice those of one: (all keys, they)."""
    groups: list[tuple[Index, list[Reach]]] = []
    widest = 0
    for reach in found:
        span, keys = groups[-1][0] if groups else None, reach.keys
        if isinstance(span, slice) and isinstance(keys, slice):
            first, last = min(span.start, keys.start), max(span.stop, keys.stop)
            widest = max(widest, keys.stop - keys.start)
            alike = (keys.start - span.start) % reach.step == 0
            if alike and last - first <= 2 * widest:
                groups[-1][1].append(reach)
                groups[-1] = slice(first, last, keys.step), groups[-1][1]
                continue
        groups.append((keys, [reach]))
        widest = keys.stop - keys.start if isinstance(keys, slice) else 0
    return groups


def _within(keys: Index, span: Index, step: int) -> slice:
    """Where keys stand among those of their span."""
    if not (isinstance(keys, slice) and isinstance(span, slice)):
        return slice(None)
    first = (keys.start - span.start) // step
    return slice(first, first + -(-(keys.stop - keys.start) // step))


def _in_order(x: Tensor, step: int) -> Tensor:
    """Rows 0, step, 2 step, …, 1, step + 1, … of x (B, H, T, Dv) as 0, 1, 2, …"""
    if step == 1:
        return x
    stood = torch.cat(
        [torch.arange(first, x.shape[2], step) for first in range(min(step, x.shape[2]))]
    )
    return x.index_select(2, stood.argsort().to(x.device))


def _far_rows(mask: Mask, n_queries: int, n_keys: int) -> Tensor:
    found = [far_queries(rule, n_queries, n_keys - n_queries) for rule in mask.rules]
    some = [rows for rows in found if rows is not None]
    return torch.cat(some).unique() if some else torch.empty(0, dtype=torch.long)


def _seen(mask: Mask, q: Tensor, k: Tensor, index: Index, keys: Index) -> Tensor:
    """bool (B|1, H|1, t, s)."""
    i = torch.arange(q.shape[2], device=q.device)[index][:, None]  # (t, 1)
    j = torch.arange(k.shape[2], device=q.device)[keys][None]  # (1, s)
    seen = torch.ones(1, 1, i.shape[0], j.shape[1], dtype=torch.bool, device=q.device)
    for rule in mask.rules:
        seen = seen & rule.visible(i, j, k.shape[2] - q.shape[2])
    return seen


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Hidden,
    bias: Tensor | None,
    scale: float,
    dropout_p: float,
) -> Tensor:
    if k.shape[2] == 0:  # nothing can be seen: zeros, which keep the graph whole
        return q.new_zeros(*q.shape[:3], v.shape[-1]) + 0 * q.sum()
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    added = hidden.added if bias is None else hidden.added + bias.to(q.dtype)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=added, dropout_p=dropout_p, scale=scale)
    return out if hidden.alive is None else out * hidden.alive.to(q.dtype)


def _hidden(seen: Tensor, dtype: torch.dtype) -> Hidden:
    """A row that sees nothing hides nothing, so that it stays finite, and is not alive."""
    alive = seen.any(-1, keepdim=True)
    some = not bool(alive.all())
    added = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    added.masked_fill_(~(seen | ~alive) if some else ~seen, float("-inf"))
    return Hidden(added, alive if some else None)


def _columns(x: Tensor, index: Index, dim: int) -> Tensor:
    """The asked-for entries of an axis, which may be 1 for all."""
    if x.shape[dim] == 1 and dim < 0:
        return x
    if isinstance(index, Tensor):
        return x.index_select(dim, index)
    return x[(slice(None),) * (dim % x.dim()) + (index,)]
