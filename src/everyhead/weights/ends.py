"""The ids that end a text: config.json's eos_token_id, or what generation_config.json says instead.

Hugging Face's `generate` goes by generation_config.json where there is one, so a folder may name
further ends there alone (an <|eot_id|> beside an <|end_of_text|>).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from everyhead.errors import UserError
from everyhead.files import read_json

GENERATION_CONFIG = "generation_config.json"
EOS = "eos_token_id"


def fields(told: Any) -> dict[str, Any]:
    """eos_id and more_eos_ids of our config, for an id, a list of them or None."""
    if isinstance(told, list):
        return {"eos_id": told[0] if told else None, "more_eos_ids": tuple(told[1:])}
    return {"eos_id": told, "more_eos_ids": ()}


def value(config: Any) -> int | list[int] | None:
    """What their config calls eos_token_id."""
    first: int | None = config.eos_id
    return [first, *config.more_eos_ids] if first is not None and config.more_eos_ids else first


def generation(model: Any) -> dict[str, Any]:
    """The entry of generation_config.json, where texts have an end."""
    told = value(model.config)
    return {} if told is None else {EOS: told}


def as_generated(config: BaseModel, folder: Path) -> BaseModel:
    """The config of a family that may have several ends, with those of generation_config.json.

    Raises:
        UserError: the file is broken.
    """
    path = folder / GENERATION_CONFIG
    if "more_eos_ids" not in type(config).model_fields or not path.is_file():
        return config
    values: Mapping[str, Any] = read_json(path)
    told = values.get(EOS)
    if told is None:
        return config
    if not all(type(number) is int for number in (told if isinstance(told, list) else [told])):
        raise UserError(f"{path} is broken: {EOS} is {told!r}, and must be an id or a list of ids.")
    return config.model_copy(update=fields(told))
