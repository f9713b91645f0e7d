"""The Transformer's config as Marian's (post-norm) or Pegasus' (pre-norm) config.json, both ways.

Both families compute the sinusoid in halves from position 0, scale embeddings by √d_model and
start decoding from padding. CTranslate2's converter asks Pegasus for `normalize_before` and
`normalize_embedding`, which Hugging Face itself does not read, and wants no `forced_eos_token_id`.
"""

from collections.abc import Mapping
from typing import Any

from everyhead.errors import UserError
from everyhead.models.transformer import TransformerConfig
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated

ARCHITECTURES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}

# fmt: off
FIELDS = (  # several entries: the two halves must agree
    Field("d_model",           "d_model"),
    Field("n_encoder_layers",  "encoder_layers"),
    Field("n_decoder_layers",  "decoder_layers"),
    Field("n_heads",           ("encoder_attention_heads", "decoder_attention_heads")),
    Field("d_ff",              ("encoder_ffn_dim", "decoder_ffn_dim")),
    Field("max_len",           "max_position_embeddings"),
    Field("pad_id",            ("pad_token_id", "decoder_start_token_id")),
    Field("eos_id",            "eos_token_id"),
    Field("activation",        "activation_function", "gelu", ACTIVATIONS),
    Field("dropout",           "dropout", 0.1),
    Field("attention_dropout", "attention_dropout", 0.0),
    Field("tie_output",        "tie_word_embeddings", True),
)
# fmt: on

# What the family's own code takes for granted; another value would be another model.
FIXED: dict[str, dict[str, Any]] = {
    "marian": {"normalize_before": False, "add_final_layer_norm": False},
    "pegasus": {"normalize_before": True, "add_final_layer_norm": True},
}
FIXED_IN_BOTH: dict[str, Any] = {
    "normalize_embedding": False,
    "add_bias_logits": False,
    "static_position_embeddings": True,
    "is_encoder_decoder": True,
}
ONLY_IN_TRAINING = ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop")
TABLES = {
    family: ConfigTable("Transformer", FIELDS, fixed | FIXED_IN_BOTH, ONLY_IN_TRAINING)
    for family, fixed in FIXED.items()
}


def why_not(config: TransformerConfig) -> str | None:
    """What of this config neither Marian nor Pegasus can say, None if nothing."""
    if config.source_vocab_size is not None:
        return "separate source and target vocabularies"
    if config.positions != "sinusoidal":
        return f"{config.positions} positions"
    if config.source_pad_id != config.pad_id:
        return "two ids of padding in one vocabulary"
    return None


def to_hugging_face(config: TransformerConfig) -> dict[str, Any]:
    """The content of config.json. `why_not(config)` must be None."""
    family = "marian" if config.norm == "post" else "pegasus"
    return {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
        **TABLES[family].write(config),
        "scale_embedding": True,
        **({"share_encoder_decoder_embeddings": True} if family == "marian" else {}),
        "bos_token_id": None,
        "forced_eos_token_id": None,
        "use_cache": True,
        "dtype": "float32",
    }


def from_hugging_face(values: Mapping[str, Any], where: object) -> TransformerConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that this Transformer cannot express; it is named.
    """
    family = values["model_type"]
    table = TABLES[family]
    found = table.read(values, where)
    table.need(values, "scale_embedding", True, where, default=False)
    found |= _vocabularies(table, values, where)
    found |= {"source_pad_id": found["pad_id"], "norm": "post" if family == "marian" else "pre"}
    return validated(TransformerConfig, found, where)


def _vocabularies(table: ConfigTable, values: Mapping[str, Any], where: object) -> dict[str, Any]:
    source = table.agreed(values, ("vocab_size",), where)
    target = values.get("decoder_vocab_size") or source
    if not values.get("share_encoder_decoder_embeddings", True):
        return {"vocab_size": target, "source_vocab_size": source}
    if target != source:
        raise UserError(
            f"{where} says decoder_vocab_size {target} and vocab_size {source} "
            "in one shared vocabulary; one of them is wrong."
        )
    return {"vocab_size": source}
