"""Defect: 98 % accuracy because the answer leaked into the question, and nonsense in use.

A mask laid wrongly and labels that are not shifted look like success. Random targets cannot be
predicted, so whoever predicts them has seen them: the loss must not fall below their entropy.
"""

import math

import numpy as np
import pytest

from everyhead.data.batching import Batch, EncodedPairs
from everyhead.layers import masks
from everyhead.layers.masks import Mask
from everyhead.training.losses import batch_loss
from everyhead.training.optimizers import make_optimizer, set_rate
from everyhead.training.step import evaluate_loss, train_step
from tests.training import tiny

LENGTH, CHOICES = 2, 22
ENTROPY = LENGTH * math.log(CHOICES)  # of a sentence; that it ends after two pieces is certain


def random_batch(rng: np.random.Generator, *, n: int = 64) -> Batch:
    """Targets drawn anew each time, whatever the source says."""
    source, target = rng.integers(1, CHOICES + 1, (2, n, LENGTH)).tolist()
    return tiny.batch(EncodedPairs(source, target), list(range(n)))


def unshifted(batch: Batch) -> Batch:
    return batch._replace(target_in=batch.labels)


def learned_loss(change=lambda batch: batch) -> float:
    """−log p of a new random sentence after some training on such ones."""
    model, rng = tiny.model(dropout=0.0), np.random.default_rng(0)
    optimizer = make_optimizer(model, "adam", weight_decay=0.0)
    set_rate(optimizer, 1e-2)
    for _ in range(60):
        batches = [change(random_batch(rng))]
        settings = {"loss": batch_loss, "smoothing": 0.0, "limit": 1.0, "precision": "fp32"}
        train_step(model, optimizer, batches, **settings)
    nll, _ = evaluate_loss(model, [change(random_batch(rng, n=500))], "fp32", loss=batch_loss)
    return nll / 500


def test_random_targets_are_not_predicted_better_than_by_guessing() -> None:
    assert 0.99 * ENTROPY < learned_loss() < 1.1 * ENTROPY


@pytest.mark.parametrize("leak", ["no causal rule", "labels not shifted"])
def test_this_alarm_rings_when_the_answer_leaks(leak: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if leak == "no causal rule":
        monkeypatch.setattr(masks, "causal", Mask)
        assert learned_loss() < 0.7 * ENTROPY
    else:
        assert learned_loss(unshifted) < 0.7 * ENTROPY
