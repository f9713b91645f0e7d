"""Several calls of one attention as one matrix: the steps of a cached decoding.

Call c adds T_c rows below those before it. Its rows see the S_c keys that end with its own; columns
outside are 0. Each call keeps its own mask and bias, so a row is what it was when it was computed.
"""

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from everyhead.inspection.given import Bias
from everyhead.layers import masks
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask


class Method(Protocol):
    """How parts become a matrix: a module of a kind of its own, or layers/attention.py itself."""

    def weights(
        self,
        parts: Parts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor: ...
    def mix(
        self,
        weights: Tensor,
        parts: Parts,
        mask: Mask | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor: ...


class Call(NamedTuple):
    """One call: q (R, H, T, D), its new keys and values (R, K, s, D), and who may look where."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Mask | None
    bias: Bias | None
    first: int = 0  # the column at which its S keys begin
    n_keys: int = 0
    parents: Tensor | None = None  # (R,) the rows of the call before; None: the same
    ids: Tensor | None = None  # (R, T) the tokens, where they were seen


class Piece(NamedTuple):
    """Rows `start` and on of the joined matrix: a call's, of the batch rows `index`."""

    call: Call
    start: int
    of: Tensor | None = None  # (B,) rows of the call, −1: this sequence ended before

    @property
    def end(self) -> int:
        return self.start + self.call.q.shape[2]

    def pick(self, x: Tensor) -> Tensor:
        """The sequences' rows of x (R or fewer, …), which neighbours may share; −1 is zeros."""
        if self.of is None:
            return x
        rows = self.of.clamp_min(0) // (self.call.q.shape[0] // x.shape[0])
        here = (self.of >= 0).view(-1, *[1] * (x.dim() - 1))
        return x.index_select(0, rows) * here.to(x.dtype)

    def cut(self, i: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the rows i are this piece's (bool), and their numbers in it."""
        mine = (i >= self.start) & (i < self.end)
        return mine, i[mine] - self.start


class StepsRule(NamedTuple):
    """A mask rule: every call's own."""

    pieces: Sequence[Piece]

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        n_keys, found = j.shape[1], []
        for piece in self.pieces:
            mine, own = piece.cut(i[:, 0])
            if own.numel():
                found.append((piece, mine, self._rows(piece, own)))
        batch, heads = (max((x.shape[d] for *_, x in found), default=1) for d in (0, 1))
        seen = torch.zeros(batch, heads, i.shape[0], n_keys, dtype=torch.bool, device=i.device)
        for piece, mine, rows in found:
            first = piece.call.first
            seen[:, :, mine, first : first + piece.call.n_keys] = rows
        return seen

    def _rows(self, piece: Piece, own: Tensor) -> Tensor:
        call = piece.call
        rule = call.mask or Mask()
        seen = rule.rows(call.q.shape[2], call.n_keys, own.device, own)
        seen = piece.pick(seen.byte()).bool()
        if piece.of is not None:
            seen = seen & (piece.of >= 0)[:, None, None, None]
        return seen.expand(-1, -1, own.numel(), call.n_keys)


class StepsBias(NamedTuple):
    """A bias: every call's own, zeros elsewhere."""

    pieces: Sequence[Piece]
    n_keys: int

    def rows(self, i: Tensor) -> Tensor:
        found = []
        for piece in self.pieces:
            mine, own = piece.cut(i)
            if own.numel() and piece.call.bias is not None:
                rows = piece.pick(piece.call.bias.rows(own))
                found.append((piece.call, mine, rows))
        batch, heads = (max((x.shape[d] for *_, x in found), default=1) for d in (0, 1))
        like = found[0][2] if found else torch.zeros((), device=i.device)
        bias = like.new_zeros(batch, heads, i.numel(), self.n_keys)
        for call, mine, rows in found:
            bias[:, :, mine, call.first : call.first + call.n_keys] = rows
        return bias


class Taken(NamedTuple):
    """A mask rule: the rows `i` of another mask over T queries."""

    mask: Mask
    i: Tensor
    n_queries: int

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        return self.mask.rows(self.n_queries, j.shape[1], i.device, self.i[i[:, 0]])


def last_of(pieces: Sequence[Piece], name: str) -> Tensor:
    """A memory's keys or values for each sequence, (B, K, S, D), from its own last call."""
    memory = pieces[-1].pick(getattr(pieces[-1].call, name))
    for piece, after in zip(pieces[-2::-1], pieces[:0:-1], strict=True):
        if after.of is None or piece.of is None:
            break
        ended = (after.of < 0) & (piece.of >= 0)
        if bool(ended.any()):
            own = piece.pick(getattr(piece.call, name))
            memory = torch.where(ended[:, None, None, None], own, memory)
    return memory


def joined_mask(pieces: Sequence[Piece], *, memory: bool) -> Mask | None:
    """One plain rule where there is one."""
    if len(pieces) == 1 and pieces[0].of is None:
        return pieces[0].call.mask
    calls = [piece.call for piece in pieces]
    same = all(piece.of is None or bool((piece.of >= 0).all()) for piece in pieces)
    if same and memory and all(call.mask is None for call in calls):
        return None
    if same and not memory and _grows(calls):
        return masks.causal()
    real = None if memory else _real(pieces)
    rule = Mask((StepsRule(tuple(pieces)),))
    return rule if real is None else rule & masks.keys(real)


def _real(pieces: Sequence[Piece]) -> Tensor | None:
    """(B, S) which keys are real, by each sequence's own last call; None where nobody says.

    Kept as a rule of its own: what attends by buckets counts no padding.
    """
    found: Tensor | None = None
    for piece in pieces:
        mask, of = piece.call.mask, piece.of
        own = None if mask is None or piece.call.first else mask.key_mask
        if own is None:
            return None
        own = piece.pick(own.byte()).bool()  # (B, s)
        if found is not None and of is not None:
            before = torch.ones_like(own)
            before[:, : found.shape[1]] = found
            own = torch.where((of < 0)[:, None], before, own)
        found = own
    return found


def _grows(calls: Sequence[Call]) -> bool:
    """Every row sees all keys up to its own."""
    total = 0
    for call in calls:
        total += call.k.shape[2]
        causal = call.mask is not None and call.mask.only_causal
        if not (causal or (call.mask is None and call.q.shape[2] == 1)):
            return False
        if call.first or call.n_keys != total:
            return False
    return True


class Extras:
    """What a variant's parts hold besides q, k and v, copied: a step of training writes into it.

    What was not written into since is not copied again.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def of(self, form: Parts) -> Parts:
        found: dict[str, Any] = {
            name: self._copy(name, x)
            for name, x in zip(form._fields[3:], form[3:], strict=True)
            if isinstance(x, Tensor)
        }
        return form._replace(**found) if found else form

    def _copy(self, name: str, x: Tensor) -> Tensor:
        if x.is_inference():  # does not count what is written into it
            return copied(x)
        known = self._known.get(name)
        if known is None or known[0]() is not x or known[1] != x._version:
            known = self._known[name] = (weakref.ref(x), x._version, copied(x))
        return known[2]


def copied(x: Tensor) -> Tensor:
    """A copy outside the graph."""
    return x.detach().clone() if torch.is_grad_enabled() else x.clone()
