"""One family a file; MODELS is the table of them."""

from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig

MODELS = {"transformer": (Transformer, TransformerConfig, PRESETS)}
