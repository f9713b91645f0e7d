"""Task heads in Hugging Face's folders: …ForSequenceClassification and its kin, over any body.

config.json    id2label, label2id, problem_type, classifier_dropout beside the body's entries
weights        the body's with its prefix, and classifier.*, score.weight or qa_outputs.*
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel
from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.tasks import (
    SequenceClassifierConfig,
    SpanReaderConfig,
    TokenClassifierConfig,
)
from everyhead.weights import bert, gpt2, llama, longformer
from everyhead.weights.config_table import validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.state import Slot

BODY, HEAD = "body.", "classifier."
CONFIGS: dict[str, type[BaseModel]] = {
    "sequence-classifier": SequenceClassifierConfig,
    "token-classifier": TokenClassifierConfig,
    "span-reader": SpanReaderConfig,
}
# Of each task: body → the class of Hugging Face's and what it calls the map above the body.
CLASSES: dict[str, dict[str, tuple[str, str]]] = {
    "sequence-classifier": {
        "bert": ("BertForSequenceClassification", "classifier."),
        "gpt2": ("GPT2ForSequenceClassification", "score."),
        "llama": ("LlamaForSequenceClassification", "score."),
        "longformer": ("LongformerForSequenceClassification", "classifier.out_proj."),
    },
    "token-classifier": {
        "bert": ("BertForTokenClassification", "classifier."),
        "longformer": ("LongformerForTokenClassification", "classifier."),
    },
    "span-reader": {"bert": ("BertForQuestionAnswering", "qa_outputs.")},
}
HEADS = ("classifier.", "score.", "qa_outputs.")  # under any task's name


class Below(NamedTuple):
    """How a body lies in the file: its kind, the fields it has under a head, its slots there."""

    kind: Kind
    changes: Mapping[str, Any]
    slots: Callable[[Any], list[Slot]]
    tidy: Callable[[dict[str, Tensor], Mapping[str, Any]], Tidied]
    pooling: str  # of …ForSequenceClassification
    dropout: str | None  # config.json's entry for what is dropped where there is no other


BELOW: dict[str, Below] = {
    "bert": Below(
        bert.KIND,
        {"gap_head": False, "next_sentence_head": False},
        bert.slots_in_task,
        bert.tidy_in_task,
        "pooler",
        "hidden_dropout_prob",
    ),
    "gpt2": Below(gpt2.KIND, {"tie_output": True}, gpt2.KIND.slots, gpt2.KIND.tidy, "last", None),
    "llama": Below(
        llama.KIND, {"tie_output": True}, llama.KIND.slots, llama.KIND.tidy, "last", None
    ),
    "longformer": Below(
        longformer.KIND,
        {"gap_head": False, "next_sentence_head": False},
        longformer.slots_in_task,
        longformer.tidy_in_task,
        "pooler",
        "hidden_dropout_prob",
    ),
}


def config(task: str, values: Mapping[str, Any], where: object) -> BaseModel:
    """The task's config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that everyhead cannot express; it is named.
    """
    family = str(values["model_type"])
    below = BELOW[family]
    body = below.kind.config(values, where).model_dump() | dict(below.changes)
    fields: dict[str, Any] = {"family": family, "dropout": _dropout(below, values)}
    if task == "sequence-classifier":
        fields |= {"pooling": below.pooling, "problem": problem(values)}
    if "pooler" in body:
        body["pooler"] = fields.get("pooling") == "pooler"
    if task != "span-reader":
        fields["labels"] = labels_of(values, where)
    return validated(CONFIGS[task], fields | {"body": body}, where)


def labels_of(values: Mapping[str, Any], where: object) -> tuple[str, ...]:
    """The names of the labels in the order of the logits.

    Raises:
        UserError: id2label does not number them from 0 on.
    """
    named = values.get("id2label")
    if not named:
        return tuple(f"LABEL_{i}" for i in range(int(values.get("num_labels") or 2)))
    try:
        by_number = {int(number): str(label) for number, label in named.items()}
        return tuple(by_number[i] for i in range(len(by_number)))
    except (AttributeError, KeyError, ValueError):
        raise UserError(f"{where}: id2label must number the labels 0, 1, 2 … .") from None


def problem(values: Mapping[str, Any]) -> str:
    """problem_type; where it is silent, one label is a number and several exclude each other."""
    named = values.get("problem_type")
    if named is None:
        one = len(values.get("id2label") or (1, 2)) == 1
        named = "regression" if one else "single_label_classification"
    return str(named)


def values(task: str, model: Any) -> dict[str, Any]:
    """The content of config.json."""
    c = model.config
    below = BELOW[c.family]
    found = {**below.kind.values(model.body), "architectures": [CLASSES[task][c.family][0]]}
    if below.dropout is not None:
        found["classifier_dropout"] = c.dropout
    if task != "span-reader":
        found["id2label"] = {str(i): label for i, label in enumerate(c.labels)}
        found["label2id"] = {label: i for i, label in enumerate(c.labels)}
    if task == "sequence-classifier":
        found["problem_type"] = c.problem
    return found


def why_not(task: str, c: Any) -> str | None:
    """What of this config no class of Hugging Face's says, None if nothing."""
    if c.family not in CLASSES[task]:
        return f"a {task} over {c.family}"
    below = BELOW[c.family]
    if task == "sequence-classifier" and c.pooling != below.pooling:
        return f"pooling {c.pooling!r}"
    if below.dropout is None and c.dropout:
        return "dropout before its last map"
    return None


