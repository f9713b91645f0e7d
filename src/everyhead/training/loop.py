"""The training loop: steps, evaluations, checkpoints; stops at a step, a signal, or on bad steps.

The loop computes and tells; it neither prints nor knows what a folder of a model looks like. The
caller hands it a `save` for the best weights, a `score` for validation, and a listener to tell.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from everyhead.data.batching import Batch
from everyhead.errors import UserError
from everyhead.models.transformer import Transformer
from everyhead.training import metrics, schedules
from everyhead.training.checkpoints import (
    complete_checkpoints,
    load_checkpoint,
    random_states,
    recover,
    restore_random_states,
    save_checkpoint,
)
from everyhead.training.listener import Listener, Silent
from everyhead.training.listener import State as State
from everyhead.training.optimizers import make_optimizer, set_rate
from everyhead.training.precision import resolve_precision
from everyhead.training.sections import TrainRecipe
from everyhead.training.signals import Interrupted as Interrupted
from everyhead.training.signals import stop_requests
from everyhead.training.step import StepReport, evaluate_loss, train_step
from everyhead.training.stream import BatchStream, Position

Scores = dict[str, float | str]


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
        self.state = State(facts=self._facts())
        self._saved: int | None = None  # the step of the checkpoint on disk
        self._hidden = torch.compile(model.real_hidden) if recipe.compile else None

    def resume(self) -> None:
        """Go back to the highest checkpoint, and cut metrics.jsonl back to it.

        A run that was stopped before its first checkpoint begins again at its first step, which
        gives the same.

        Raises:
            UserError: it is broken, or does not fit the recipe or the training pairs.
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
        report = self._train(self.optimizer, [self.stream.take() for _ in range(r.accumulate)])
        s.step, s.position = s.step + 1, list(self.stream.position)
        if report.finite:
            s.smoothed, s.nll = s.smoothed + report.smoothed, s.nll + report.nll
            s.since, s.n_tokens = s.since + report.n_tokens, s.n_tokens + report.n_tokens
            s.bad_in_a_row = 0
            self.listener.stepped(s, report, rate)
        else:
            self._skip(report)

    def _train(self, optimizer: torch.optim.Optimizer, batches: list[Batch]) -> StepReport:
        return train_step(
            self.model,
            optimizer,
            batches,
            smoothing=self.recipe.label_smoothing,
            limit=self.recipe.clip or None,
            precision=self.precision,
            hidden=self._hidden,
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
        saved = complete_checkpoints(self.run)
        if saved:
            return f"The last good weights stand in {saved[-1]}."
        return "Nothing had been saved yet."

    def _after_step(self) -> None:
        s, r = self.state, self.recipe
        last = s.step == r.max_steps
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
            self.model.eval()
            row |= self.score(self.model)
            self.model.train()
        good = float(row["bleu"]) if self.recipe.best == "bleu" and "bleu" in row else -loss
        better = math.isfinite(good) and (s.best is None or good >= s.best)  # of equals the later
        if better or (s.best_step is None and not self._remaining()):  # or else all there is
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
                f"The training pairs or their batches are not those that {self.run} began with: "
                "put the files and the recipe back as they were, or start again with --overwrite."
            )
        if self.recipe.precision == "auto":  # of the machine that it began on
            self.precision = facts["precision"]
        self.state, self._saved = state, state.step
        self.stream.position = Position(*state.position)

    def _facts(self) -> dict[str, Any]:
        return {
            "precision": self.precision,
            "threads": torch.get_num_threads(),
            "data": self.stream.fingerprint,
        }

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
