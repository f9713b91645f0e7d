"""Attention in a window, with global tokens that have maps of their own, in O(n·w).

    i looks at j where −left ≤ j − i ≤ right, or j is global       softmax(s·q_i k_j) v_j
    i is global: it looks at all j                                 softmax(s·q'_i k'_j) v'_j

Beltagy et al. 2020 (2004.05150) section 3.1; q' k' v' are W^Q' W^K' W^V' x ("linear projections for
global attention"). The window may be dilated, the same in all heads (in the paper, head by head).
Which tokens are global is a rule of the mask, `global_tokens(marked)`, which here is read as *or*:
in the window or global. Any length; blocks: layers/blocked.py, dense rows where n is small.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers import attention
from everyhead.layers.attention import Parts
from everyhead.layers.global_tokens import marks_of, of_globals, of_others
from everyhead.layers.linear import Linear
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import THREE_AS_ONE, MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.rotary import Rotation
from everyhead.layers.rules import AnyOf, Globals, Prefix, Rule, Window


class WindowParts(NamedTuple):
    """Parts of layers/attention.py, and of global tokens q' (B, H, R, D), k' and v' (B, H, S, D).

    rows (R,): where a token is global in any row of the batch; marked (B, R): in which.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    bias: Tensor | None = None
    cap: None = None
    sinks: None = None
    q_global: Tensor = torch.empty(0)
    k_global: Tensor = torch.empty(0)
    v_global: Tensor = torch.empty(0)
    rows: Tensor = torch.empty(0, dtype=torch.long)
    marked: Tensor = torch.empty(0, dtype=torch.bool)

    @property
    def local(self) -> Parts:
        """What all tokens have."""
        return Parts(*self[:5])

    @property
    def of_globals(self) -> Parts:
        """What global tokens have besides, their own q alone."""
        return Parts(self.q_global, self.k_global, self.v_global, self.scale)


