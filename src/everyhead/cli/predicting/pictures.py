"""What models of pictures say: a class, which of several texts, or the answer to a question."""

from collections.abc import Iterator, Sequence
from typing import Any

from everyhead.cli.opened import Opened
from everyhead.cli.predicting import Answer, Asked, Predicting
from everyhead.errors import UserError

BATCH = 32


def classes(opened: Opened, asked: Asked) -> Iterator[Answer]:
    """The likeliest class of each picture, or the likeliest so many."""
    from everyhead.generation.answer import class_probabilities

    model, preparation = _parts(opened)
    for rows in _batches(asked.rows, preparation):
        pixels = _pixels(preparation, [row[0] for row in rows])
        for shares in class_probabilities(model, pixels):
            yield _ranked(model.config.labels, shares.tolist(), asked.top)


def texts(opened: Opened, asked: Asked) -> Iterator[Answer]:
    """Which of the labels each picture matches."""
    from everyhead.generation.answer import text_probabilities

    model, companion = _parts(opened)
    for rows in _batches(asked.rows, companion.pictures):
        pixels = _pixels(companion.pictures, [row[0] for row in rows])
        for shares in text_probabilities(model, companion, pixels, asked.labels):
            yield _ranked(asked.labels, shares.tolist(), asked.top or len(asked.labels))


def answers(opened: Opened, asked: Asked) -> Iterator[Answer]:
    """The answer to each question about its picture."""
    from everyhead.generation.answer import answer

    model, companion = _parts(opened)
    recipe: Any = opened.recipe
    blind = recipe is not None and recipe.data.text_only
    for rows in _batches(asked.rows, companion.pictures):
        pixels = None if blind else _pixels(companion.pictures, [row[0] for row in rows])
        for found in answer(model, companion, pixels, [row[1] for row in rows]):
            fields = {"answer": found.text, "probability": round(found.probability, 6)}
            yield Answer(found.text, fields)


def _parts(opened: Opened) -> tuple[Any, Any]:
    """The model and what was opened with it."""
    return opened.model, opened.tokenizer


def _ranked(names: Sequence[str], shares: Sequence[float], top: int | None) -> Answer:
    """The likeliest class alone, or the likeliest `top` with what each has."""
    order = sorted(range(len(shares)), key=lambda i: -shares[i])
    best = [(names[i], shares[i]) for i in order[: top or 1]]
    fields: dict[str, Any] = {"label": best[0][0], "probability": round(best[0][1], 6)}
    if top is None:
        return Answer(best[0][0], fields)
    fields["labels"] = {name: round(share, 6) for name, share in best}
    return Answer("\t".join(f"{name} {share:.1%}" for name, share in best), fields)


def _batches(
    rows: Sequence[tuple[str, ...]], preparation: Any
) -> Iterator[Sequence[tuple[str, ...]]]:
    """Pictures that come out in sides of their own go one by one."""
    size = BATCH if getattr(preparation, "one_shape", True) else 1
    for i in range(0, len(rows), size):
        yield rows[i : i + size]


def _pixels(preparation: Any, paths: Sequence[str]) -> Any:
    """Raises UserError: a picture that cannot be read, or a run without its preparation."""
    import numpy as np
    import torch

    if preparation is None:
        raise UserError(
            "The run has no preprocessor_config.json, which says how pictures are prepared: put "
            "it back into the run's folder."
        )
    return torch.from_numpy(np.stack([preparation.read(path) for path in paths]))


CLASSES = Predicting(("picture",), classes, top=True)
TEXTS = Predicting(("picture",), texts, labels=True, top=True)
ANSWERS = Predicting(("picture", "question"), answers)
