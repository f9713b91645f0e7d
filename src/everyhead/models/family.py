"""What the table MODELS says of a family."""

from typing import Any, NamedTuple

from pydantic import BaseModel
from torch import nn


class Family(NamedTuple):
    """The class, its config, and the presets: name → fields that differ from the defaults."""

    model: type[nn.Module]
    config: type[BaseModel]
    presets: dict[str, dict[str, Any]]