class WindowAttention(MultiHeadAttention):
    """Multi-head self-attention in a window with global tokens. 2004.05150 section 3.1.

    left, right: how many keys a query sees on each side, `dilation` apart; right=0 sees nothing
    later than itself, where the mask also holds global tokens to that (`causal()`). Without global
    tokens it is MultiHeadAttention under `window(…)`, and their maps are not used.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        left: int,
        right: int,
        dilation: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(d_model, n_heads, dropout=dropout)
        if min(left, right) < 0 or dilation < 1:
            raise ValueError(
                f"a window has 0 or more keys on each side, 1 or more apart; got left {left}, "
                f"right {right}, dilation {dilation}"
            )
        self.window = Window(left * dilation, right * dilation, None, dilation)
        maps = (Linear(d_model, d_model, gain=THREE_AS_ONE) for _ in range(3))
        self.q_global, self.k_global, self.v_global = maps

    def visible(self, mask: Mask | None) -> Mask:
        """The window, or the global tokens that the mask names; all its other rules hold too.

        Raises:
            ValueError: several rules name global tokens, or one joins them to other rules.
        """
        rules = () if mask is None else mask.rules
        either = tuple(rule for rule in rules if isinstance(rule, Globals))
        others = tuple(rule for rule in rules if not isinstance(rule, Globals))
        if len(either) > 1:
            raise ValueError(f"{len(either)} rules name global tokens: join their marks in one")
        if any(_names_globals(rule) for rule in others):
            raise ValueError(
                "the window is the layer's own: name global tokens by themselves, "
                "global_tokens(marks), not joined to another rule by |"
            )
        near: Rule = AnyOf((self.window, *either)) if either else self.window
        return Mask((near, *others))

    def project(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        packing: Packing | None = None,
        memory_packing: Packing | None = None,
        rotation: Rotation | None = None,
    ) -> Parts:
        """As MultiHeadAttention's.

        Raises:
            ValueError: a memory or a rotation is given.
        """
        if memory is not None or rotation is not None:
            what = "rotary positions" if memory is None else "a memory"
            raise ValueError(
                f"attention with global tokens cannot honour {what}: it is self-attention over "
                "learned positions; use MultiHeadAttention under the mask window(…)"
            )
        return super().project(x, packing=packing)

    def completed(  # type: ignore[override]
        self, parts: Parts, x: Tensor, mask: Mask | None, packing: Packing | None
    ) -> Parts | WindowParts:
        """q', k' and v' where the mask names global tokens.

        Raises:
            ValueError: there are such, and keys of earlier steps, whose k' and v' nobody kept.
        """
        rule, n = marks_of(mask), parts.q.shape[2]
        if rule is None:
            return parts
        if parts.k.shape[2] != n or rule.offset:
            raise ValueError(
                "global tokens cannot be decoded step by step: their own keys of earlier tokens "
                "are not kept; run the whole text at once"
            )
        rows = rule.marked.any(0).nonzero()[:, 0]  # (R,)
        if not rows.numel():
            return parts
        states = (x if packing is None else packing.unpack(x))[:, rows]  # (B, R, C)
        (q,) = self._split(self.q_global(states), None, (self.n_heads,))
        joined = self._joined(x, self.k_global, self.v_global)  # (…, 2H·D)
        k, v = self._split(joined, packing, (self.n_heads, self.n_heads))
        marked = rule.marked[:, rows].expand(q.shape[0], -1)
        return WindowParts(*parts[:5], None, None, q, k, v, rows, marked)

    def attend(
        self, parts: Parts | WindowParts, mask: Mask | None, dropout_p: float = 0.0
    ) -> Tensor:
        """The fast result (B, H, T, D); raises ValueError for a bias beside global tokens."""
        mask = _known(parts, mask)
        if not isinstance(parts, WindowParts):
            return attention.attend(parts, mask, dropout_p)
        out = attention.attend(parts.local, of_others(mask), dropout_p)  # (B, H, T, D)
        far = attention.attend(parts.of_globals, of_globals(mask, parts.rows), dropout_p)
        here = parts.marked[:, None, :, None]  # (B, 1, R, 1)
        return out.index_copy(2, parts.rows, torch.where(here, far, out[:, :, parts.rows]))

    def weights(
        self,
        parts: Parts | WindowParts,
        mask: Mask | None,
        heads: list[int] | slice | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """The whole matrix, (B, h, t, S): a global token's row is that of q' and k'."""
        mask = _known(parts, mask)
        if not isinstance(parts, WindowParts):
            return attention.weights(parts, mask, heads, rows)
        whole = attention.weights(parts.local, mask, heads, rows)
        place, own = within(parts, rows, whole.shape[2])
        rule = of_globals(mask, parts.rows)
        far = attention.weights(parts.of_globals, rule, heads, own)  # (B, h, r, S)
        here = parts.marked[:, None, own, None]
        return whole.index_copy(2, place, torch.where(here, far, whole[:, :, place]))

    def mix(
        self,
        weights: Tensor,
        parts: Parts | WindowParts,
        mask: Mask | None = None,
        rows: slice | Tensor | None = None,
    ) -> Tensor:
        """What these rows of the matrix take from the values: a global token's from v'."""
        if not isinstance(parts, WindowParts):
            return attention.mix(weights, parts, mask)
        whole = attention.mix(weights, parts.local, mask)  # (B, H, t, D)
        place, own = within(parts, rows, whole.shape[2])
        far = attention.mix(weights[:, :, place], parts.of_globals, mask)  # (B, H, r, D)
        here = parts.marked[:, None, own, None]
        return whole.index_copy(2, place, torch.where(here, far, whole[:, :, place]))


def within(parts: WindowParts, rows: slice | Tensor | None, n: int) -> tuple[Tensor, Tensor]:
    """Of the asked-for rows those of global tokens: where they stand among them, and in q'.

    Raises:
        ValueError: the matrix has n rows, and these are others.
    """
    number = torch.full(parts.q.shape[2:3], -1, device=parts.q.device)  # (T,)
    number[parts.rows] = torch.arange(len(parts.rows), device=number.device)
    number = number if rows is None else number[rows]  # (t,)
    if len(number) != n:
        raise ValueError(
            f"the matrix has {n} rows and {len(number)} were named: say which rows of the "
            "attention they are (rows=)"
        )
    place = (number >= 0).nonzero()[:, 0]
    return place, number[place]


def _known(parts: Parts | WindowParts, mask: Mask | None) -> Mask:
    """The mask.

    Raises:
        ValueError: a bias stands where the window or global tokens should.
    """
    if mask is None or (isinstance(parts, WindowParts) and parts.bias is not None):
        raise ValueError(
            "attention in a window with global tokens cannot honour a bias, which neither their "
            "own maps nor a step behind left padding would tell apart; use MultiHeadAttention "
            "under the mask window(…)"
        )
    return mask


def _names_globals(rule: Rule) -> bool:
    """Does a rule of several hold global tokens that see all?"""
    inner = rule.rules if isinstance(rule, AnyOf | Prefix) else ()
    return any((isinstance(r, Globals) and r.sees) or _names_globals(r) for r in inner)
