"""The calls of a pass as one: what a place's matrix is computed from."""

from typing import NamedTuple

import torch

from everyhead.inspection.given import Bias
from everyhead.inspection.steps import Piece, StepsBias, joined_mask, last_of
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask


class View(NamedTuple):
    """The calls of a pass as one: parts without bias, mask, bias."""

    parts: Parts
    mask: Mask | None
    bias: Bias | None


def joined(pieces: list[Piece], form: Parts, *, memory: bool) -> View:
    """q (B, H, T, D) of all calls; their keys one after the other, or a memory's, said anew."""
    q = torch.cat([piece.pick(piece.call.q) for piece in pieces], 2)
    if memory:
        k, v = (last_of(pieces, name) for name in ("k", "v"))
    else:
        k = torch.cat([piece.pick(piece.call.k) for piece in pieces], 2)
        v = torch.cat([piece.pick(piece.call.v) for piece in pieces], 2)
    bias: Bias | None = None
    if any(piece.call.bias is not None for piece in pieces):
        bias = StepsBias(tuple(pieces), k.shape[2])
        if len(pieces) == 1 and pieces[0].of is None:
            bias = pieces[0].call.bias
    mask = joined_mask(pieces, memory=memory)
    return View(form._replace(q=q, k=k, v=v, bias=None), mask, bias)
