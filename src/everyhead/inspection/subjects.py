"""What a law is tried on: any model, asked for its outputs on rows of token ids.

    rows of ids, padded or not → read → named outputs, each of a row or of every token of a side

A model's own way of being called is known to its adapter alone (check_own.py,
check_hugging_face.py, or a Subject of one's own); the laws know sides ("tokens", "source",
"target", "picture") and fields ("logits", …). What an adapter cannot do raises `NotApplicable`
with the reason.
"""

import copy
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

Row = dict[str, tuple[int, ...]]  # by side
Under = Literal["pad", "other", "empty", "nan"]  # "empty": other ids where all is hidden
READ = 12  # tokens of an ordinary row


class NotApplicable(Exception):
    """The law says nothing about this model; the message says why, as a sentence."""


@dataclass(frozen=True)
class Side:
    """One input of a model.

    ids: ordinary ids to draw from. last: what every row ends in. start: what every row begins with.
    causal: outputs at a token may not depend on later ones. paddable: rows of several lengths.
    """

    name: str
    ids: tuple[int, ...]
    pad_id: int = 0
    max_len: int = 1 << 30
    causal: bool = False
    paddable: bool = True
    start: int | None = None
    last: int | None = None

    def sentence(self, n: int, seed: int = 0) -> tuple[int, ...]:
        """n ids, the same for the same n and seed; other seeds give other ids at every place."""
        size = len(self.ids)
        ids = [self.ids[(seed * 5 + i * 7 + i * i * seed) % size] for i in range(n)]
        if self.start is not None and n:
            ids[0] = self.start
        if self.last is not None and n:
            ids[-1] = self.last
        return tuple(ids)

    def other(self, token: int) -> int:
        """An ordinary id that is not this one."""
        place = self.ids.index(token) if token in self.ids else 0
        return self.ids[(place + len(self.ids) // 2) % len(self.ids)]


@dataclass(frozen=True)
class Case:
    """Rows, and how they are padded where they differ in length or `extra` asks for more.

    masked: masks are handed over even where nothing is padded. positions: counted from the mask
    by the caller, for models that take them. under: what stands where nothing is real.
    """

    rows: tuple[Row, ...]
    left: bool = False
    extra: Mapping[str, int] = field(default_factory=dict)
    masked: bool = False
    positions: bool = False
    under: Under = "pad"

    def only(self, row: int) -> "Case":
        """This row alone, with nothing around it."""
        return Case((self.rows[row],))

    def cut(self, side: str, length: int) -> "Case":
        """Every row's first ids of a side."""
        return replace(self, rows=tuple({**r, side: r[side][:length]} for r in self.rows))

    def described(self) -> dict[str, Any]:
        """What a report shows of it."""
        told: dict[str, Any] = {"rows": [{k: list(v) for k, v in row.items()} for row in self.rows]}
        if self.masked:
            more = {name: n for name, n in self.extra.items() if n}
            told["padding"] = {"on": "left" if self.left else "right", **more}
            if self.under != "pad":
                told["under_padding"] = {"nan": "NaN"}.get(self.under, "other ids")
        return told


class Batch(NamedTuple):
    """A case as tensors: ids int64 (B, T) by side, and where they are real, bool (B, T) or None."""

    ids: dict[str, Tensor]
    real: dict[str, Tensor | None]
    positions: bool = False
    nan: bool = False

    @property
    def n_rows(self) -> int:
        return next(iter(self.ids.values())).shape[0]

    def keep(self, side: str, row: int) -> Tensor:
        """Bool (T,), where this row of a side is real."""
        real = self.real[side]
        if real is not None:
            return real[row]
        return torch.ones_like(self.ids[side][row], dtype=torch.bool)


class Subject:
    """A model under the laws. An adapter says how it is read, and what more it can do."""

    model: Any
    name: str
    sides: tuple[Side, ...]
    exempt: Mapping[str, str] = {}  # laws that it does not have by its nature → why
    holds_anything = False  # does it promise that even NaN under its padding changes nothing?

    def read(self, batch: Batch) -> dict[str, Tensor]:
        """Every output by name, floating, of shape (B, …) or (B, T of its side, …)."""
        raise NotImplementedError

    def fed(self) -> None:
        """Is it read at all? Asked once, before the first law.

        Raises:
            UserError: the adapter cannot feed such a model, so that it is no fault of its.
        """

    def steps(
        self, batch: Batch, widths: Sequence[int], move: tuple[int, Tensor] | None = None
    ) -> tuple[str, Tensor]:
        """A field of the causal side, computed in chunks of these widths with a cache.

        move (n, index): after n chunks row i becomes what row index[i] was; all rows have the
        same source then.
        """
        raise NotApplicable("It has no causal side to be decoded step by step.")

    def searches(self, batch: Batch, n: int) -> dict[str, list[tuple[int, ...]]]:
        """By each of its searches: at most n ids that follow each row, `</s>` included."""
        raise NotApplicable("It generates nothing.")

    def following(self, row: Row, ids: tuple[int, ...]) -> tuple[Row, int]:
        """The row with these ids after it, and the place whose output predicts the first."""
        raise NotApplicable("It generates nothing.")

    def loss(self, batch: Batch) -> tuple[float, float]:
        """The model's own loss as a mean over tokens, and how many tokens those are."""
        raise NotApplicable("It computes no loss of tokens.")

    def counted_otherwise(self) -> "Subject | None":
        """The same, counting the tokens of a loss the other way, where nobody says which it is."""
        return None

    def saved_and_loaded(self) -> nn.Module:
        """The model as it comes back from a folder."""
        raise NotApplicable("Nothing here saves it.")

    def with_model(self, model: nn.Module) -> "Subject":
        """The same adapter around another model."""
        raise NotImplementedError

    def wide(self) -> "Subject":
        """The same adapter around a copy that computes in float64."""
        return self.with_model(copy.deepcopy(self.model).double())

    def quiet(self) -> AbstractContextManager[None]:
        """Inside, nothing the model calls writes to the terminal."""
        return nullcontext()

    def ties(self) -> list[tuple[str, str]]:
        """Pairs of parameter names that the configuration says are one."""
        return []

    @property
    def memory(self) -> dict[str, Any]:
        """What a law finds out about it once and others want too."""
        found: dict[str, Any] = self.__dict__.setdefault("_memory", {})
        return found

    @property
    def device(self) -> torch.device:
        first = next(self.model.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers, whose rounding counts."""
        first = next(self.model.parameters(), None)
        return torch.float32 if first is None else first.dtype

    @property
    def causal(self) -> Side:
        """The side that is written from left to right."""
        for side in self.sides:
            if side.causal:
                return side
        raise NotApplicable("It reads all tokens at once, the later ones too.")

    @property
    def paddable(self) -> tuple[Side, ...]:
        found = tuple(side for side in self.sides if side.paddable)
        if not found:
            raise NotApplicable("It reads pictures of one size, which need no padding.")
        return found

    def row(self, n: int | Mapping[str, int] = READ, seed: int = 0) -> Row:
        """A row of n ids on every side; longer sides are cut to what the model takes."""
        lengths = {s.name: n if isinstance(n, int) else n.get(s.name, READ) for s in self.sides}
        return {
            s.name: s.sentence(min(lengths[s.name], s.max_len) if s.paddable else 1, seed)
            for s in self.sides
        }

    def batch(self, case: Case) -> Batch:
        """The case as tensors on the model's device."""
        self.memory["last case"] = case  # what stopped the model, should it stop
        ids, real = {}, {}
        for side in self.sides:
            rows = [row[side.name] for row in case.rows]
            length = max(map(len, rows)) + case.extra.get(side.name, 0)
            ids[side.name] = torch.tensor([_filled(side, r, length, case) for r in rows])
            ids[side.name] = ids[side.name].to(self.device)
            shown = [_places(len(r), length, case.left) for r in rows]
            padded = case.masked and side.paddable
            real[side.name] = torch.tensor(shown).to(self.device) if padded else None
        return Batch(ids, real, case.positions, case.under == "nan")


def _places(n: int, length: int, left: bool) -> list[bool]:
    hidden = [False] * (length - n)
    return hidden + [True] * n if left else [True] * n + hidden


def _filled(side: Side, row: tuple[int, ...], length: int, case: Case) -> list[int]:
    n = length - len(row)
    under = [side.pad_id] * n
    if case.under == "other" or (case.under == "empty" and not row):
        under = [side.ids[(3 * i + 1) % len(side.ids)] for i in range(n)]
    return under + list(row) if case.left else list(row) + under
