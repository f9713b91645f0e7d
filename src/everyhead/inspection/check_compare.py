"""When two outputs are the same, and which layer is the first where they are not.

    |a − b| ≤ ε · max(1, max |b|)      ε = 1e-6 float64 · 1e-5 float32 · 1e-2 half precision

max |b| is of the whole output, because a sum of large terms is rounded as those are. NaN equals
nothing, an infinity itself. What each tolerance means: docs/decisions.md, "Checks".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from everyhead.inspection.subjects import Batch, Case, Subject

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-5}
HALF = 1e-2
NARROW = 100.0  # times the tolerance


@dataclass(frozen=True)
class Difference:
    """Where two outputs part: the first token, and by how much at most."""

    amount: float
    field: str
    row: int = 0
    token: int | None = None
    times: float = float("inf")  # the tolerance

    @property
    def narrow(self) -> bool:
        """Might it be rounding after all, in a deep model or another order of sums?"""
        return self.times < NARROW

    def described(self) -> dict[str, Any]:
        told: dict[str, Any] = {"output": self.field, "difference": shown(self.amount)}
        return told | {"row": self.row} | ({} if self.token is None else {"token": self.token})


def shown(amount: float) -> float | str:
    """Three digits, or NaN where it is no number."""
    return float(f"{amount:.3g}") if amount == amount and abs(amount) != float("inf") else "NaN"


def tolerance(dtype: torch.dtype) -> float:
    return TOLERANCE.get(dtype, HALF)


def distance(a: Tensor, b: Tensor) -> Tensor:
    """|a − b| in float64; 0 between equal infinities, infinite where one alone is NaN."""
    a, b = a.detach().double(), b.detach().double()
    apart = torch.where(a == b, torch.zeros_like(a), (a - b).abs())
    return apart.nan_to_num(nan=float("inf"), posinf=float("inf"))


def bound(b: Tensor) -> float:
    """The largest difference from `b` that is rounding."""
    finite = b.detach().double().abs()
    finite = finite[finite.isfinite()]
    scale = float(finite.max()) if finite.numel() else 1.0
    return tolerance(b.dtype) * max(1.0, scale)


class Apart(NamedTuple):
    """How far two tensors are apart at most, where on axis 0 first, and how many tolerances."""

    amount: float
    first: int
    times: float = float("inf")

    def at(self, field: str, row: int = 0, token: int | None = None) -> Difference:
        return Difference(self.amount, field, row, token, self.times)


def differ(a: Tensor, b: Tensor, *, exact: bool = False) -> Apart | None:
    """Where a is too far from b; None: nowhere."""
    if a.shape != b.shape:
        return Apart(float("inf"), 0)
    far, allowed = distance(a, b), bound(b)
    wrong = far > (0.0 if exact else allowed)
    if not bool(wrong.any()):
        return None
    first = int(wrong.flatten(1).any(1).nonzero()[0]) if wrong.dim() > 1 else 0
    amount = float(far.max())
    return Apart(amount, first, amount / allowed)


def sides_of_fields(subject: Subject) -> dict[str, str | None]:
    """Each output's side, None for one value a row; outputs that mix rows are left out."""
    known: dict[str, str | None] | None = subject.memory.get("sides of fields")
    if known is None:
        seen = []
        for n_rows, shift in ((2, 0), (3, 2)):
            lengths = {s.name: 4 + 3 * i + shift for i, s in enumerate(subject.sides)}
            case = Case(tuple(subject.row(lengths, seed) for seed in range(n_rows)))
            batch = subject.batch(case)
            seen.append((batch, subject.read(batch)))
        known = {}
        for name in seen[0][1]:
            _place(name, seen, known)
        subject.memory["sides of fields"] = known
    return known


def _place(name: str, seen: list[Any], known: dict[str, str | None]) -> None:
    shapes = [tuple(fields[name].shape) for _, fields in seen]
    rows = [batch.n_rows for batch, _ in seen]
    if any(not shape or shape[0] != n for shape, n in zip(shapes, rows, strict=True)):
        return
    if shapes[0][1:] == shapes[1][1:]:
        known[name] = None
        return
    for side in seen[0][0].ids:
        lengths = [batch.ids[side].shape[1] for batch, _ in seen]
        if [shape[1] for shape in shapes] == lengths:
            known[name] = side


