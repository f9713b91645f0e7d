"""What the trainer keeps count of, and who is told of it."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, Self

from everyhead.errors import UserError
from everyhead.training.step import StepReport


@dataclass
class State:
    """What a checkpoint keeps beside tensors: counts, sums since the last row, the best score."""

    step: int = 0
    position: list[int] = field(default_factory=lambda: [0, 0])
    n_tokens: int = 0
    # Since the last row, by criterion: what was trained on, −log p, and their divisor.
    sums: dict[str, list[float]] = field(default_factory=dict)
    skipped: int = 0
    bad_in_a_row: int = 0
    best: float | None = None
    best_step: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, values: dict[str, Any], run: Path) -> Self:
        """From a checkpoint's state.json.

        Raises:
            UserError: it has other keys.
        """
        wrong = values.keys() ^ {each.name for each in fields(cls)}
        if wrong:
            raise UserError(
                f"The checkpoint in {run} is of another version of everyhead (its state differs in "
                f"{', '.join(sorted(wrong))}): go on with that version, or start again with "
                "--overwrite."
            )
        return cls(**values)

    def is_better(self, score: float, metric: str) -> bool:
        """Is the score, the higher the better, at least the best so far? Of equals the later is.

        By another metric than before the comparison begins anew.
        """
        if self.facts.get("best", metric) != metric:
            self.best = None
        self.facts["best"] = metric
        return math.isfinite(score) and (self.best is None or score >= self.best)


class Listener(Protocol):
    """Told of what happens; `Silent` does nothing."""

    def estimated(self, seconds: float, state: State) -> None: ...
    def stepped(self, state: State, report: StepReport, rate: float) -> None: ...
    def logged(self, row: dict[str, Any]) -> None: ...
    def skipped(self, state: State, report: StepReport) -> None: ...
    def saved(self, folder: Path) -> None: ...


class Silent:
    """A listener for a library's use."""

    def estimated(self, seconds: float, state: State) -> None: ...
    def stepped(self, state: State, report: StepReport, rate: float) -> None: ...
    def logged(self, row: dict[str, Any]) -> None: ...
    def skipped(self, state: State, report: StepReport) -> None: ...
    def saved(self, folder: Path) -> None: ...
