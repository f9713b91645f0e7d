"""What a law found: a verdict, a sentence; of a failure the smallest input and the layer."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from everyhead.inspection.check_compare import Difference
from everyhead.inspection.subjects import Case

Verdict = Literal["pass", "fail", "not applicable"]


@dataclass(frozen=True)
class Finding:
    """One law's answer for one model.

    smallest: the smallest failing input and where its outputs part; None unless it failed.
    layer: the first layer whose states differ, where that can be told.
    """

    law: str
    verdict: Verdict
    sentence: str
    smallest: dict[str, Any] | None = None
    layer: str | None = None

    def described(self) -> dict[str, Any]:
        """The finding as JSON would have it."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.law}: {self.verdict}. {self.sentence}"


@dataclass(frozen=True)
class Failure:
    """A case in which a law does not hold."""

    case: Case
    difference: Difference
    more: tuple[tuple[str, Any], ...] = ()  # what else the input is made of
    layer: str | None = None
    reason: str = ""

    def at(self, layer: str | None) -> "Failure":
        return replace(self, layer=layer)

    def because(self, reason: str) -> "Failure":
        return replace(self, reason=reason)

    def described(self) -> dict[str, Any]:
        return self.case.described() | dict(self.more) | self.difference.described()