def alone(subject: Subject, case: Case) -> Difference | None:
    """Is each row of the case what it is alone, without padding and mask?"""
    batch = subject.batch(case)
    together = subject.read(batch)
    for row in range(len(case.rows)):
        single = subject.read(subject.batch(case.only(row)))
        for name, side in sides_of_fields(subject).items():
            a, b = together[name][row], single[name][0]
            a = a if side is None else a[batch.keep(side, row)]
            found = differ(a, b) if side is not None else differ(a[None], b[None])
            if found is not None:
                return found.at(name, row, None if side is None else found.first)
    return None


# ----------------------------------------------------------------------------------------- layers

Heard = dict[str, list[Tensor]]


@contextmanager
def listening(model: nn.Module, *, steps: bool = False) -> Iterator[Heard]:
    """Collects what leaves every layer (each member of a ModuleList), in the order of computing.

    A layer that computes again is a later piece of the same states in `steps`; else it is shared,
    as ALBERT's are, and is heard under a name of its own.
    """
    heard: Heard = {}

    def keep(name: str, states: Tensor) -> None:
        n = 1
        while not steps and (name if n == 1 else f"{name} (time {n})") in heard:
            n += 1
        heard.setdefault(name if n == 1 else f"{name} (time {n})", []).append(states.clone())

    def listener(name: str, first: bool) -> Callable[..., None]:
        def hear(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            given = args[0] if args else kwargs.get("hidden_states")
            if first and isinstance(given, Tensor):
                keep(f"before {name}", given.detach())
            out = out[0] if isinstance(out, tuple) and out else out
            if isinstance(out, Tensor) and out.is_floating_point() and out.dim() in (2, 3):
                keep(name, out.detach())

        return hear

    hooks = [
        layer.register_forward_hook(
            listener(f"{path}.{name}".replace(".blocks.", "."), name == "0"), with_kwargs=True
        )
        for path, layers in model.named_modules()
        if isinstance(layers, nn.ModuleList)
        for name, layer in layers.named_children()
    ]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def first_layer(
    one: tuple[Heard, Batch, int], two: tuple[Heard, Batch, int], until: int | None = None
) -> str | None:
    """The first layer whose states differ between a row of one pass and a row of another.

    Each pass is what was heard, its batch and the row. `until`: tokens of the causal side before
    this one are compared, bit by bit.
    """
    last = None
    for name in _in_order(one[0]):
        states = [_of_row(name, heard, batch, row) for heard, batch, row in (one, two)]
        a, b = (s if s is None or until is None else s[:until] for s in states)
        if a is None or b is None or a.shape != b.shape:
            continue
        if differ(a, b, exact=until is not None) is not None:
            return name
        last = name
    return None if last is None else f"after {last}"


def _in_order(heard: Heard) -> list[str]:
    """A layer's entry is noted when the layer is done, so it stands before all inside it."""
    names = list(heard)
    for entry in [n for n in names if n.startswith("before ")]:
        layer = entry.removeprefix("before ").split(" ")[0]
        names.remove(entry)
        inside = (i for i, n in enumerate(names) if f"{n}.".startswith(f"{layer}."))
        names.insert(next(inside, len(names)), entry)
    return names


def _of_row(name: str, heard: Heard, batch: Batch, row: int) -> Tensor | None:
    """States (t, C) at a row's real tokens, whether padded (B, T, C) or packed (N, C)."""
    pieces = heard.get(name, [])
    if not pieces:
        return None
    states = torch.cat(pieces, 1) if pieces[0].dim() == 3 else torch.cat(pieces)
    names = list(batch.ids)
    for side in names if "encoder" in name else reversed(names):
        keep = [batch.keep(side, r) for r in range(batch.n_rows)]
        if states.dim() == 3 and states.shape[:2] == batch.ids[side].shape:
            return states[row][keep[row]]
        counts = [int(k.sum()) for k in keep]
        if states.dim() == 2 and states.shape[0] == sum(counts):
            return states.split(counts)[row]
    return None
