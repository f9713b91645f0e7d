"""One family a file; MODELS is the table of them."""

from everyhead.models import transformer
from everyhead.models.family import Family

MODELS: dict[str, Family] = {
    "transformer": Family(
        transformer.Transformer, transformer.TransformerConfig, transformer.PRESETS
    ),
}
