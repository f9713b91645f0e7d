"""A mask is a rule, not a matrix: which keys j a query i may look at.

    visible(i, j) = rule_1(i, j) and rule_2(i, j) and …          True = may look

Rows of the matrix are made only where they are needed (`Mask.rows`). The query in row t of T
stands at key position t + offset; the offset is S − T unless a cache passes its own. Additive
terms are not masks; they are called `bias` (layers/attention.py).

Vaswani et al. 2017 (1706.03762) section 3.2.3 has the causal rule and the padding rule; Beltagy et
al. 2020 (2004.05150) the window with global tokens. Instead of −∞ in the scores, a rule decides
before the softmax, so a query that may see nothing gets zeros, not NaN and not an average.
"""

from html import escape
from typing import NamedTuple

import torch
from torch import Tensor

from everyhead.layers.rules import (
    AnyOf,
    Causal,
    Dense,
    Documents,
    Globals,
    Keys,
    Prefix,
    Rule,
    Window,
    check_sizes,
)


class Mask(NamedTuple):
    """Rules that must all hold; `a & b` joins two masks."""

    rules: tuple[Rule, ...] = ()

    def __and__(self, other: "Mask | None") -> "Mask":
        return self if other is None else Mask(self.rules + other.rules)

    def __or__(self, other: "Mask") -> "Mask":
        """Either mask's one rule may hold.

        Raises:
            ValueError: a side joins several rules, whose "or" would need a rule of its own.
        """
        if len(self.rules) != 1 or len(other.rules) != 1:
            raise ValueError("a | b joins two single rules; write the combination as one rule")
        return Mask((AnyOf(self.rules + other.rules),))

    @property
    def key_mask(self) -> Tensor | None:
        """(B, S) True where a key is a real token, or None when no rule speaks of padding."""
        real = [rule.real for rule in self.rules if isinstance(rule, Keys)]
        if not real:
            return None
        return real[0] if len(real) == 1 else torch.stack(real).all(0)

    @property
    def unfilled(self) -> Tensor | None:
        """(B, S) like `key_mask`, of those rules alone whose hidden keys may hold anything."""
        return Mask(tuple(r for r in self.rules if isinstance(r, Keys) and not r.zeroed)).key_mask

    @property
    def only_causal(self) -> bool:
        """Nothing but the causal rule at the end of the keys: the fused kernels have a flag."""
        return (
            len(self.rules) == 1
            and isinstance(rule := self.rules[0], Causal)
            and rule.offset is None
        )

    @property
    def only_keys(self) -> bool:
        """Nothing but padding: then `key_mask` is all there is to know."""
        return all(isinstance(rule, Keys) for rule in self.rules)

    def _repr_html_(self) -> str:
        """For a notebook: the names of the rules, as a sentence."""
        return escape(" and ".join(type(rule).__name__.lower() for rule in self.rules) or "all")

    def rows(
        self, n_queries: int, n_keys: int, device: torch.device, rows: slice | Tensor | None = None
    ) -> Tensor:
        """The asked-for rows of the matrix, bool (B or 1, H or 1, t, S) or broadcastable to it."""
        i = torch.arange(n_queries, device=device)
        i = (i if rows is None else i[rows])[:, None]  # (t, 1)
        j = torch.arange(n_keys, device=device)[None, :]  # (1, S)
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device)
        for rule in self.rules:
            check_sizes(rule, n_queries, n_keys)
            seen = seen & rule.visible(i, j, n_keys - n_queries)
        return seen  # (B|1, H|1, t|1, S|1)


def causal(offset: int | None = None) -> Mask:
    """Query t sees keys up to t + offset (default S − T). 1706.03762 section 3.2.3; B163."""
    return Mask((Causal(offset),))


def keys(real: Tensor, *, zeroed: bool = False) -> Mask:
    """Keys that are real tokens, `real` bool (B, S). B158.

    Raises:
        ValueError: `real` is not a bool (B, S) tensor.
    """
    if real.dim() != 2 or real.dtype != torch.bool:
        raise ValueError(
            f"a key mask is a bool tensor (batch, keys), True = real token; got {real.dtype} "
            f"of shape {tuple(real.shape)}"
        )
    return Mask((Keys(real, zeroed),))


def window(left: int, right: int, offset: int | None = None, *, step: int = 1) -> Mask:
    """Query i sees keys from i − left to i + right, each or every `step`-th (dilated).

    Beltagy et al. 2020 (2004.05150) section 3.1.

    Raises:
        ValueError: step is less than 1.
    """
    if step < 1:
        raise ValueError(f"the keys of a window stand 1 or more apart; got step {step}")
    return Mask((Window(left, right, offset, step),))


def global_tokens(marked: Tensor, offset: int | None = None) -> Mask:
    """Marked tokens (bool (B, S)) see all and are seen by all; join with `window(…) | …`."""
    return Mask((Globals(marked, offset),))


def prefix(n: int, mask: Mask) -> Mask:
    """All see the first n keys, behind which `mask` holds: Raffel et al. 2019 (1910.10683), fig. 4.

    Raises:
        ValueError: `mask` has no rule.
    """
    if not mask.rules:
        raise ValueError("a prefix stands before a rule; where all may look, no mask is needed")
    return Mask((Prefix(n, mask.rules),))


def documents(queries: Tensor, keys: Tensor | None = None) -> Mask:
    """Documents of a packed block keep to themselves; ids (B, T) and (B, S)."""
    return Mask((Documents(queries, queries if keys is None else keys),))


def dense(matrix: Tensor) -> Mask:
    """A matrix of one's own, bool (T, S), (B, 1, T, S) or (B, H, T, S).

    Raises:
        ValueError: another dtype, or (B, T, S), which could be meant per head or per sentence.
    """
    if matrix.dtype != torch.bool or matrix.dim() not in (2, 4):
        raise ValueError(
            "a dense mask is bool (queries, keys), (batch, 1, queries, keys) or (batch, heads, "
            f"queries, keys); got {matrix.dtype} of shape {tuple(matrix.shape)}: add the missing "
            "axis with [:, None] or [None], and pass additive terms as bias"
        )
    return Mask((Dense(matrix),))
