"""What training shows: a progress bar on a terminal, plain lines in a log."""

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from everyhead.training.listener import State
from everyhead.training.step import StepReport


def duration(seconds: float) -> str:
    """3,725 s → "1 h 02 min"; 95 s → "1 min 35 s"."""
    whole = max(0, round(seconds))
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


class TrainingDisplay:
    """A listener of the trainer's that writes to stderr."""

    def __init__(self, max_steps: int) -> None:
        self.console = Console(file=sys.stderr)
        self.max_steps = max_steps
        self.bar: Progress | None = None
        self.task: TaskID | None = None
        self._since = (time.perf_counter(), 0, 0)
        self._speed = 0.0

    def say(self, text: str) -> None:
        """One plain line, above the bar if there is one."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def estimated(self, seconds: float, state: State) -> None:
        self.say(
            f"{self.max_steps - state.step:,} steps to go, about {duration(seconds)} "
            "(evaluations not counted)"
        )
        self._since = (time.perf_counter(), state.n_tokens, state.step)
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
        now = time.perf_counter()
        if now - self._since[0] > 1:
            self._speed = (state.n_tokens - self._since[1]) / (now - self._since[0])
            if self.bar is None and state.step % 10:
                return
            self._since = (now, state.n_tokens, state.step)
        if self.bar is not None and self.task is not None:
            loss = report.smoothed / max(report.n_tokens, 1)
            text = f"loss {loss:.3f}  rate {rate:.1e}  {self._speed:,.0f} tokens/s"
            self.bar.update(self.task, completed=state.step, description=text)

    def logged(self, row: dict[str, Any]) -> None:
        if row["kind"] == "train":
            if self.bar is None:
                self.say(self._train_line(row))
            return
        parts = [f"loss {row['loss']:.3f}", f"perplexity {row['perplexity']:.2f}"]
        parts += [
            f"{name} {row[key]:.1f}"
            for key, name in (("bleu", "BLEU"), ("chrf", "chrF"))
            if key in row
        ]
        self.say(f"step {row['step']:>6,}  validation  {'  '.join(parts)}")

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

    def _train_line(self, row: dict[str, Any]) -> str:
        left = ""
        seconds, steps = time.perf_counter() - self._since[0], row["step"] - self._since[2]
        if steps > 0 and seconds > 0:
            left = f"  {duration((self.max_steps - row['step']) * seconds / steps)} left"
        return (
            f"step {row['step']:>6,}/{self.max_steps:,}  loss {row['loss']:.3f}  "
            f"rate {row['lr']:.1e}  {self._speed:,.0f} tokens/s{left}"
        )
