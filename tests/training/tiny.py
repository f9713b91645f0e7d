"""A model of a few thousand weights and made-up sentences of ids: a step takes milliseconds."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everyhead.data.batching import Batch, BatchPlan, EncodedPairs, collate
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.training.job import Job
from everyhead.training.jobs.translate_recipe import TranslateTrainRecipe
from everyhead.training.loop import Trainer
from everyhead.training.losses import batch_loss
from everyhead.training.stream import BatchStream

SIZES = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "d_ff": 24}
CONFIG = TransformerConfig(vocab_size=24, max_len=16, dropout=0.2, **SIZES)
# Everything happens within 20 steps, and 10 of them end in the middle of an epoch.
RECIPE: dict[str, Any] = {
    "max_steps": 20,
    "batch_sentences": 4,
    "warmup": 4,
    "log_every": 3,
    "evaluate_every": 5,
    "save_every": 7,
    "precision": "fp32",
}


def pairs(n: int = 26, seed: int = 0) -> EncodedPairs:
    """Sentences of 1 to 9 ids, so that every batch is ragged."""
    rng = np.random.default_rng(seed)

    def side() -> list[list[int]]:
        return [rng.integers(1, 23, rng.integers(1, 10)).tolist() for _ in range(n)]

    return EncodedPairs(side(), side())


def model(seed: int = 0, **changes: Any) -> Transformer:
    torch.manual_seed(seed)
    return Transformer(CONFIG.model_copy(update=changes))


def batch(ids: EncodedPairs, rows: list[int]) -> Batch:
    return collate(ids, rows, pad_id=CONFIG.pad_id)


def batches(ids: EncodedPairs, size: int) -> list[Batch]:
    return [
        batch(ids, list(range(start, min(start + size, ids.size))))
        for start in range(0, ids.size, size)
    ]


def stream(ids: EncodedPairs | None = None, **plan: Any) -> BatchStream:
    ids = pairs() if ids is None else ids
    plan = {"batch_sentences": 4, "seed": 1} | plan
    whole = BatchPlan(ids.source_lengths, ids.target_lengths, **plan)
    return BatchStream(ids, whole, config=CONFIG)


def trainer(
    run: Path,
    *,
    ids: EncodedPairs | None = None,
    save: Callable[[Transformer], None] = lambda model: None,
    dropout: float = 0.2,
    **recipe: Any,
) -> Trainer:
    """A new trainer as a fresh process would make it: same seed, same start."""
    run.mkdir(parents=True, exist_ok=True)
    score, listener = recipe.pop("score", None), recipe.pop("listener", None)
    settings = TranslateTrainRecipe.model_validate(RECIPE | recipe)
    made = model(settings.seed, dropout=dropout)
    job = Job(
        model=made,
        stream=stream(ids, batch_sentences=settings.batch_sentences),
        validation=batches(pairs(5, seed=9), 3),
        loss=batch_loss,
        score=score,
        compiled=lambda: partial(batch_loss, hidden=torch.compile(made.real_hidden)),
    )
    return Trainer(job, recipe=settings, run=run, save=save, listener=listener)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


class Told:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.estimates: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.reports: list[Any] = []
        self.skips: list[int] = []
        self.folders: list[Path] = []

    def estimated(self, seconds: float, state: Any) -> None:
        self.estimates.append(seconds)

    def stepped(self, state: Any, report: Any, rate: float) -> None:
        self.reports.append(report)

    def logged(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def skipped(self, state: Any, report: Any) -> None:
        self.skips.append(state.step)

    def saved(self, folder: Path) -> None:
        self.folders.append(folder)
