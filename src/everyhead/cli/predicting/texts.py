"""Predicting of texts: their class, their entities, an answer that stands in them."""

from collections.abc import Iterable
from typing import Any

from everyhead.cli.opened import Opened
from everyhead.cli.predicting import Answer, Asked, Predicting
from everyhead.generation.read_texts import answer_from, classify, tag

NONE = "-"  # no entity, no answer


def _classes(opened: Opened, asked: Asked) -> Iterable[Answer]:
    """The class; with --top the likeliest, each with its probability."""
    texts = [row[0] for row in asked.rows]
    model: Any = opened.model
    for labels in classify(model, opened.tokenizer, texts):
        best = labels[: asked.top or 1]
        told: dict[str, Any] = {
            "label": best[0].name,
            "probability": round(best[0].probability, 6),
        }
        if asked.top is None:
            yield Answer(best[0].name, told)
            continue
        told["labels"] = {x.name: round(x.probability, 6) for x in best}
        yield Answer("\t".join(f"{x.name} {x.probability:.1%}" for x in best), told)


def _entities(opened: Opened, asked: Asked) -> Iterable[Answer]:
    texts = [row[0] for row in asked.rows]
    for found in tag(opened.model, opened.tokenizer, texts):
        line = "\t".join(f"{each.kind}: {each.text}" for each in found.entities) or NONE
        told = [each._asdict() for each in found.entities]
        yield Answer(line, {"entities": told, "words": found.words, "tags": found.tags})


def _answers(opened: Opened, asked: Asked) -> Iterable[Answer]:
    from everyhead.files import read_json
    from everyhead.training.job import DATA
    from everyhead.training.jobs.answer import AnswerRecipe

    told = read_json(opened.folder / DATA) if (opened.folder / DATA).is_file() else {}
    recipe = opened.recipe
    m = recipe.model if isinstance(recipe, AnswerRecipe) else AnswerRecipe(name="").model
    spans = answer_from(
        opened.model,
        opened.tokenizer,
        [(row[0], row[1]) for row in asked.rows],
        stride=m.stride,
        longest_answer=m.longest_answer,
        threshold=m.threshold,
        may_be_none=bool(told.get("has_unanswerable", True)),  # it learnt to refuse
    )
    for span in spans:
        line = " ".join(span.text.split()) or NONE
        fields = {"answer": span.text, "start": span.start, "end": span.end}
        yield Answer(line, fields | {"margin": round(span.margin, 6)})


CLASSES = Predicting(("text",), _classes, top=True)
ENTITIES = Predicting(("text",), _entities)
ANSWERS = Predicting(("question", "text"), _answers)
