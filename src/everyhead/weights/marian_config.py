"""The Transformer's config as Marian's (post-norm) or Pegasus' (pre-norm) config.json, both ways.

Both families compute the sinusoid in halves from position 0, scale embeddings by √d_model and
start decoding from padding. CTranslate2's converter asks Pegasus for `normalize_before` and
`normalize_embedding`, which Hugging Face itself does not read, and wants no `forced_eos_token_id`.
"""

import warnings
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from everyhead.errors import UserError
from everyhead.models.transformer import TransformerConfig

ARCHITECTURES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}

# fmt: off
FIELDS = (  # of the config; a tuple: the two halves must agree
    ("d_model",           ("d_model",)),
    ("n_encoder_layers",  ("encoder_layers",)),
    ("n_decoder_layers",  ("decoder_layers",)),
    ("n_heads",           ("encoder_attention_heads", "decoder_attention_heads")),
    ("d_ff",              ("encoder_ffn_dim", "decoder_ffn_dim")),
    ("max_len",           ("max_position_embeddings",)),
    ("pad_id",            ("pad_token_id", "decoder_start_token_id")),
    ("eos_id",            ("eos_token_id",)),
)
ACTIVATIONS = {  # theirs → ours; ours is written as the first of its names
    "relu": "relu", "gelu": "gelu", "gelu_python": "gelu", "swish": "silu", "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
}
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
    values: dict[str, Any] = {
        "architectures": [ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": config.vocab_size,
    }
    for ours, theirs in FIELDS:
        values |= dict.fromkeys(theirs, getattr(config, ours))
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    return values | {
        "activation_function": names[config.activation],
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        **dict.fromkeys(ONLY_IN_TRAINING, 0.0),
        "scale_embedding": True,
        "tie_word_embeddings": config.tie_output,
        **({"share_encoder_decoder_embeddings": True} if family == "marian" else {}),
        **FIXED[family],
        **FIXED_IN_BOTH,
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
    for name, needed in (FIXED[family] | FIXED_IN_BOTH).items():
        _need(values, name, needed, where)
    _need(values, "scale_embedding", True, where, default=False)
    for name in ONLY_IN_TRAINING:
        if values.get(name):
            warnings.warn(
                f"{where}: {name} {values[name]} matters in training only and is left out here",
                stacklevel=2,
            )
    found = {ours: _agreed(values, theirs, where) for ours, theirs in FIELDS}
    found["activation"] = _activation(values, where)
    found |= _vocabularies(values, where)
    return validated(
        {
            **found,
            "source_pad_id": found["pad_id"],
            "norm": "post" if family == "marian" else "pre",
            "dropout": values.get("dropout", 0.1),
            "attention_dropout": values.get("attention_dropout", 0.0),
            "tie_output": values.get("tie_word_embeddings", True),
        },
        where,
    )


def validated(fields: Mapping[str, Any], where: object) -> TransformerConfig:
    """The config, or a UserError that names each field that is wrong."""
    try:
        return TransformerConfig.model_validate(fields)
    except ValidationError as error:
        faults = (
            f"{'.'.join(map(str, fault['loc'])) or 'config'}: {fault['msg']}"
            for fault in error.errors()
        )
        raise UserError(f"{where} describes no Transformer: {'; '.join(faults)}.") from None


def _vocabularies(values: Mapping[str, Any], where: object) -> dict[str, Any]:
    source = _agreed(values, ("vocab_size",), where)
    target = values.get("decoder_vocab_size") or source
    if not values.get("share_encoder_decoder_embeddings", True):
        return {"vocab_size": target, "source_vocab_size": source}
    if target != source:
        raise UserError(
            f"{where} says decoder_vocab_size {target} and vocab_size {source} "
            "in one shared vocabulary; one of them is wrong."
        )
    return {"vocab_size": source}


def _activation(values: Mapping[str, Any], where: object) -> str:
    name = values.get("activation_function", "gelu")
    if name not in ACTIVATIONS:
        raise UserError(
            f"{where} says activation_function {name!r}; "
            f"everyhead's Transformer has {', '.join(ACTIVATIONS)}."
        )
    return ACTIVATIONS[name]


def _need(
    values: Mapping[str, Any], name: str, needed: Any, where: object, *, default: Any = None
) -> None:
    value = values.get(name, needed if default is None else default)
    if value != needed:
        raise UserError(
            f"{where} says {name} {json_like(value)}; everyhead's Transformer can only open "
            f"{values['model_type']} folders with {json_like(needed)}."
        )


def _agreed(values: Mapping[str, Any], names: tuple[str, ...], where: object) -> Any:
    absent = [name for name in names if values.get(name) is None]
    if absent:
        raise UserError(f"{where} lacks {' and '.join(absent)}; was the whole file copied?")
    if any(values[name] != values[names[0]] for name in names):
        listed = ", ".join(f"{name} {values[name]}" for name in names)
        raise UserError(f"{where} says {listed}; everyhead's Transformer needs them equal.")
    return values[names[0]]


def json_like(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
