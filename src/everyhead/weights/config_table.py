"""config.json ↔ our config as a table of fields, strictly: what we cannot express is an error.

TABLE = ConfigTable(
    "GPT2",
    (
        Field("d_model", "n_embd"),
        Field("norm_eps", "layer_norm_epsilon", 1e-5),
        Field("activation", "activation_function", "gelu_new", ACTIVATIONS),
    ),
    fixed={"scale_attn_weights": True},
)
config = validated(GPT2Config, TABLE.read(values, where), where)
values = TABLE.write(config)
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError

from everyhead.errors import UserError

Config = TypeVar("Config", bound=BaseModel)
REQUIRED: Any = object()

# Names of Hugging Face's → those of layers/feed_forward.py; ours is written as the first of them.
ACTIVATIONS: Mapping[str, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "swish": "silu",
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


class Field(NamedTuple):
    """One of our fields, and the entries of config.json that say it (several must agree).

    default: what their code takes where config.json is silent. names: their values → ours.
    """

    ours: str
    theirs: str | tuple[str, ...]
    default: Any = REQUIRED
    names: Mapping[str, str] | None = None

    @property
    def entries(self) -> tuple[str, ...]:
        return (self.theirs,) if isinstance(self.theirs, str) else self.theirs


class ConfigTable(NamedTuple):
    """The fields of one family, and what its published code takes for granted.

    fixed: entries that must have this value where they are given. training_only: entries that
    change nothing in a trained model; one that is set is told and left out.
    """

    family: str
    fields: tuple[Field, ...]
    fixed: Mapping[str, Any] = {}
    training_only: tuple[str, ...] = ()

    def read(self, values: Mapping[str, Any], where: object) -> dict[str, Any]:
        """Our fields for the content of a config.json.

        Raises:
            UserError: a value is missing, or is one that the family cannot express; it is named.
        """
        for name, needed in self.fixed.items():
            self.need(values, name, needed, where)
        for name in self.training_only:
            if values.get(name):
                warnings.warn(
                    f"{where}: {name} {values[name]} matters in training only and is left out here",
                    stacklevel=3,
                )
        return {field.ours: self._one(field, values, where) for field in self.fields}

    def write(self, config: BaseModel) -> dict[str, Any]:
        """The entries of config.json for our config."""
        values: dict[str, Any] = {}
        for field in self.fields:
            value = getattr(config, field.ours)
            if field.names is not None:
                value = next(theirs for theirs, ours in field.names.items() if ours == value)
            values |= dict.fromkeys(field.entries, value)
        return values | dict.fromkeys(self.training_only, 0.0) | dict(self.fixed)

    def need(
        self, values: Mapping[str, Any], name: str, needed: Any, where: object, default: Any = None
    ) -> None:
        """Raises UserError if an entry, `default` where it is absent, is not `needed`."""
        value = values.get(name)
        value = (needed if default is None else default) if value is None else value
        if value != needed:
            raise UserError(
                f"{where} says {name} {json_like(value)}; everyhead's {self.family} can only open "
                f"{values.get('model_type', 'such')} folders with {json_like(needed)}."
            )

    def agreed(self, values: Mapping[str, Any], names: tuple[str, ...], where: object) -> Any:
        """The value of these entries.

        Raises:
            UserError: one is absent, or they differ.
        """
        absent = [name for name in names if values.get(name) is None]
        if absent:
            raise UserError(f"{where} lacks {' and '.join(absent)}; was the whole file copied?")
        if any(values[name] != values[names[0]] for name in names):
            listed = ", ".join(f"{name} {values[name]}" for name in names)
            raise UserError(f"{where} says {listed}; everyhead's {self.family} needs them equal.")
        return values[names[0]]

    def _one(self, field: Field, values: Mapping[str, Any], where: object) -> Any:
        names = field.entries
        if field.default is not REQUIRED:
            names = tuple(name for name in names if values.get(name) is not None)
        value = self.agreed(values, names, where) if names else field.default
        if field.names is None:
            return value
        if value not in field.names:
            raise UserError(
                f"{where} says {field.entries[0]} {value!r}; "
                f"everyhead's {self.family} has {', '.join(field.names)}."
            )
        return field.names[value]


def validated(config: type[Config], fields: Mapping[str, Any], where: object) -> Config:
    """The config, or a UserError that names each field that is wrong."""
    try:
        return config.model_validate(fields)
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'config'}: {fault['msg']}"
            for fault in error.errors()
        )
        family = config.__name__.removesuffix("Config")
        raise UserError(f"{where} describes no {family}: {'; '.join(faults)}.") from None


def json_like(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
