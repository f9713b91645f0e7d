"""Laws of decoding: the future is not seen, and a cache changes nothing.

DESIGN's laws 4 and 5. Chunks of 1, 2, 3 and 7 tokens; beams are rows moved between two steps.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from everyhead.inspection.check_cases import ragged
from everyhead.inspection.check_compare import (
    Difference,
    differ,
    first_layer,
    listening,
    sides_of_fields,
)
from everyhead.inspection.subjects import Case, NotApplicable, Side, Subject
from everyhead.inspection.verdicts import Failure

CHUNKS = (1, 2, 3, 7)
LONG = 70  # beyond the chunks and windows of small models

# ------------------------------------------------------------------------------------------ future


def future(subject: Subject) -> Failure | None:
    """At equal shapes, changing a token leaves every output before it bit-equal.

    Where no side is known to be causal, one that behaves so is; else the law says nothing.
    """
    side = causal_or_first(subject)
    long = min(LONG, side.max_len)
    tries = [(12, t) for t in range(1, 12)]
    tries += [(long, t) for t in (long - 1, long // 2, 1)] if long > 12 else []
    for masked in (False, True):  # with a mask that hides nothing the causal one must stay
        for n, t in tries:
            if n <= side.max_len and leak(subject, n, t, masked) is not None:
                subject.causal  # noqa: B018 — raises where nobody says that it is
                return smallest_leak(subject, n, t, masked)
    return None


def causal_or_first(subject: Subject) -> Side:
    """The side that is, or might be, written from left to right; it has an output a token.

    Raises:
        NotApplicable: no output belongs to a token.
    """
    sides = {side.name: side for side in subject.sides}
    found = [sides[name] for name in sides_of_fields(subject).values() if name is not None]
    if not found:
        raise NotApplicable("No output of it belongs to one token.")
    return next((side for side in found if side.causal), found[0])


def leak(subject: Subject, n: int, t: int, masked: bool) -> Difference | None:
    """n tokens of the causal side; does changing token t move an output before it?"""
    side = causal_or_first(subject).name
    case, changed = changed_at(subject, n, t, masked)
    before, after = subject.read(subject.batch(case)), subject.read(subject.batch(changed))
    for name, own in sides_of_fields(subject).items():
        if own == side:
            found = differ(after[name][0, :t], before[name][0, :t], exact=True)
            if found is not None:
                return found.at(name, 0, found.first)
    return None


def changed_at(subject: Subject, n: int, t: int, masked: bool) -> tuple[Case, Case]:
    """A row of n tokens on the causal side, and the same with another token t."""
    side = causal_or_first(subject)
    row = subject.row({side.name: n})
    ids = list(row[side.name])
    ids[t] = side.other(ids[t])
    rows = row, {**row, side.name: tuple(ids)}
    before, after = (Case((each,), masked=masked) for each in rows)
    return before, after


def smallest_leak(subject: Subject, n: int, t: int, masked: bool) -> Failure:
    """The shortest row, and the token, with the first layer that sees it."""
    for length in range(2, n):
        for token in range(1, length):
            if leak(subject, length, token, masked) is not None:
                return leaking(subject, length, token, masked)
    return leaking(subject, n, t, masked)


def leaking(subject: Subject, n: int, t: int, masked: bool) -> Failure:
    found = leak(subject, n, t, masked)
    assert found is not None
    case, changed = changed_at(subject, n, t, masked)
    heard = []
    for each in (case, changed):
        batch = subject.batch(each)
        with listening(subject.model) as states:
            subject.read(batch)
        heard.append((states, batch, 0))
    failure = Failure(case, found, (("changed_token", t),))
    return failure.at(first_layer(heard[0], heard[1], until=t))


# ------------------------------------------------------------------------------------------- cache


def cache(subject: Subject) -> Failure | None:
    """Decoded with a cache, in chunks of 1, 2, 3 and 7, outputs are those of one pass."""
    for case, chunk in cached(subject):
        if parted(subject, case, chunk) is None:
            continue
        for n in range(2, 9):
            for small in CHUNKS:
                shorter = Case((subject.row({subject.causal.name: n}),))
                if small < n and (found := parted(subject, shorter, small)) is not None:
                    return stepping(subject, Failure(shorter, found), small)
        found = parted(subject, case, chunk)
        assert found is not None
        return stepping(subject, Failure(case, found), chunk)
    return None


def cached(subject: Subject) -> Iterator[tuple[Case, int]]:
    """Three rows in every chunk; then rows padded on the left, where that can be decoded."""
    side = subject.causal
    n = min(15, side.max_len)
    rows = tuple(subject.row({side.name: n}, seed) for seed in range(3))
    yield from ((Case(rows), chunk) for chunk in CHUNKS)
    case = replace(ragged(subject, left=True), positions=True)
    if side is not subject.sides[0]:  # a target's rows start together
        other = {k: v for k, v in case.extra.items() if k != side.name}
        same = tuple({**row, side.name: side.sentence(7, i)} for i, row in enumerate(case.rows))
        case = replace(case, rows=same, extra=other)
    yield from ((case, chunk) for chunk in CHUNKS[:2])


def pieces(n: int, chunk: int) -> list[int]:
    """n tokens in chunks, the last one perhaps smaller."""
    return [min(chunk, n - start) for start in range(0, n, chunk)]


def parted(subject: Subject, case: Case, chunk: int) -> Difference | None:
    """Where cached outputs leave those of one pass, at real tokens."""
    batch, side = subject.batch(case), subject.causal.name
    name, stepped = subject.steps(batch, pieces(batch.ids[side].shape[1], chunk))
    whole = subject.read(batch)[name]
    for row in range(batch.n_rows):
        keep = batch.keep(side, row)
        found = differ(stepped[row][keep], whole[row][keep])
        if found is not None:
            return found.at(name, row, found.first)
    return None


def stepping(subject: Subject, failure: Failure, chunk: int) -> Failure:
    """With the chunk, and the first layer whose states differ."""
    batch, row = subject.batch(failure.case), failure.difference.row
    with listening(subject.model, steps=True) as one:
        subject.steps(batch, pieces(batch.ids[subject.causal.name].shape[1], chunk))
    with listening(subject.model) as two:
        subject.read(batch)
    failure = replace(failure, more=(("chunk", chunk),))
    return failure.at(first_layer((one, batch, row), (two, batch, row)))


def reorder(subject: Subject) -> Failure | None:
    """Rows of a cache moved, as beams are, go on as the rows that they came from."""
    for before, after, index in ((5, 4, (2, 0, 0)), (3, 2, (1, 2, 2))):
        if moved(subject, before, after, index) is None:
            continue
        for n in range(1, before + 1):
            for order in ((1, 0), (0, 0), (1, 1), index):
                found = moved(subject, n, 1, order)
                if found is not None:
                    return Failure(*found)
        return Failure(*moved(subject, before, after, index))  # type: ignore[misc]
    return None


def moved(
    subject: Subject, before: int, after: int, index: tuple[int, ...]
) -> tuple[Case, Difference, tuple[tuple[str, object], ...]] | None:
    """`before` tokens at once, rows moved, `after` tokens one by one: beside one pass."""
    side = subject.causal.name
    rows = [subject.row({side: before + after}, seed) for seed in range(len(index))]
    rows = [{**rows[0], side: row[side]} for row in rows]  # beams of one sentence
    fed = subject.batch(Case(tuple(rows)))
    order = torch.tensor(index, device=subject.device)
    name, stepped = subject.steps(fed, [before, *[1] * after], (1, order))
    histories = tuple(
        {**row, side: rows[i][side][:before] + row[side][before:]}
        for i, row in zip(index, rows, strict=True)
    )
    whole = subject.read(subject.batch(Case(histories)))[name]
    for row in range(len(index)):
        found = differ(stepped[row, before:], whole[row, before:])
        if found is not None:
            difference = found.at(name, row, before + found.first)
            return Case(tuple(rows)), difference, (("moved_after", before), ("order", list(index)))
    return None
