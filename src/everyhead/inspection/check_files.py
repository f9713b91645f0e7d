"""Laws of what is kept: save → load → equal, tied weights still tied; and of the sum divided once.

DESIGN's laws 6 and 7.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from everyhead.inspection.check_cases import ordinary
from everyhead.inspection.check_compare import (
    Difference,
    differ,
    first_layer,
    listening,
    sides_of_fields,
)
from everyhead.inspection.subjects import Case, NotApplicable, Subject
from everyhead.inspection.verdicts import Failure


class Changed(Exception):
    """A tensor that did not come back as it was; the message is a sentence."""


class Untied(Changed):
    """Two parameters that should be one."""


def reloaded(subject: Subject) -> Subject:
    """The subject around the model that came back from a folder; made once."""
    made: Subject | None = subject.memory.get("reloaded")
    if made is None:
        model = subject.saved_and_loaded().to(subject.device).eval()
        made = subject.with_model(model)
        subject.memory["reloaded"] = made
    return made


def save_load(subject: Subject) -> Failure | None:
    """Saved and loaded, its parameters are the same and its outputs equal.

    Outputs only to rounding: where a tensor lies in memory decides which kernel reads it.

    Raises:
        Changed: a parameter is another; which.
    """
    before, after = (parameters(each.model) for each in (subject, reloaded(subject)))
    for name, parameter in before.items():
        if name in after and not same(parameter, after[name]):
            raise Changed(f"After save and load {name} holds other numbers or another shape.")
    for case in (Case((subject.row(1),)), ordinary(subject)):
        batch, other = subject.batch(case), reloaded(subject)
        first, second = subject.read(batch), other.read(batch)
        for name in sides_of_fields(subject):
            found = differ(second[name], first[name])
            if found is not None:
                with listening(subject.model) as one:
                    subject.read(batch)
                with listening(other.model) as two:
                    other.read(batch)
                failure = Failure(case, found.at(name, found.first))
                return failure.at(first_layer((one, batch, 0), (two, batch, 0)))
    return None


def ties(subject: Subject) -> None:
    """What is one parameter, or should be by the configuration, is one, also after loading.

    Raises:
        Untied: it is not; which and where.
    """
    declared = [pair for pair in subject.ties() if not tied(subject.model, *pair)]
    if declared:
        a, b = declared[0]
        raise Untied(f"The configuration ties {a} to {b}, but they are two tensors.")
    groups = shared(subject.model)
    if not groups:
        raise NotApplicable("It has no tied weights.")
    try:
        model = reloaded(subject).model
    except NotApplicable:
        return
    for first, *others in groups:
        for other in others:
            if not tied(model, first, other):
                raise Untied(f"{first} and {other} are one tensor, but two after save and load.")


def same(a: Tensor, b: Tensor) -> bool:
    """The same numbers in the same shape; some are kept in a wider type (T5 in half precision)."""
    return a.shape == b.shape and torch.equal(a.double(), b.double())


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By every name that they have."""
    return dict(model.named_parameters(remove_duplicate=False))


def tied(model: nn.Module, first: str, second: str) -> bool:
    """Do both names mean one tensor?"""
    known = parameters(model)
    if first not in known or second not in known:
        return first not in known and second not in known
    return known[first].data_ptr() == known[second].data_ptr()


def shared(model: nn.Module) -> list[list[str]]:
    """Names of one parameter, where it has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in parameters(model).items():
        names.setdefault(id(parameter), []).append(name)
    return [group for group in names.values() if len(group) > 1]


# -------------------------------------------------------------------------------------------- sums


def sums(subject: Subject) -> Failure | None:
    """A padded batch's loss is Σ over its real tokens / Σ tokens, those of its rows alone."""
    sides = [side.name for side in subject.paddable]

    def case(*lengths: int, extra: int) -> Case:
        rows = tuple(subject.row(n, i) for i, n in enumerate(lengths))
        return Case(rows, extra=dict.fromkeys(sides, extra), masked=True)

    large = case(7, 3, 2, 6, extra=2)
    found = undivided(subject, large)
    other = None if found is None else subject.counted_otherwise()
    if found is None or (other is not None and undivided(other, large) is None):
        return None
    for n, extra in ((2, 1), (2, 2), (3, 1)):
        for small in (case(n, extra=extra), case(n + 1, n, extra=0)):
            smaller = undivided(subject, small)
            if smaller is not None:
                return Failure(small, smaller)
    return Failure(large, found)


def undivided(subject: Subject, case: Case) -> Difference | None:
    """How far a batch's loss is from Σ / Σ of its rows."""
    for under in ("pad", "other"):
        mean, n = subject.loss(subject.batch(replace(case, under=under)))
        rows = [subject.loss(subject.batch(case.only(i))) for i in range(len(case.rows))]
        total, count = sum(m * k for m, k in rows), sum(k for _, k in rows)
        expected = total / max(count, 1)
        found = differ(*torch.tensor([[mean], [expected]], dtype=subject.dtype))
        if n != count or found is not None or not math.isfinite(mean):
            return Difference(abs(mean - expected), "loss") if found is None else found.at("loss")
    return None
