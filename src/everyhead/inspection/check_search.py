"""A law of searching: with one beam, the likeliest token is taken every time (DESIGN's law 5)."""

from collections.abc import Sequence

from everyhead.inspection.check_compare import Difference, bound
from everyhead.inspection.subjects import Case, NotApplicable, Subject
from everyhead.inspection.verdicts import Failure

NEW = 6  # tokens to generate


def greedy(subject: Subject) -> Failure | None:
    """With one beam a search takes the likeliest token every time, as one pass has it."""
    left = subject.sides[0] is subject.causal  # prompts end together, sources begin together
    several = Case(tuple(subject.row(n, n) for n in (5, 2, 7)), left=left, masked=True)
    found = unlikely(subject, several, NEW)
    if found is None:
        return None
    for n in range(1, 6):
        for new in range(1, NEW + 1):
            small = Case((subject.row(n),))
            smaller = unlikely(subject, small, new)
            if smaller is not None:
                return Failure(small, smaller, (("new_tokens", new),))
    failure = Failure(several, found, (("new_tokens", NEW),))
    return failure.because("prompts alone pass, so it is padding that changes what is likeliest")


def unlikely(subject: Subject, case: Case, n: int) -> Difference | None:
    """The first token that a search of one beam took although another was likelier."""
    for how, answers in subject.searches(subject.batch(case), n).items():
        for i, (row, ids) in enumerate(zip(case.rows, answers, strict=True)):
            if not ids:
                raise NotApplicable("It ends at once after everything tried, so nothing is chosen.")
            found = passed_over(subject, *subject.following(row, ids), ids)
            if found is not None:
                return Difference(found[0], how, i, found[1])
    return None


def passed_over(
    subject: Subject, row: dict[str, tuple[int, ...]], start: int, ids: Sequence[int]
) -> tuple[float, int] | None:
    """By how much the likeliest token was better, and at which new token."""
    logits = subject.read(subject.batch(Case((row,))))["logits"][0].double()
    for i, token in enumerate(ids):
        best = float(logits[start + i].max() - logits[start + i, token])
        if not best <= 2 * bound(logits[start + i].to(subject.dtype)):
            return best, i
    return None
