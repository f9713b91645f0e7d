"""One attention of a model, as it was used: its parts, and its matrix when somebody asks.

Of several passes the last one is kept. The steps of a cached decoding are one pass: row t of the
joined matrix is the query that stood at position t, the one that produced token t + 1. How a call
goes on from those before it is told by its keys: those of a pass grow and stay. Where rows were
moved in between (beams), each is found again by the keys it brings along.
"""

import itertools
from html import escape

import torch
from torch import Tensor

from everyhead.inspection.given import Bias
from everyhead.inspection.relation import Relation, Step, relation_of
from everyhead.inspection.selection import Heads, Rows, heads_of, rows_of
from everyhead.inspection.steps import Call, Extras, Method, Piece, Taken, copied
from everyhead.inspection.view import View, joined
from everyhead.layers import attention
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask

_turns = itertools.count(1)


class Place:
    """One attention of a model, as it was used.

    name: `decoder.2.cross_attn`; path: the module's own; kind: "self" or "cross".
    """

    def __init__(
        self, name: str, path: str = "", *, kind: str = "self", method: Method = attention
    ) -> None:
        self.name, self.path, self.kind, self._method = name, path or name, kind, method
        self.last = Relation(Step.FRESH)
        self.gradient: Tensor | None = None
        self.turn = 0  # when it was called last
        self.calls: list[Call] = []
        self.chosen: list[Tensor] | None = None  # for each call the rows (B,) that were followed
        self._extras, self._cropped = Extras(), False
        self._form: Parts | None = None
        self._keys: Tensor | None = None  # of the last call, all of them
        self._view: View | None = None

    @property
    def parts(self) -> Parts:
        """q (B, H, T, D), k and v (B, K, S, D), scale, bias.

        Raises:
            LookupError: the model did not pass here while it was recorded, or the rows of the
                batch were moved between two steps and nothing says which to follow.
        """
        view = self._seen()
        if view.bias is None:
            return view.parts
        rows = torch.arange(view.parts.q.shape[2], device=view.parts.q.device)
        return view.parts._replace(bias=view.bias.rows(rows))

    @property
    def mask(self) -> Mask | None:
        """Who may look where, as a rule; raises as `parts` does."""
        return self._seen().mask

    @property
    def half(self) -> str:
        """`encoder`, `decoder`, `text`, …"""
        return self.name.partition(".")[0]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, T, S) of the whole matrix; raises as `parts` does."""
        parts = self._seen().parts
        batch, heads, n_queries = parts.q.shape[:3]
        return batch, heads, n_queries, parts.k.shape[2]

    @property
    def n_heads(self) -> int:
        """H; raises as `parts` does."""
        return self.shape[1]

    def weights(self, heads: Heads = None, rows: Rows = None) -> Tensor:
        """The softmax rows asked for, (B, h, t, S), computed now; one number: an axis of one.

        Raises:
            ValueError: there is no such head or row; and as `parts` does.
        """
        parts, mask, bias = self._seen()
        n_heads, n_queries = parts.q.shape[1:3]
        of, at = heads_of(heads, n_heads, self.name), rows_of(rows, n_queries, self.name)
        if bias is None:
            return self._method.weights(parts, mask, of, at)
        i = torch.arange(n_queries, device=parts.q.device)
        i = i if at is None else i[at]  # (t,)
        parts = attention.filled(parts, mask)._replace(bias=bias.rows(i))
        taken = None if mask is None else Mask((Taken(mask, i, n_queries),))
        return self._method.weights(parts._replace(q=parts.q[:, :, i]), taken, of)

    def output(self, rows: Rows = None) -> Tensor:
        """What the matrix takes from the values, (B, H, t, D); raises as `weights` does."""
        view = self._seen()
        at = rows_of(rows, view.parts.q.shape[2], self.name)
        return self._method.mix(self.weights(rows=at), view.parts, view.mask, at)

    def _seen(self) -> View:
        if self._cropped:
            raise LookupError(
                f"the cache at {self.name} was cropped between two steps, as guessing several "
                "tokens ahead does: record the finished text in one pass"
            )
        moved = self.last.step is Step.LOST or any(c.parents is not None for c in self.calls)
        if moved and self.chosen is None:
            raise LookupError(
                f"the rows at {self.name} were moved between two steps, as beams and finished "
                "sentences are (or keys had left a window when the recording began: then record "
                "the text from its start): tell which to show with trace.follow(ids), record one "
                "sentence searched greedily, or the finished translation in one pass"
            )
        if not self.calls:
            told = "run the model inside record(), in the same thread"
            raise LookupError(f"nothing was recorded at {self.name}: {told}")
        if self._view is None:
            assert self._form is not None
            self._view = joined(self.pieces(), self._form, memory=self.kind == "cross")
        return self._view

    def pieces(self) -> list[Piece]:
        """The calls of the pass, where they stand in the matrix, and the rows that it shows."""
        pieces, start = [], 0
        calls = self.calls if self.chosen is None else self.calls[: len(self.chosen)]
        for number, call in enumerate(calls):
            pieces.append(Piece(call, start, self._rows_of(number)))
            start = pieces[-1].end
        return pieces

    def _rows_of(self, number: int) -> Tensor | None:
        """(B,) rows of a call that the view shows; None: all as they are."""
        call = self.calls[number]
        if self.chosen is not None:
            return self.chosen[number]
        if call.k.shape[0] == call.q.shape[0]:
            return None
        return torch.arange(call.q.shape[0], device=call.q.device)

    @property
    def length(self) -> int:  # rows of the pass so far
        return sum(call.q.shape[2] for call in self.calls)

    @property
    def steps_are_known(self) -> bool:
        """Were the tokens of every call seen?"""
        return bool(self.calls) and all(call.ids is not None for call in self.calls)

    def keep_gradient(self, gradient: Tensor, turn: int) -> None:
        """dL/dO (B, H, T, D) of the output of a call, when somebody calls backward."""
        if turn == self.turn:  # backward reaches the calls before it too, whose parts are gone
            self.gradient = gradient.detach().clone()

    def compare(self, k: Tensor, n_new: int, memory: Tensor | None = None) -> Relation:
        """How self-attention with keys (R, K, S, D) goes on from what is kept."""
        lost = self.last.step is Step.LOST
        return relation_of(self._keys, k, n_new, lost=lost, memory=memory)

    def note(
        self,
        parts: Parts,
        mask: Mask | None,
        relation: Relation,
        *,
        bias: Bias | None = None,
        ids: Tensor | None = None,
    ) -> None:
        """Keep copies of a call that stands so to those before it: a cache writes into its own."""
        self.last, self.chosen, self._view, self.gradient = relation, None, None, None
        self.turn = next(_turns)
        self._cropped = relation.cropped or (self._cropped and relation.step is Step.LOST)
        if relation.step in (Step.FRESH, Step.LOST):
            self.calls, self._keys = [], None
        if relation.step is Step.LOST:
            return
        n_new, n_keys = parts.q.shape[2], parts.k.shape[2]
        q, first = copied(parts.q), 0
        self._form = self._extras.of(parts._replace(q=q, k=q, v=q, bias=None))
        if self.kind == "cross":
            k, v = self._memory(parts)
        elif not self.calls:
            k, v = copied(parts.k), copied(parts.v)
            self._keys = k
        else:
            before, known = n_keys - n_new, sum(call.k.shape[2] for call in self.calls)
            first = max(0, known - before)
            self._keys = copied(parts.k)
            k, v = copied(self._keys[:, :, before:]), copied(parts.v[:, :, before:])
        self.calls.append(Call(q, k, v, mask, bias, first, n_keys, relation.parents, ids))

    def _memory(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Copies of k and v, or those of the call before where they are the same."""
        if self.calls:
            k, v = self.calls[-1][1:3]
            same = k.shape == parts.k.shape and torch.equal(k, parts.k)
            if same and torch.equal(v, parts.v):
                return k, v
        return copied(parts.k), copied(parts.v)

    def choose(self, rows: list[Tensor] | None) -> None:
        """Show these rows (B,) of each call, −1 where a sequence had ended; None: all."""
        self.chosen, self._view = rows, None

    def __repr__(self) -> str:
        return f"Place({self.name}, {self._size()})"

    def _repr_html_(self) -> str:
        return f"<code>{escape(self.name)}</code> {escape(self._size())}"

    def _size(self) -> str:
        try:
            batch, heads, n_queries, n_keys = self.shape
        except LookupError:
            return "nothing to show"
        return f"{batch} × {heads} heads × {n_queries} queries × {n_keys} keys"
