"""The inputs that laws are tried on, and the smallest of them that fails.

A law is tried on large cases first. If one fails, small ones are tried from the smallest on, and
the first that fails is reported.
"""

from collections.abc import Callable, Iterator

from everyhead.inspection.check_compare import Difference, first_layer, listening
from everyhead.inspection.subjects import Case, Side, Subject
from everyhead.inspection.verdicts import Failure

LENGTHS = (7, 4, 1, 6)
SMALL = 4  # lengths up to this are tried for the smallest failing input

Compare = Callable[[Subject, Case], Difference | None]


def ordinary(subject: Subject) -> Case:
    """Three rows of one length."""
    return Case(tuple(subject.row(seed=seed) for seed in range(3)))


def ragged(subject: Subject, *, left: bool) -> Case:
    """Four rows of several lengths, one of them one token, and more padding than they need."""
    sides = subject.paddable
    rows = []
    for i in range(len(LENGTHS)):
        lengths = {s.name: LENGTHS[(i + 2 * k) % len(LENGTHS)] for k, s in enumerate(sides)}
        rows.append(subject.row({s.name: lengths.get(s.name, 1) for s in subject.sides}, i))
    extra = {side.name: room(side, max(LENGTHS), 2) for side in sides}
    return Case(tuple(rows), left=left, extra=extra, masked=True)


def room(side: Side, length: int, extra: int) -> int:
    """As much more as the model's longest length allows."""
    return max(0, min(extra, side.max_len - length))


def padded(subject: Subject, *, left: bool) -> Iterator[Case]:
    """Padded cases from the smallest on: one row, of ever more tokens, with ever more padding."""
    sides = [side.name for side in subject.paddable]
    for n in range(1, SMALL + 1):
        for extra in range(SMALL):
            for side in sides if extra else sides[:1]:
                yield Case((subject.row(n),), left=left, extra={side: extra}, masked=True)
    for n in range(1, SMALL + 1):
        for side in sides:
            rows = subject.row(SMALL), subject.row({side: n} if len(sides) > 1 else n, 1)
            yield Case(rows, left=left, masked=True)


def smallest(
    subject: Subject, largest: list[Case], cases: Iterator[Case] | list[Case], compare: Compare
) -> Failure | None:
    """None if the large cases pass; else the first of the ascending ones that fails, or a large.

    Raises whatever the model stops with, at the smallest case that stops it.
    """
    for case in largest:
        try:
            found = compare(subject, case)
        except Exception:
            for small in cases:
                compare(subject, small)
            compare(subject, case)
            raise
        if found is None:
            continue
        for small in cases:
            smaller = compare(subject, small)
            if smaller is not None:
                return Failure(small, smaller)
        return Failure(case, found)
    return None


def explained(subject: Subject, failure: Failure | None) -> Failure | None:
    """With the first layer where a row of the case and that row alone part."""
    if failure is None:
        return None
    row = failure.difference.row
    together, single = subject.batch(failure.case), subject.batch(failure.case.only(row))
    with listening(subject.model) as one:
        subject.read(together)
    with listening(subject.model) as two:
        subject.read(single)
    return failure.at(first_layer((one, together, row), (two, single, 0)))
