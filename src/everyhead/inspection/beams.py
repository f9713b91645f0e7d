"""Beams that ask one history together, taken apart into rows that each have their own.

everyhead's beam cache lays the keys of a sentence's W beams side by side, S = t·W slots, and tells
by a bias of 0 and −∞ which slot of each position belongs to whom (layers/beam_cache.py). A trace
keeps rows: q (n, H, W, D) → (n·W, H, 1, D), k and v (n, K, t·W, D) → (n·W, K, t, D).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask


class Layout(NamedTuple):
    """Rows a sentence, slots a position, and which slot each row reads (n, rows, t)."""

    width: int
    beams: int
    slots: Tensor | None = None

    def query_numbers(self, n_queries: int) -> Tensor:
        """(T',) the position among the call's of each place of the query axis."""
        return torch.arange(n_queries) % max(1, n_queries // self.width)

    def key_numbers(self, n_keys: int) -> Tensor:
        """(S,) the position of each place of the key axis."""
        return torch.arange(n_keys) // self.beams


PLAIN = Layout(1, 1)


def layout_of(parts: Parts, mask: Mask | None) -> Layout:
    """How the beams of this self-attention lie; PLAIN where there are none."""
    bias = parts.bias
    if mask is not None or bias is None or bias.shape[:3:2] != parts.q.shape[:3:2]:
        return PLAIN
    seen, n_keys = bias == 0, bias.shape[-1]
    length = int(seen[0, 0, 0].sum()) if seen.numel() else 0
    if bias.shape[1] != 1 or length == 0 or n_keys % length or n_keys == length:
        return PLAIN
    groups = seen.unflatten(-1, (length, -1))  # (n, 1, W, t, slots)
    if not bool((groups.sum(-1) == 1).all()) or not bool(bias[~seen].isneginf().all()):
        return PLAIN
    slots = groups.byte().argmax(-1)[:, 0]  # (n, W, t)
    return Layout(slots.shape[1], n_keys // length, slots)


def by_row(parts: Parts, layout: Layout) -> Parts:
    """The parts of each beam on its own, where the beams lie side by side."""
    if layout.width == 1 and layout.slots is None:
        return parts
    q = parts.q.unflatten(2, (layout.width, -1)).transpose(1, 2).flatten(0, 1)
    if layout.slots is None:
        return parts._replace(q=q)
    start = torch.arange(layout.slots.shape[2], device=q.device) * layout.beams
    index = layout.slots + start  # (n, W, t)
    k, v = (_own_keys(x, index) for x in (parts.k, parts.v))
    return parts._replace(q=q, k=k, v=v, bias=None)


def _own_keys(x: Tensor, index: Tensor) -> Tensor:
    """x (n, K, S, D), index (n, W, t) → (n·W, K, t, D)."""
    n, heads, _, width = x.shape
    wide = index[:, :, None, :, None].expand(-1, -1, heads, -1, width)
    x = x[:, None].expand(n, index.shape[1], *x.shape[1:])
    return x.gather(3, wide).flatten(0, 1)
