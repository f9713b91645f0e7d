"""Laws of rows: the same twice, padded or not, whatever stands there, alone or in a batch.

DESIGN's laws 3 and 5 ("batch = single"). A failing input is made smaller by trying ever larger
ones from the smallest on, so what is reported is the first that fails.
"""

import linecache
import traceback
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from everyhead.inspection.check_cases import (
    SMALL,
    explained,
    ordinary,
    padded,
    ragged,
    smallest,
)
from everyhead.inspection.check_compare import (
    Difference,
    alone,
    differ,
    distance,
    first_layer,
    listening,
    sides_of_fields,
)
from everyhead.inspection.subjects import Batch, Case, NotApplicable, Subject
from everyhead.inspection.verdicts import Failure


def repeat(subject: Subject) -> Failure | None:
    """Two evaluations of one batch are bit-equal."""

    def twice(subject: Subject, case: Case) -> Difference | None:
        batch = subject.batch(case)
        first, second = subject.read(batch), subject.read(batch)
        for name, side in sides_of_fields(subject).items():
            found = differ(first[name], second[name], exact=True)
            if found is not None:
                wrong = (distance(first[name], second[name]) > 0)[found.first]
                token = int(wrong.flatten(1).any(1).nonzero()[0]) if side else None
                return found.at(name, found.first, token)
        return None

    # Dropout may leave a short row as it was by chance, so each small one is tried a few times.
    cases = [Case((subject.row(n),)) for n in range(1, SMALL + 1) for _ in range(3)]
    failure = smallest(subject, [ordinary(subject)], cases, twice)
    subject.memory["steady"] = failure is None
    if failure is None:
        return None
    batch = subject.batch(failure.case)
    with listening(subject.model) as one:
        subject.read(batch)
    with listening(subject.model) as two:
        subject.read(batch)
    return failure.at(first_layer((one, batch, 0), (two, batch, 0)))


def batch(subject: Subject) -> Failure | None:
    """Rows of one length, read together without padding, are what they are alone."""
    cases = [
        Case(tuple(subject.row(n, seed) for seed in range(rows)))
        for rows in (2, 3)
        for n in range(1, SMALL + 1)
    ]
    return explained(subject, smallest(subject, [ordinary(subject)], cases, alone))


def padding_right(subject: Subject) -> Failure | None:
    """Padding on the right changes nothing, nor does a mask that hides nothing."""
    return padding(subject, left=False)


def padding_left(subject: Subject) -> Failure | None:
    """Padding on the left changes nothing: positions come from the mask."""
    failure = padding(subject, left=True)
    if failure is None:
        return None
    if alone(subject, replace(failure.case, positions=True)) is None:
        return failure.because(
            "its positions count the padding unless position_ids are handed over, as generate does"
        )
    if alone(subject, replace(failure.case, left=False)) is None:
        return failure.because("padded on the right nothing changes")
    return failure


def padding(subject: Subject, *, left: bool) -> Failure | None:
    """Rows of several lengths, padded on one side, are what they are alone."""
    largest = ragged(subject, left=left)
    return explained(subject, smallest(subject, [largest], padded(subject, left=left), alone))


def under_padding(subject: Subject) -> Failure | None:
    """Other ids where the mask hides them change nothing."""
    for left, plain in sound(subject):
        cases = [replace(case, under="other") for case in padded(subject, left=left)]
        found = smallest(subject, [replace(plain, under="other")], cases, alone)
        if found is not None:
            return explained(subject, found)
    return None


def nan_padding(subject: Subject) -> Failure | None:
    """Not even NaN in the embeddings of what is hidden reaches an output."""
    for left, plain in sound(subject):
        cases = [replace(case, under="nan") for case in padded(subject, left=left)]
        found = smallest(subject, [replace(plain, under="nan")], cases, with_nan)
        if found is not None and subject.holds_anything:
            return found
        if found is not None:
            raise NotApplicable(
                "Token ids have finite embeddings, so no NaN stands under its padding; one handed "
                "in as an embedding would reach its outputs."
            )
    return None


def sound(subject: Subject) -> Iterator[tuple[bool, Case]]:
    """The sides on which padding itself changes nothing; elsewhere that is the finding."""
    found = False
    for left in (False, True):
        plain = ragged(subject, left=left)
        if alone(subject, plain) is None:
            found = True
            yield left, plain
    if not found:
        raise NotApplicable("Padding alone changes its outputs already, on the left and the right.")


def with_nan(subject: Subject, case: Case) -> Difference | None:
    """`alone`, with NaN in the embeddings of what is padded."""
    with nan_under(subject, subject.batch(case)):
        return alone(subject, case)


class nan_under:
    """Inside, each embedding table gives NaN where a batch's ids are hidden."""

    def __init__(self, subject: Subject, batch: Batch) -> None:
        self.subject, self.batch = subject, batch
        self.hooks: list[torch.utils.hooks.RemovableHandle] = []

    def __enter__(self) -> None:
        for module in self.subject.model.modules():
            weight = getattr(module, "weight", None)
            table = isinstance(weight, torch.Tensor) and weight.dim() == 2
            if table and not any(True for _ in module.children()):
                self.hooks.append(module.register_forward_hook(self._spoil))

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _spoil(self, _: nn.Module, args: tuple[torch.Tensor, ...], out: torch.Tensor) -> object:
        for side, ids in self.batch.ids.items():
            real, given = self.batch.real[side], args[0] if args else None
            if real is None or not isinstance(given, torch.Tensor) or given.dtype != ids.dtype:
                continue
            if torch.equal(given, ids):
                return out.masked_fill(~real[..., None], float("nan"))
        return out


# -------------------------------------------------------------------------------------- empty rows


def empty_row(subject: Subject) -> Failure | None:
    """A row in which nothing is real stays finite, disturbs nobody, and reads nothing."""
    reader = subject.paddable[0]
    cases = [
        Case((*others, {**subject.row(n), reader.name: ()}), extra={reader.name: 1}, masked=True)
        for others in ((), (subject.row(2, 1),))
        for n in (1, 3)
    ]
    try:
        return smallest(subject, cases, cases, emptied)
    except ValueError as error:
        if not refused(error):
            raise
        raise NotApplicable(
            f"It refuses a row in which nothing is real: {' '.join(str(error).split())}"
        ) from None


def refused(error: ValueError) -> bool:
    """Did the model's own code raise it, by itself or by torch._check? Else it stumbled."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    words = linecache.getline(frame.f_code.co_filename, line)
    own = not str(frame.f_globals.get("__name__")).startswith("torch.")
    return own and words.lstrip().startswith("raise ")


def emptied(subject: Subject, case: Case) -> Difference | None:
    """The last row is empty; what is padded there, and how much, may not show."""
    reader, last = subject.paddable[0], len(case.rows) - 1
    batch = subject.batch(case)
    outputs = subject.read(batch)
    more = replace(case, under="empty", extra={reader.name: case.extra[reader.name] + 2})
    longer = subject.batch(more)
    others = subject.read(longer)
    for name, side in sides_of_fields(subject).items():
        x, y = outputs[name], others[name]
        wrong = x.isnan()
        if bool(wrong.any()):
            return Difference(float("nan"), name, int(wrong.flatten(1).any(1).nonzero()[0]))
        for row in range(last + (side != reader.name and side is not None)):
            a, b = x[row], y[row]
            if side is not None:
                a, b = a[batch.keep(side, row)], b[longer.keep(side, row)]
            found = differ(a, b) if side is not None else differ(a[None], b[None])
            if found is not None:
                return found.at(name, row, None if side is None else found.first)
    return None
