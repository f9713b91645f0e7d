"""What a head does, in numbers: means over the rows (queries) of its matrix A (T, S).

    entropy     −Σ_j A_ij ln A_ij                     nats; 0 looks at one key, ln S at all alike
    distance    Σ_j A_ij |p_i − j|                    tokens; p_i = i + S − T, the query's place
    self        A_{i, p_i}       previous  A_{i, p_i − 1}      next  A_{i, p_i + 1}
    first       A_{i, 0}, of queries behind it        special   Σ A_ij over special tokens
    duplicate   Σ A_ij over j < p_i with token_j = token_{p_i}
    induction   Σ A_ij over j ≤ p_i with token_{j−1} = token_{p_i}: what came after it before

Each is the mean over the queries that have such a key and see anything. Clark et al. 2019
(1906.04341) section 3: entropy, neighbours, separators; Vig & Belinkov 2019 (1906.04284): distance;
Olsson et al. 2022 (2209.11895): induction ("prefix matching"); Wang et al. 2022 (2211.00593):
duplicate-token heads. Rows are taken some at a time: O(n) memory on a `Place`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from everyhead.inspection.rows import Matrix, Source

# A name is clear when this share of all looking goes there, and this many times what a head that
# looks at every visible key alike would give; so a sentence of two words names nobody.
CLEAR, ABOVE_CHANCE, FEWEST_QUERIES = 0.5, 2.0, 3
EVEN = 0.95  # of the highest possible entropy
SHARES = ("itself", "previous", "next", "induction", "duplicate", "first", "special")
NAMES = {
    "itself": "self",
    "previous": "previous token",
    "next": "next token",
    "induction": "induction",
    "duplicate": "duplicate token",
    "first": "first token",
    "special": "special tokens",
}


class HeadNumbers(NamedTuple):
    """One head; None where a number does not exist (cross-attention, no ids, no such key).

    entropy in nats, distance in tokens, the rest shares of 0 … 1. `name`: what it does, if clear.
    """

    entropy: float | None
    distance: float | None
    itself: float | None
    previous: float | None
    next: float | None
    first: float | None
    special: float | None
    induction: float | None
    duplicate: float | None
    name: str | None = None

    def numbers(self) -> dict[str, float | None]:
        """By the names that the page has for them: `self` for `itself`."""
        values = {**self._asdict(), "self": self.itself}
        return {key: values[key] for key in NUMBERS}


NUMBERS = (
    *("entropy", "distance", "self", "previous", "next", "first", "special"),
    *("induction", "duplicate"),
)


def head_statistics(
    weights: Source,
    special: ArrayLike | Tensor | None = None,
    ids: ArrayLike | Tensor | None = None,
    *,
    kind: str | None = None,
    queries: ArrayLike | Tensor | None = None,
    batch: int = 0,
) -> list[HeadNumbers]:
    """The numbers of every head of one attention.

    Args:
        weights: a `Place`, or an array (H, T, S), NaN where a query may not look.
        special: bool (S,), keys that are no words ([CLS], [SEP], <s>, padding).
        ids: (S,) token ids of the keys, for `duplicate` and `induction`.
        kind: "self" or "cross"; by default the place's own, or "self". In cross-attention queries
            and keys are different texts: only entropy, first and special exist.
        queries: bool (T,), rows that count; all by default. Leave padding out.
        batch: which text of a place's batch.

    Raises:
        ValueError: the shapes do not fit, or kind is another word.
    """
    matrix = Matrix(weights, batch=batch)
    kind = kind or matrix.kind or "self"
    if kind not in ("self", "cross"):
        raise ValueError(f"kind is 'self' or 'cross', not {kind!r}")
    targets = _Targets(matrix, kind, special=_marks(special, matrix.n_keys, "special"), ids=ids)
    counted = _marks(queries, matrix.n_queries, "queries")
    if counted is None:
        counted = np.ones(matrix.n_queries, dtype=bool)
    sums = _Sums(matrix.n_heads)
    for start, rows in matrix.chunks():
        sums.add(rows, start, targets, counted[start : start + rows.shape[1]])
    return [sums.head(h) for h in range(matrix.n_heads)]


def table(heads: Sequence[Sequence[HeadNumbers]]) -> dict[str, list[list[float | None]]]:
    """`head_statistics` of several layers as number → layers × heads, for the page and figures."""
    return {name: [[head.numbers()[name] for head in layer] for layer in heads] for name in NUMBERS}


class _Targets:
    """Which keys each share is about."""

    def __init__(
        self,
        matrix: Matrix,
        kind: str,
        *,
        special: NDArray[np.bool_] | None,
        ids: ArrayLike | Tensor | None,
    ) -> None:
        self.kind, self.n_keys = kind, matrix.n_keys
        self.offset = matrix.n_keys - matrix.n_queries
        self.special = special
        self.ids = None if ids is None else torch.as_tensor(ids).cpu().flatten()
        if self.ids is not None and len(self.ids) != matrix.n_keys:
            raise ValueError(f"there are {len(self.ids)} ids for {matrix.n_keys} keys")

    def columns(self, i: Tensor) -> dict[str, Tensor]:
        """Name → the one key (t,) of query rows i (t,), −1 where there is none."""
        if self.kind == "cross":
            return {"first": torch.zeros_like(i)}
        p = i + self.offset  # the query's place among the keys
        ahead = torch.where(p + 1 < self.n_keys, p + 1, -1)
        first = torch.where(p > 0, 0, -1)
        return {"itself": p, "previous": p - 1, "next": ahead, "first": first}

    def distances(self, i: Tensor) -> Tensor:
        """|p_i − j| (t, S), in tokens."""
        return (i[:, None].float() + self.offset - torch.arange(self.n_keys).float()).abs_()

    def sets(self, i: Tensor) -> dict[str, Tensor]:
        """Name → the keys, bool (t, S), of query rows i (t,)."""
        found = {}
        if self.special is not None:
            found["special"] = torch.from_numpy(self.special).expand(len(i), -1)
        if self.kind == "self":
            found |= self._copies((i + self.offset)[:, None], torch.arange(self.n_keys))
        return found

    def _copies(self, p: Tensor, j: Tensor) -> dict[str, Tensor]:
        if self.ids is None:
            return {}
        own = self.ids[p.clamp_min(0)]  # (t, 1)
        word = torch.ones(self.n_keys, dtype=torch.bool)
        if self.special is not None:
            word = ~torch.from_numpy(self.special)
        same = (self.ids == own) & word & (j < p)  # (t, S) the same word, earlier
        after = torch.zeros_like(same)
        after[:, 1:] = same[:, :-1]
        return {"duplicate": same, "induction": after}


class _Sums:
    """Sums over queries, float64, (H,) each, and how many queries they are over."""

    def __init__(self, n_heads: int) -> None:
        self.n_heads = n_heads
        self.sums: dict[str, NDArray[np.float64]] = {}
        self.counts: dict[str, NDArray[np.float64]] = {}

    def add(self, rows: Tensor, start: int, targets: _Targets, counted: NDArray[np.bool_]) -> None:
        """Rows (H, t, S) that begin at query `start`."""
        i = torch.arange(start, start + rows.shape[1])
        positive = rows > 0
        alive = positive.any(-1).cpu() & torch.from_numpy(counted)  # (H, t)
        seen = positive.any(0).float().cpu()  # (t, S) 1 where any head looks
        visible = seen.sum(-1).clamp_min(1)  # (t,)
        self._note("entropy", torch.special.entr(rows).sum(-1), alive)
        self._note("highest", visible.log().expand(alive.shape), alive)
        if targets.kind == "self":
            self._note("distance", _taken(rows, targets.distances(i)), alive)
        for name, key in targets.columns(i).items():
            has, places = alive & (key >= 0), (torch.arange(len(i)), key.clamp_min(0))
            self._note(name, rows[:, places[0], places[1]], has)
            self._note(f"chance {name}", (seen[places] / visible).expand(has.shape), has)
        for name, keys in targets.sets(i).items():
            has, marks = keys.any(-1) & alive, keys.float()
            self._note(name, _taken(rows, marks), has)
            chance = (marks * seen).sum(-1) / visible
            self._note(f"chance {name}", chance.expand(has.shape), has)

    def _note(self, name: str, values: Tensor, of: Tensor) -> None:
        """Add values (H, t) of the queries `of` (H, t)."""
        total = values.cpu().double().masked_fill(~of, 0).sum(-1).numpy()
        self.sums[name] = self.sums.get(name, np.zeros(self.n_heads)) + total
        self.counts[name] = self.counts.get(name, np.zeros(self.n_heads)) + of.sum(-1).numpy()

    def mean(self, name: str, head: int) -> float | None:
        """None where no query had such a key."""
        if name not in self.sums or self.counts[name][head] == 0:
            return None
        return float(self.sums[name][head] / self.counts[name][head])

    def head(self, head: int) -> HeadNumbers:
        means = {name: self.mean(name, head) for name in HeadNumbers._fields if name != "name"}
        return HeadNumbers(**means, name=self._name(head))

    def _name(self, head: int) -> str | None:
        for share in SHARES:
            mean, chance = self.mean(share, head), self.mean(f"chance {share}", head)
            if mean is None or chance is None or self.counts[share][head] < FEWEST_QUERIES:
                continue
            if mean >= max(CLEAR, ABOVE_CHANCE * chance):
                return NAMES[share]
        entropy, highest = self.mean("entropy", head), self.mean("highest", head)
        if entropy is not None and highest and entropy >= EVEN * highest:
            return "broad"
        return None


def _taken(rows: Tensor, share: Tensor) -> Tensor:
    """Σ_j rows[h, i, j] · share[i, j] → (H, t)."""
    return torch.einsum("hts,ts->ht", rows, share.to(rows))


def _marks(marks: ArrayLike | Tensor | None, n: int, name: str) -> NDArray[np.bool_] | None:
    if marks is None:
        return None
    given = marks.cpu().numpy() if isinstance(marks, Tensor) else np.asarray(marks)
    if given.shape != (n,):
        raise ValueError(f"{name} must have one mark for each of {n}; got shape {given.shape}")
    return given.astype(bool)
