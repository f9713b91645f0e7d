"""What training shows: a progress bar on a terminal, plain lines in a log."""

import re
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from everyhead.training.listener import State
from everyhead.training.step import StepReport

RECENT = 50  # steps that the shown speed is the mean of
# How a metric is written; others as a number of three digits after the point.
NAMES = {"bleu": "BLEU", "chrf": "chrF", "f1": "F1", "bits_per_byte": "bits per byte"}
FORMATS = {"perplexity": ".2f", "bleu": ".1f", "chrf": ".1f"}
# Metrics with such a word in their name are shares of 1, shown of 100.
SHARES = re.compile(r"accuracy|\bf1|_f1|exact|majority|precision|recall|chance|only")


def named(metric: str) -> str:
    """A metric's name for people."""
    return NAMES.get(metric, metric.replace("_", " "))


def shown(metric: str, value: float | int) -> str:
    """Its value for people: "7.31", "91.2 %", "11,395"."""
    if isinstance(value, int):
        return f"{value:,}"
    if SHARES.search(metric):
        return f"{100 * value:.1f} %"
    return f"{value:{FORMATS.get(metric, '.3f')}}"


def duration(seconds: float) -> str:
    """3,725 s → "1 h 02 min"; 95 s → "1 min 35 s"."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


class Mark(NamedTuple):
    """A moment of the training."""

    seconds: float
    step: int
    n_tokens: int


class LastingConsole(Console):
    """One whose reader may go away: training goes on unheard."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class TrainingDisplay:
    """A listener of the trainer's that writes to stderr."""

    def __init__(self, max_steps: int, *, unit: str = "tokens") -> None:
        self.console = LastingConsole(file=sys.stderr)
        self.max_steps, self.unit = max_steps, unit.rpartition(" ")[2]
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self._marks: deque[Mark] = deque(maxlen=RECENT + 1)

    def say(self, text: str) -> None:
        """One plain line, above the bar if there is one."""
        try:
            self.console.print(text, markup=False, highlight=False, soft_wrap=True)
        except OSError:  # a full disk under the log is no reason to lose the training
            self.console.quiet = True

    def estimated(self, seconds: float, state: State) -> None:
        self.say(
            f"{self.max_steps - state.step:,} steps to go, about {duration(seconds)} "
            "(evaluations not counted)"
        )
        self._start(state.step, state.n_tokens)
        if self.console.is_terminal:
            columns = (
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("", total=self.max_steps, completed=state.step)
            self.bar.start()

    def stepped(self, state: State, report: StepReport, rate: float) -> None:
        self._marks.append(Mark(time.perf_counter(), state.step, state.n_tokens))
        if self.bar is not None and self.task is not None:
            speed = f"{self._speeds()[1]:,.0f} {self.unit}/s"
            text = f"loss {report.loss:.3f}  rate {rate:.1e}  {speed}"
            self.bar.update(self.task, completed=state.step, description=text)

    def logged(self, row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            if self.bar is None:
                self.say(self._train_line(row))
            return
        parts = [
            f"{named(name)} {shown(name, value)}"
            for name, value in row.items()
            if name not in ("step", "tokens") and isinstance(value, int | float)
        ]
        self.say(f"step {row['step']:>6,}  validation  {'  '.join(parts)}")
        self._start(row["step"], row["tokens"])  # the speed is that of the steps alone

    def skipped(self, state: State, report: StepReport) -> None:
        self.say(
            f"step {state.step:,} skipped: loss {report.smoothed} or gradient norm {report.norm} "
            f"is not finite ({state.skipped} so far)"
        )

    def saved(self, folder: Path) -> None: ...

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _start(self, step: int, n_tokens: int) -> None:
        self._marks.clear()
        self._marks.append(Mark(time.perf_counter(), step, n_tokens))

    def _speeds(self) -> tuple[float, float]:
        """Steps and target tokens (or pictures, questions …) a second of late."""
        if not self._marks:  # no step was trained
            return 0.0, 0.0
        seconds, steps, n_tokens = (
            last - first for first, last in zip(self._marks[0], self._marks[-1], strict=True)
        )
        return (steps / seconds, n_tokens / seconds) if seconds > 0 else (0.0, 0.0)

    def _train_line(self, row: dict[str, Any]) -> str:
        steps, tokens = self._speeds()
        left = (self.max_steps - row["step"]) / steps if steps else 0.0
        return (
            f"step {row['step']:>6,}/{self.max_steps:,}  loss {row['loss']:.3f}  "
            f"rate {row['lr']:.1e}  {tokens:,.0f} {self.unit}/s"
            f"{f'  {duration(left)} left' if left else ''}"
        )
