"""What the loop knows of the thing it trains: a Job, and what stands before its first step.

    loss of a step = Σ_c (Σ trained_c / Σ count_c)     c: the criteria; one, for most jobs

A criterion is a sum over one batch and the count it is divided by, so that the quotient can be
taken once over the whole step (law 6). docs/jobs.md says how to add a job.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import nn

from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.training.metrics import perplexity
from everyhead.training.objectives import TokenLoss
from everyhead.training.stream import Stream

Scores = dict[str, Any]
Loss = TokenLoss | Mapping[str, TokenLoss]
LossOf = Callable[[Any, Any, float], Loss]  # (model, batch, label smoothing)
DATA = "data.json"  # of a run: the report of its data when it began
ONLY = "loss"  # the name of a criterion that is the only one
LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte")


class AnyBatch(Protocol):
    """Tensors that belong together."""

    @property
    def n_target(self) -> int:
        """What the shown speed counts, and what the only criterion is divided by."""
        ...

    def to(self, device: torch.device | str) -> Self: ...


class Measured(NamedTuple):
    """A criterion over the validation set: Σ −log p and what to divide it by."""

    nll: float
    n: int


def one_count(batch: Any) -> dict[str, int]:
    """The counts of a batch with one criterion."""
    return {ONLY: batch.n_target}


def named(loss: Loss) -> Mapping[str, TokenLoss]:
    return {ONLY: loss} if isinstance(loss, TokenLoss) else loss


def loss_of(found: Mapping[str, Measured]) -> Scores:
    """The loss, and with several criteria the part of each."""
    parts = {name: nll / max(n, 1) for name, (nll, n) in found.items()}
    return {"loss": sum(parts.values())} | (parts if len(parts) > 1 else {})


def loss_and_perplexity(found: Mapping[str, Measured]) -> Scores:
    """Of one criterion over pieces of text."""
    (only,) = found.values()
    return loss_of(found) | {"perplexity": perplexity(*only)}


@dataclass(kw_only=True)
class Job:
    """A model, the batches it learns from, and how it is judged.

    loss: sums over one batch: one TokenLoss, or one a criterion by name. counts: what each of them
    is divided by, known before the forward pass; needed where there are several. measures: the
    validation sums → entries of metrics.jsonl, "loss" among them. score: further entries, made
    from the model in eval mode. factors: parameters whose path begins so learn at that multiple of
    the rate; frozen ones have requires_grad off. compiled: the loss with a compiled model in it.
    """

    model: nn.Module
    stream: Stream
    validation: Sequence[Any]
    loss: LossOf
    counts: Callable[[Any], Mapping[str, int]] = one_count
    measures: Callable[[Mapping[str, Measured]], Scores] = loss_and_perplexity
    score: Callable[[Any], Scores] | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    compiled: Callable[[], LossOf] | None = None


def _not_given(*_: Any) -> Any:
    raise ValueError("this job opens or saves models: hand over training.job.Tools")


class Tools(NamedTuple):
    """What training is handed of the floors beside it.

    open: a published name like "minilm", a folder or a run → (model, tokenizer), a model of its
    own at each call; `changes=` are fields of its config. save: (model, tokenizer, folder).
    open_as: (task, the name, labels, changes=) → the same under the new head of a task.
    """

    open: Callable[..., tuple[Any, Any]]
    save: Callable[[Any, Any, Path], object]
    open_as: Callable[..., tuple[Any, Any]] = _not_given


NO_TOOLS = Tools(_not_given, _not_given)


class Prepared:
    """All that stands before the first step; each job has its own. `report` becomes data.json."""

    recipe: Any
    report: dict[str, Any]
    apart = True  # rows may hold several documents, where the model keeps them apart

    def introduction(self) -> list[str]:
        """Lines that say what is learnt from, and how it is cut."""
        raise NotImplementedError

    def job(self, device: str) -> Job:
        """A model at its start, drawn from the recipe's seed or opened, and its batches.

        Called several times, it gives equal jobs that share no weights.
        """
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """What the run begins with, beside recipe.toml and data.json: the tokenizer."""
        raise NotImplementedError

    def save(self, model: Any, folder: Path) -> None:
        """Write the weights to use into the run's root."""
        raise NotImplementedError

    def evaluate(self, model: Any, split: str) -> Scores:
        """Scores on "test", "validation" or "train"; the model is in eval mode.

        Raises:
            UserError: there is no such split.
        """
        raise NotImplementedError


def learnt_labels(begun: Path | None, today: Sequence[str]) -> tuple[str, ...]:
    """The labels of the run in its order, whatever its data have become; of a new run today's.

    Raises:
        UserError: the data have a label that the run did not learn.
    """
    known = [] if begun is None else _labels_in(begun)
    if not known:
        return tuple(today)
    if new := [label for label in today if label not in known]:
        raise UserError(
            f"The data have changed since {begun} began: it did not learn the label "
            f"{', '.join(map(repr, new[:3]))}. Put the data back as they were, or train a new run."
        )
    return tuple(known)


def _labels_in(run: Path) -> list[str]:
    """Of data.json; older runs have them in config.json alone, once weights were saved."""
    told = read_json(run / DATA) if (run / DATA).is_file() else {}
    if known := told.get("labels"):
        return list(known)
    config = read_json(run / "config.json") if (run / "config.json").is_file() else {}
    names = config.get("id2label") or {}
    return [names[number] for number in sorted(names, key=int)]


class JobKind(NamedTuple):
    """A line of the table of jobs.

    recipe: its class, a subclass of sections.Recipe. prepare: (recipe, the run where it has begun
    or None, tools) → Prepared. verb: what a finished run is used with. unit: what n_target counts.
    """

    recipe: Any
    prepare: Callable[[Any, Path | None, Tools], Prepared]
    verb: str
    unit: str = "tokens"
