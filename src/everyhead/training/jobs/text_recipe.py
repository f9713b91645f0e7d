"""What the recipes of reading jobs share: a published body, its texts, and how it is tuned."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from everyhead.data.batching import BatchPlan
from everyhead.data.text_batches import TextBatch, TextRows
from everyhead.training.optimizers import OPTIMIZERS
from everyhead.training.sections import FineTuneRecipe, Section, Share
from everyhead.training.stream import Stream, fingerprint_of


class StartRecipe(Section):
    """The body to go on from: a name such as minilm, a folder, or a run."""

    start: str = "minilm"
    scratch: bool = False  # of the start its sizes and tokenizer alone: all weights at random
    max_len: int = Field(default=128, ge=8)  # tokens; longer texts are cut
    dropout: Share | None = None  # before the head; by default the body's own


class ReadTrainRecipe(FineTuneRecipe):
    max_steps: int = Field(default=500, ge=1)
    optimizer: Literal[OPTIMIZERS] = "adamw"  # type: ignore[valid-type]
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    peak: float = Field(default=1e-4, gt=0)
    warmup: int = Field(default=50, ge=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)


def stream_of(rows: TextRows, train: FineTuneRecipe) -> Stream:
    """The rows in batches, whose order follows from the seed and the epoch."""
    by_rows = train.batch_tokens is None
    plan = rows.plan(
        batch_tokens=train.batch_tokens,
        batch_sentences=(train.batch_sentences or 32) if by_rows else None,
        seed=train.seed,
        sort=True if train.sort is None else train.sort,
    )

    def collate(numbers: list[int], epoch: int) -> TextBatch:
        return rows.batch(numbers)

    return Stream(plan.epoch, collate, fingerprint=fingerprint_of(_rule(plan), rows.content))


def _rule(plan: BatchPlan) -> tuple[Any, ...]:
    return plan.batch_tokens, plan.batch_sentences, plan.seed, plan.sort


def paths(names: list[str]) -> list[Path]:
    return [Path(name) for name in names]


def longest_of(model: StartRecipe, tokenizer: Any, body: Any = None) -> int:
    """Tokens of the longest text: the recipe's, or what the body takes where that is less.

    body: the model; not needed for a run, whose tokenizer says what was taken when it began.
    """
    told = [tokenizer.config.get("model_max_length"), body and body.config.max_len]
    return int(min([model.max_len, *(n for n in told if isinstance(n, int | float))]))


def begun_from(open_model: Callable[[], tuple[Any, Any]], recipe: Any) -> Any:
    """The model of a run at its start, opened once more: what is to be said was said before."""
    torch.manual_seed(recipe.train.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, _ = open_model()
    if not recipe.model.scratch:
        return model
    torch.manual_seed(recipe.train.seed)
    return type(model)(model.config)
