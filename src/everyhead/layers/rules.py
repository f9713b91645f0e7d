"""The rules that masks are made of: may query i look at key j?

    visible(i, j)          bool for some query rows i and key numbers j
    span(start, stop)      the keys that queries start … stop − 1 can reach at all

Query i of T stands at key position i + offset. A rule answers for any rows and any keys, so nobody
needs the whole matrix; the span lets a long attention skip what no query of a block may see.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

Span = tuple[int, int]


class Rule(Protocol):
    """One condition on query position i and key position j."""

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        """i (t, 1) rows and j (1, s) key numbers → bool, broadcastable to (B, H, t, s)."""
        ...


class Causal(NamedTuple):
    """j ≤ i + offset: nothing after the query itself."""

    offset: int | None = None

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        return j <= i + (offset if self.offset is None else self.offset)  # (t, s)

    def span(self, start: int, stop: int, n_keys: int, offset: int) -> Span:
        return 0, stop + (offset if self.offset is None else self.offset)


class Keys(NamedTuple):
    """Key j is a real token. `zeroed`: what is hidden is known to be finite already (no fill)."""

    real: Tensor  # (B, S)
    zeroed: bool = False

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        return _of_keys(self.real, j)[:, None, None, :]  # (B, 1, 1, s)


class Window(NamedTuple):
    """−left ≤ j − (i + offset) ≤ right; of these every `step`-th, counted from the query."""

    left: int
    right: int
    offset: int | None = None
    step: int = 1

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        distance = j - i - (offset if self.offset is None else self.offset)  # (t, S)
        near = (distance >= -self.left) & (distance <= self.right)
        return near if self.step == 1 else near & (distance % self.step == 0)

    def span(self, start: int, stop: int, n_keys: int, offset: int) -> Span:
        offset = offset if self.offset is None else self.offset
        return start + offset - self.left, stop + offset + self.right


class Globals(NamedTuple):
    """The query or the key is a global token; one row of marks serves both (self-attention).

    sees=False: they are seen by all, and see no more than others.
    """

    marked: Tensor  # (B, S)
    offset: int | None = None
    sees: bool = True

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        keys = _of_keys(self.marked, j)[:, None, None, :]  # (B, 1, 1, s)
        if not self.sees:
            return keys
        offset = offset if self.offset is None else self.offset
        queries = self.marked[:, None, (i[:, 0] + offset)][..., None]  # (B, 1, t, 1)
        return queries | keys  # (B, 1, t, s)


class Documents(NamedTuple):
    """Query and key belong to the same document of a packed block."""

    queries: Tensor  # (B, T)
    keys: Tensor  # (B, S)

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        keys = _of_keys(self.keys, j)[:, None, None, :]  # (B, 1, 1, s)
        return self.queries[:, None, i[:, 0], None] == keys  # (B, 1, t, s)


class Dense(NamedTuple):
    """Any matrix of the caller's: (T, S), or (B, 1, T, S), or (B, H, T, S)."""

    matrix: Tensor

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        return _of_keys(self.matrix[..., i[:, 0], :], j)  # (…, t, s)


class AnyOf(NamedTuple):
    """At least one of the rules holds: "in the window or global" is one rule."""

    rules: tuple[Rule, ...]

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        seen = self.rules[0].visible(i, j, offset)
        for rule in self.rules[1:]:
            seen = seen | rule.visible(i, j, offset)
        return seen


class Prefix(NamedTuple):
    """The first n keys are seen by all; behind them every one of `rules` must hold."""

    n: int
    rules: tuple[Rule, ...]

    def visible(self, i: Tensor, j: Tensor, offset: int) -> Tensor:
        seen = self.rules[0].visible(i, j, offset)
        for rule in self.rules[1:]:
            seen = seen & rule.visible(i, j, offset)
        return seen | (j < self.n)


def _of_keys(x: Tensor, j: Tensor) -> Tensor:
    """x (…, S) at the keys j (1, s): x itself where j is all of them."""
    return x if j.shape[1] == x.shape[-1] else x[..., j[0]]


def fits(name: str, got: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Broadcasting would hide a mask laid along the wrong axis.

    Raises:
        ValueError: got is not wanted.
    """
    if got != wanted:
        raise ValueError(f"the {name} is made for {got} and the attention has {wanted}")


def check_sizes(rule: Rule, n_queries: int, n_keys: int) -> None:
    """
    Raises:
        ValueError: the rule was made for another number of queries or keys.
    """
    if isinstance(rule, AnyOf | Prefix):
        for each in rule.rules:
            check_sizes(each, n_queries, n_keys)
    elif isinstance(rule, Keys):
        fits("key mask", tuple(rule.real.shape[1:]), (n_keys,))
    elif isinstance(rule, Dense):
        fits("dense mask", tuple(rule.matrix.shape[-2:]), (n_queries, n_keys))


def span_of(rule: Rule, start: int, stop: int, n_keys: int, offset: int) -> Span:
    """The keys [first, last) that queries start … stop − 1 can reach, far keys (below) aside."""
    if (reach := getattr(rule, "span", None)) is not None:
        first, last = reach(start, stop, n_keys, offset)
    elif isinstance(rule, AnyOf):
        near = [each for each in rule.rules if not isinstance(each, Globals)]
        spans = [span_of(each, start, stop, n_keys, offset) for each in near] or [(0, 0)]
        first, last = min(s[0] for s in spans), max(s[1] for s in spans)
    elif isinstance(rule, Prefix):
        spans = [span_of(each, start, stop, n_keys, offset) for each in rule.rules]
        first, last = max(s[0] for s in spans), min(s[1] for s in spans)
    else:
        first, last = 0, n_keys
    first = min(max(first, 0), n_keys)
    return first, min(max(last, first), n_keys)


def step_of(rule: Rule, offset: int) -> tuple[int, int]:
    """Every how many keys a query can reach, and of which the first is that of query 0.

    Far keys (below) aside; (1, 0) where no rule leaves any out.
    """
    if isinstance(rule, Window):
        return rule.step, (offset if rule.offset is None else rule.offset) % rule.step
    if isinstance(rule, AnyOf):
        near = [each for each in rule.rules if not isinstance(each, Globals)]
        return step_of(near[0], offset) if len(near) == 1 else (1, 0)
    if isinstance(rule, Prefix):
        return max(step_of(each, offset) for each in rule.rules)
    return 1, 0


def far_keys(rule: Rule, device: torch.device) -> Tensor | None:
    """Key numbers that are seen from anywhere, whatever the span; None where there are none."""
    if not isinstance(rule, AnyOf | Prefix):
        return None
    found = [each.marked.any(0).nonzero()[:, 0] for each in rule.rules if isinstance(each, Globals)]
    if isinstance(rule, Prefix):
        found.append(torch.arange(rule.n, device=device))
    inner = [far_keys(each, device) for each in rule.rules]
    found += [numbers for numbers in inner if numbers is not None]
    return torch.cat(found) if found else None


def far_queries(rule: Rule, n_queries: int, offset: int) -> Tensor | None:
    """Rows that see beyond their span: those of global tokens; None where there are none."""
    if not isinstance(rule, AnyOf | Prefix):
        return None
    found = []
    for each in rule.rules:
        if isinstance(each, Globals):
            if not each.sees:
                continue
            first = offset if each.offset is None else each.offset
            rows: Tensor | None = each.marked[:, first : first + n_queries].any(0).nonzero()[:, 0]
        else:
            rows = far_queries(each, n_queries, offset)
        if rows is not None:
            found.append(rows)
    return torch.cat(found) if found else None
