"""The training loop: steps, evaluations, checkpoints; stops at a step, a signal, or on bad steps.

The loop computes and tells; it knows neither what it trains (a Job says that), nor what a folder
of a model looks like: the caller hands it a `save` for the best weights, and a listener to tell.
"""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from everyhead.errors import UserError
from everyhead.layers.compiled import library
from everyhead.training import metrics
from everyhead.training.checkpoints import (
    complete_checkpoints,
    load_checkpoint,
    random_states,
    recover,
    restore_random_states,
    save_checkpoint,
)
from everyhead.training.job import LOWER_IS_BETTER, AnyBatch, Job
from everyhead.training.job import Scores as Scores
from everyhead.training.listener import Listener, Silent
from everyhead.training.listener import State as State
from everyhead.training.optimizers import make_optimizer, set_rate
from everyhead.training.precision import resolve_precision
from everyhead.training.schedules import rate_at
from everyhead.training.sections import TrainRecipe
from everyhead.training.signals import Interrupted as Interrupted
from everyhead.training.signals import stop_requests
from everyhead.training.step import StepReport, evaluate_parts, train_step
from everyhead.training.stream import Position


class Trainer:
    """Trains one job inside one run folder; UserError if it shall be compiled and cannot be."""

    def __init__(
        self,
        job: Job,
        *,
        recipe: TrainRecipe,
        run: Path,
        save: Callable[[Any], None],
        listener: Listener | None = None,
    ) -> None:
        self.job, self.model, self.stream = job, job.model, job.stream
        self.recipe, self.run, self.save = recipe, run, save
        self.validation = list(job.validation)
        self.listener = listener or Silent()
        self.device = next(job.model.parameters()).device
        self.precision = resolve_precision(recipe.precision, self.device)
        settings = recipe.model_dump(include={"betas", "eps", "weight_decay"})
        self.optimizer = make_optimizer(
            job.model, recipe.optimizer, factors=job.factors, **settings
        )
        self.state = State(facts=self._facts())
        self._saved: int | None = None  # the step of the checkpoint on disk
        self._loss = job.loss
        if recipe.compile:
            if job.compiled is None:
                raise UserError("This job cannot be compiled: leave train.compile out.")
            self._loss = job.compiled()

    def resume(self) -> None:
        """Go back to the highest checkpoint, and cut metrics.jsonl back to it.

        A run that was stopped before its first checkpoint begins again at its first step, which
        gives the same.

        Raises:
            UserError: it is broken, or does not fit the recipe or the training data.
        """
        if recover(self.run):
            self._restore(load_checkpoint(self.run, self.model, self.optimizer))
        metrics.cut_back(self.run, self.state.step)

    def fit(self) -> State:
        """Train to the recipe's last step.

        Raises:
            Interrupted: after SIGINT or SIGTERM, with everything saved.
            UserError: too many steps in a row that were not finite.
        """
        self.model.train()
        with stop_requests() as asked:
            if self._remaining() > 0:
                self.listener.estimated(self._seconds_per_step() * self._remaining(), self.state)
            while self._remaining() > 0:
                self._step()
                self._after_step()
                if asked:
                    self._checkpoint()
                    raise Interrupted(asked[0], self.state.step)
            if self.state.best_step is None:  # this step was not to be the last when it was trained
                self._saved = None
                self._after_step()
        return self.state

    def rate(self, step: int) -> float:
        """The recipe's learning rate at this step."""
        config: Any = self.model.config
        return rate_at(step, self.recipe, config.d_model)

    def _step(self) -> None:
        s, r = self.state, self.recipe
        rate = self.rate(s.step + 1)
        set_rate(self.optimizer, rate)
        report = self._train(self.optimizer, [self.stream.take() for _ in range(r.accumulate)])
        s.step, s.position = s.step + 1, list(self.stream.position)
        if report.finite:
            for name, part in report.parts.items():
                before = s.sums.get(name, [0.0, 0.0, 0])
                s.sums[name] = [x + more for x, more in zip(before, part, strict=True)]
            s.n_tokens, s.bad_in_a_row = s.n_tokens + report.n_tokens, 0
            self.listener.stepped(s, report, rate)
        else:
            self._skip(report)

    def _train(self, optimizer: torch.optim.Optimizer, batches: list[AnyBatch]) -> StepReport:
        return train_step(
            self.model,
            optimizer,
            batches,
            loss=self._loss,
            smoothing=self.recipe.label_smoothing,
            limit=self.recipe.clip or None,
            precision=self.precision,
            counts=self.job.counts,
        )

    def _skip(self, report: StepReport) -> None:
        s = self.state
        s.skipped, s.bad_in_a_row = s.skipped + 1, s.bad_in_a_row + 1
        self.listener.skipped(s, report)
        if s.bad_in_a_row >= self.recipe.max_bad_steps:
            raise UserError(
                f"Training stopped at step {s.step}: {s.bad_in_a_row} steps in a row had a loss or "
                f"gradient that is not finite. {self._standing()} Lower train.peak, set "
                'train.precision="fp32", or look for odd lines in the data.'
            )

    def _standing(self) -> str:
        s = self.state
        if s.best_step is not None:
            return f"The last good weights, of step {s.best_step}, stand in {self.run}."
        for saved in reversed(complete_checkpoints(self.run)):
            return f"The last good weights stand in {saved}."
        return "Nothing had been saved yet."

    def _after_step(self) -> None:
        s, r = self.state, self.recipe
        last = s.step >= r.max_steps
        if s.step % r.log_every == 0 or last:
            self._log()
        if s.bad_in_a_row and not last:
            return  # what is saved is better than weights that may have gone wrong
        if s.step % r.evaluate_every == 0 or last:
            self._evaluate()
        if s.step % r.save_every == 0 or last:
            self._checkpoint()

    def _log(self) -> None:
        s = self.state
        if not s.sums:
            return
        parts = {name: nll / max(n, 1) for name, (_, nll, n) in s.sums.items()}
        row = {
            "step": s.step,
            "kind": "train",
            "loss": sum(smoothed / max(n, 1) for smoothed, _, n in s.sums.values()),
            "nll": sum(parts.values()),
            **(parts if len(parts) > 1 else {}),
            "lr": self.rate(s.step),
            "tokens": s.n_tokens,
            "epoch": s.position[0],
            "skipped": s.skipped,
        }
        s.sums = {}
        self._write(row)

    def _evaluate(self) -> None:
        s = self.state
        found = evaluate_parts(
            self.model, self.validation, loss=self.job.loss, precision=self.precision
        )
        row: dict[str, Any] = {"step": s.step, "kind": "validation"}
        row |= self.job.measures(found) | {"tokens": s.n_tokens}
        if self.job.score is not None:
            self.model.eval()
            row |= self.job.score(self.model)
            self.model.train()
        best = self.recipe.best if self.recipe.best in row else "loss"
        good = float(row[best]) * (-1 if best in LOWER_IS_BETTER else 1)
        better = s.is_better(good, best)
        if better or (s.best_step is None and self._remaining() <= 0):  # or else all there is
            s.best, s.best_step = good if better else None, s.step
            self.save(self.model)
        self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        metrics.append_row(self.run, row)
        self.listener.logged(row)

    def _checkpoint(self) -> None:
        if self._saved != self.state.step:
            folder = save_checkpoint(self.run, self.model, self.optimizer, asdict(self.state))
            self._saved = self.state.step
            self.listener.saved(folder)

    def _restore(self, values: dict[str, Any]) -> None:
        state = State.read(values, self.run)
        facts = self._facts() | state.facts
        if facts["data"] != self.stream.fingerprint:
            raise UserError(
                f"The training data or their batches are not those that {self.run} began with: "
                "put the files and the recipe back as they were, or start again with --overwrite."
            )
        if self.recipe.precision == "auto":  # of the machine that it began on
            self.precision = facts["precision"]
        self.state, self._saved = state, state.step
        self.stream.position = Position(*state.position)

    def _facts(self) -> dict[str, Any]:
        machine = {"threads": torch.get_num_threads(), "compiled": library() is not None}
        return machine | {"precision": self.precision, "data": self.stream.fingerprint}

    def _remaining(self) -> int:
        return self.recipe.max_steps - self.state.step

    def _seconds_per_step(self) -> float:
        """Time one step's forward and backward on the next batch, and forget it again."""
        states, batch = random_states(), self.stream.peek()
        nowhere = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # steps nothing
        seconds = 0.0
        for _ in range(2):  # the first one also compiles, allocates and chooses kernels
            start = time.perf_counter()
            self._train(nowhere, [batch] * self.recipe.accumulate)
            self.model.zero_grad(set_to_none=True)
            seconds = time.perf_counter() - start
        restore_random_states(states)
        return seconds