def slots(task: str, model: Any) -> list[Slot]:
    """Where each of the model's tensors lies."""
    below, head = BELOW[model.config.family], CLASSES[task][model.config.family][1]
    inside = [
        slot._replace(ours=tuple(BODY + name for name in slot.ours))
        for slot in below.slots(model.body)
    ]
    above = [
        Slot((HEAD + name,), (head + name,)) for name, _ in model.classifier.named_parameters()
    ]
    return inside + above


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Published names → those of `slots`."""
    heads = {name: tensor for name, tensor in tensors.items() if name.startswith(HEADS)}
    rest = {name: tensor for name, tensor in tensors.items() if name not in heads}
    found = BELOW[str(values["model_type"])].tidy(rest, values)
    return found._replace(tensors=found.tensors | heads)


def _dropout(below: Below, values: Mapping[str, Any]) -> float:
    if below.dropout is None:
        return 0.0
    own = values.get("classifier_dropout")
    return float(values.get(below.dropout, 0.1) if own is None else own)


def as_task(
    task: str, values: Mapping[str, Any], names: tuple[str, ...] = (), where: object = ""
) -> dict[str, Any]:
    """The content of a body's config.json as that of a task with these labels.

    Raises:
        UserError: no such task over this kind of body.
    """
    family = str(values.get("model_type"))
    if family not in CLASSES[task]:
        known = ", ".join(CLASSES[task])
        raise UserError(f"{where} is of kind {family}; a {task} stands over {known}.")
    numbered = {str(i): name for i, name in enumerate(names)}
    changed = {**values, "architectures": [CLASSES[task][family][0]]}
    if names and task == "sequence-classifier":  # the start may have had several at once
        changed["problem_type"] = "single_label_classification"
    return changed | ({"id2label": numbered} if names else {})


def _kind(task: str) -> Kind:
    def to_config(values: Mapping[str, Any], where: object) -> BaseModel:
        return config(task, values, where)

    return Kind(
        family=task,
        model_types=tuple(CLASSES[task]),
        architectures=tuple(name for name, _ in CLASSES[task].values()),
        config=to_config,
        values=partial(values, task),
        slots=partial(slots, task),
        tidy=tidy,
        heads=(HEAD, f"{BODY}pooler."),
        spare=(*bert.SPARE, *longformer.SPARE, *HEADS),
        why_not=partial(why_not, task),
    )


TASK_KINDS: tuple[Kind, ...] = tuple(_kind(task) for task in CLASSES)
