"""The training loop: steps, evaluations, checkpoints; stops at a step, at a signal, or on bad steps.

The loop computes and tells; it neither prints nor knows what a folder of a model looks like. The
caller hands it a `save` for the best weights, a `score` for validation, and a listener to tell.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from everyhead.data.batching import Batch
from everyhead.errors import UserError
from everyhead.models.transformer import Transformer
from everyhead.training import metrics, schedules
from everyhead.training.checkpoints import load_checkpoint, random_states, restore_random_states
from everyhead.training.checkpoints import save_checkpoint as write_checkpoint
from everyhead.training.optimizers import make_optimizer, set_rate
from everyhead.training.precision import resolve_precision
from everyhead.training.recipe import TrainRecipe
from everyhead.training.step import StepReport, evaluate_loss, train_step
from everyhead.training.stream import BatchStream, Position

Scores = dict[str, float | str]


class Listener(Protocol):
    """Told of what happens; `Silent` does nothing."""

    def estimated(self, seconds: float, state: "State") -> None: ...
    def stepped(self, state: "State", report: StepReport, rate: float) -> None: ...
    def logged(self, row: dict[str, Any]) -> None: ...
    def skipped(self, state: "State", report: StepReport) -> None: ...
    def saved(self, folder: Path) -> None: ...


class Silent:
    """A listener for a library's use."""

    def estimated(self, seconds: float, state: "State") -> None: ...
    def stepped(self, state: "State", report: StepReport, rate: float) -> None: ...
    def logged(self, row: dict[str, Any]) -> None: ...
    def skipped(self, state: "State", report: StepReport) -> None: ...
    def saved(self, folder: Path) -> None: ...


