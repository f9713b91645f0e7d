"""A model written as itself: everyhead's config and names in Hugging Face's kind of folder.

    config.json    {"architectures": ["Recurrent"], "model_type": "everyhead-recurrent",
                    "recurrent": {our fields}}

So lie the families that Hugging Face lacks, and configs of the others that it cannot express.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from torch import nn

from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.weights.config_table import validated
from everyhead.weights.kind import Kind
from everyhead.weights.state import own_slots

PREFIX = "everyhead-"


def family_of(model: nn.Module) -> str:
    """The model's name in MODELS.

    Raises:
        TypeError: a module of no family.
    """
    for name, family in MODELS.items():
        if type(model) is family.model:
            return name
    raise TypeError(
        f"only a model of everyhead's MODELS ({', '.join(MODELS)}) can be saved, "
        f"not a {type(model).__name__}"
    )


def own_kind(family: str, theirs: Kind | None = None) -> Kind:
    """How this family is written as itself; what starts at random and what is opened with it."""
    kind = Kind(
        family=family,
        model_types=(PREFIX + family,),
        config=lambda values, where: _config(family, values, where),
        values=lambda model: _values(family, model),
        slots=own_slots,
    )
    if theirs is None:
        return kind._replace(remarks=_no_such_family)
    return kind._replace(
        heads=theirs.heads,
        companion=theirs.companion,
        finish=theirs.finish,
        generation=theirs.generation,
        remarks=theirs.remarks or (lambda model: _inexpressible(theirs, model)),
    )


def _config(family: str, values: Mapping[str, Any], where: object) -> BaseModel:
    fields = values.get(family, {})
    if not isinstance(fields, dict):
        raise UserError(f"{where} is broken: {family} must be an object of fields.")
    return validated(MODELS[family].config, fields, where)


def _values(family: str, model: Any) -> dict[str, Any]:
    return {
        "architectures": [type(model).__name__],
        "model_type": PREFIX + family,
        family: model.config.model_dump(mode="json"),
    }


def _no_such_family(model: nn.Module) -> list[str]:
    return [
        f"Only everyhead can open this folder, because Hugging Face has no {type(model).__name__}."
    ]


def _inexpressible(theirs: Kind, model: Any) -> list[str]:
    return [
        "Only everyhead can open this folder, because the model has "
        f"{theirs.why_not(model.config)}: Hugging Face's code cannot."
    ]
