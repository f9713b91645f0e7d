"""A published body opened with the head of a task above it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from everyhead.weights.companions import open_companion
from everyhead.weights.named import located
from everyhead.weights.opening import MODEL_CONFIG, kind_for, opened, read_config
from everyhead.weights.tasks import as_task, labels_of


def load_as(
    task: str,
    place: Path | str,
    labels: Sequence[str] = (),
    *,
    changes: Mapping[str, Any] | None = None,
) -> tuple[Any, Any]:
    """The model of a folder or name under the head of a task, and its tokenizer.

    A head of the folder's own stays where it is of the same task and labels; else it starts at
    random, which a warning says.

    Args:
        task: sequence-classifier, token-classifier or span-reader.
        labels: their names in the order of the logits; none for a span-reader.
        changes: fields of the task's config that shall be other than the folder says.

    Raises:
        UserError: no such folder, or of a kind that no such head stands above.
    """
    folder = located(place)
    where = folder / MODEL_CONFIG
    own = read_config(folder)
    values = as_task(task, own, tuple(labels), where)
    same = own.get("architectures") == values["architectures"] and (
        not labels or labels_of(own, where) == tuple(labels)
    )
    tokenizer = open_companion(folder, kind_for(values, where), values)
    model: Any = opened(folder, values, dict(changes or {}) | {"family": str(values["model_type"])})
    if not same:
        with torch.no_grad():
            nn.init.normal_(model.classifier.weight, std=0.02)
            if model.classifier.bias is not None:
                model.classifier.bias.zero_()
    return model, tokenizer