@dataclass
class State:
    """What a checkpoint keeps beside tensors: counts, sums since the last row, the best score."""

    step: int = 0
    position: list[int] = field(default_factory=lambda: [0, 0])
    n_tokens: int = 0
    smoothed: float = 0.0
    nll: float = 0.0
    since: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0
    best: float | None = None
    best_step: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Interrupted(Exception):
    """A signal asked to stop; everything is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.signal_number, self.step = signal_number, step


class Trainer:
    """Trains one model on one stream of batches inside one run folder."""

    def __init__(
        self,
        model: Transformer,
        stream: BatchStream,
        *,
        recipe: TrainRecipe,
        run: Path,
        validation: list[Batch],
        save: Callable[[Transformer], None],
        score: Callable[[Transformer], Scores] | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.model, self.stream, self.recipe, self.run = model, stream, recipe, run
        self.validation, self.save, self.score = validation, save, score
        self.listener = listener or Silent()
        self.device = next(model.parameters()).device
        self.precision = resolve_precision(recipe.precision, self.device)
        self.optimizer = make_optimizer(
            model,
            recipe.optimizer,
            betas=recipe.betas,
            eps=recipe.eps,
            weight_decay=recipe.weight_decay,
        )
        self.state = State(facts={"precision": self.precision, "threads": torch.get_num_threads()})
        self._hidden = torch.compile(model.real_hidden) if recipe.compile else None

    def resume(self) -> None:
        """Go back to the highest checkpoint, and cut metrics.jsonl back to it.

        Raises:
            UserError: there is none, or it does not fit.
        """
        self.state = State(**load_checkpoint(self.run, self.model, self.optimizer))
        self.stream.position = Position(*self.state.position)
        metrics.cut_back(self.run, self.state.step)

    def fit(self) -> State:
        """Train to the recipe's last step.

        Raises:
            Interrupted: after SIGINT or SIGTERM, with everything saved.
            UserError: too many steps in a row that were not finite.
        """
        self.model.train()
        if self.state.step < self.recipe.max_steps:
            self.listener.estimated(self._seconds_per_step() * self._remaining(), self.state)
        with _signals() as asked:
            while self.state.step < self.recipe.max_steps:
                self._step()
                self._after_step()
                if asked:
                    self._checkpoint()
                    raise Interrupted(asked[0], self.state.step)
        return self.state

    def rate(self, step: int) -> float:
        """The recipe's learning rate at this step."""
        r = self.recipe
        if r.schedule == "cosine":
            return schedules.cosine(
                step, peak=r.peak, warmup=r.warmup, total=r.max_steps, low=r.low
            )
        return schedules.inverse_square_root(
            step, d_model=self.model.config.d_model, warmup=r.warmup, factor=r.factor
        )

    def _step(self) -> None:
        s, r = self.state, self.recipe
        rate = self.rate(s.step + 1)
        set_rate(self.optimizer, rate)
        batches = [self.stream.take() for _ in range(r.accumulate)]
        report = train_step(
            self.model,
            self.optimizer,
            batches,
            smoothing=r.label_smoothing,
            limit=r.clip,
            precision=self.precision,
            hidden=self._hidden,
        )
        s.step, s.position = s.step + 1, list(self.stream.position)
        if report.finite:
            s.smoothed, s.nll = s.smoothed + report.smoothed, s.nll + report.nll
            s.since, s.n_tokens = s.since + report.n_tokens, s.n_tokens + report.n_tokens
            s.bad_in_a_row = 0
            self.listener.stepped(s, report, rate)
        else:
            self._skip(report)

    def _skip(self, report: StepReport) -> None:
        s = self.state
        s.skipped, s.bad_in_a_row = s.skipped + 1, s.bad_in_a_row + 1
        self.listener.skipped(s, report)
        if s.bad_in_a_row >= self.recipe.max_bad_steps:
            raise UserError(
                f"Training stopped at step {s.step}: {s.bad_in_a_row} steps in a row had a loss or "
                f"gradient that is not finite. The last good weights stand in {self.run}; lower "
                "train.peak, set train.precision=\"fp32\", or look for odd lines in the data."
            )

    def _after_step(self) -> None:
        s, r = self.state, self.recipe
        last = s.step == r.max_steps
        if s.step % r.log_every == 0 or last:
            self._log()
        if s.bad_in_a_row:
            return  # weights after a bad step are not better than those saved
        if s.step % r.evaluate_every == 0 or last:
            self._evaluate()
        if s.step % r.save_every == 0 or last:
            self._checkpoint()

    def _log(self) -> None:
        s = self.state
        if not s.since:
            return
        row = {
            "step": s.step,
            "kind": "train",
            "loss": s.smoothed / s.since,
            "nll": s.nll / s.since,
            "lr": self.rate(s.step),
            "tokens": s.n_tokens,
            "epoch": s.position[0],
            "skipped": s.skipped,
        }
        s.smoothed, s.nll, s.since = 0.0, 0.0, 0
        self._write(row)

    def _evaluate(self) -> None:
        s = self.state
        nll, n_tokens = evaluate_loss(self.model, self.validation, self.precision)
        loss = nll / max(n_tokens, 1)
        row: dict[str, Any] = {"step": s.step, "kind": "validation", "loss": loss}
        row |= {"perplexity": metrics.perplexity(nll, n_tokens), "tokens": s.n_tokens}
        if self.score is not None:
            row |= self.score(self.model)
            self.model.train()
        good = float(row["bleu"]) if self.recipe.best == "bleu" and "bleu" in row else -loss
        if s.best is None or good >= s.best:  # of equals the later
            s.best, s.best_step = good, s.step
            self.save(self.model)
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        metrics.append_row(self.run, row)
        self.listener.logged(row)

    def _checkpoint(self) -> None:
        folder = write_checkpoint(self.run, self.model, self.optimizer, asdict(self.state))
        self.listener.saved(folder)

    def _remaining(self) -> int:
        return self.recipe.max_steps - self.state.step

    def _seconds_per_step(self) -> float:
        """Time one step's forward and backward on the next batch, and forget it again."""
        states, batch = random_states(), self.stream.peek()
        start = time.perf_counter()
        nowhere = torch.optim.SGD(self.model.parameters(), lr=0.0)
        train_step(
            self.model,
            nowhere,
            [batch] * self.recipe.accumulate,
            smoothing=self.recipe.label_smoothing,
            limit=None,
            precision=self.precision,
            hidden=self._hidden,
        )
        restore_random_states(states)
        return time.perf_counter() - start


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying; a second one stops at once."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
