"""T5 in Hugging Face's folders: T5ForConditionalGeneration, and mT5, which is T5 v1.1.

One table lies under up to three names, each stack's bias in its first layer alone. Old files hold a
bias for the first cross-attention too, which no code has ever read. `tie_word_embeddings` decides
two things, the output's table and its division by √C; newer transformers say the second by
`scale_decoder_outputs` and fill an output table that is absent from the embeddings.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.t5 import T5, T5Config
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots

TABLE = ConfigTable(
    "T5",
    (
        Field("vocab_size", "vocab_size"),
        Field("d_model", "d_model"),
        Field("n_heads", "num_heads"),
        Field("d_head", "d_kv"),
        Field("d_ff", "d_ff"),
        Field("n_encoder_layers", "num_layers"),
        Field("n_buckets", "relative_attention_num_buckets", 32),
        Field("max_distance", "relative_attention_max_distance", 128),
        Field("dropout", "dropout_rate", 0.1),
        Field("norm_eps", "layer_norm_epsilon", 1e-6),
        Field("max_len", "n_positions", 512),
        Field("pad_id", ("pad_token_id", "decoder_start_token_id"), 0),
        Field("eos_id", "eos_token_id", 1),
    ),
    fixed={"is_encoder_decoder": True},
)
# feed_forward_proj → activation, gated; ours is written as the first of its names
FEED_FORWARDS = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "gelu_new": ("gelu_tanh", False),
    "silu": ("silu", False),
    "gated-gelu": ("gelu_tanh", True),  # their code takes the tanh form for this name
    "gated-gelu_new": ("gelu_tanh", True),
    "gated-gelu_python": ("gelu", True),
    "gated-silu": ("silu", True),
    "gated-relu": ("relu", True),
}
# fmt: off
ATTENTION = tuple((f"{name}_proj", name) for name in "qkvo")
LAYERS = {  # half → what stands in sublayer i
    "encoder": (("self_attn", "SelfAttention"), ("feed_forward", "DenseReluDense")),
    "decoder": (("self_attn", "SelfAttention"), ("cross_attn", "EncDecAttention"),
                ("feed_forward", "DenseReluDense")),
}
# fmt: on
SHARED, HEAD = "shared.weight", "lm_head.weight"
EMBEDDINGS = (SHARED, "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
NEVER_READ = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"


def name_table(*, gated: bool) -> NameTable:
    """Our names and theirs; with a gate, `wi_0` is the gate and `wi_1` the map beside it."""
    up = (("gate_proj", "wi_0"), ("up_proj", "wi_1")) if gated else (("up_proj", "wi"),)
    rows = [Row("output_head.weight", HEAD), Row("target_embed.weight", SHARED)]
    rows += [Row("source_embed.weight", EMBEDDINGS[2])]
    for half, sublayers in LAYERS.items():
        rows.append(Row(f"{half}.norm.weight", f"{half}.final_layer_norm.weight"))
        bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        rows.append(Row(f"{half}_bias.weight", bias))
        for i, (ours, theirs) in enumerate(sublayers):
            mine, place = f"{half}.blocks.{{n}}.{ours}", f"{half}.block.{{n}}.layer.{i}"
            rows.append(Row(f"{mine}_norm.weight", f"{place}.layer_norm.weight"))
            for a, b in ATTENTION if ours != "feed_forward" else (*up, ("down_proj", "wo")):
                rows.append(Row(f"{mine}.{a}.weight", f"{place}.{theirs}.{b}.weight"))
    return NameTable(rows)


def config(values: Mapping[str, Any], where: object) -> T5Config:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that this T5 cannot express; it is named.
    """
    fields = TABLE.read(values, where)
    newer = values.get("model_type") == "mt5"
    name = values.get("feed_forward_proj") or ("gated-gelu" if newer else "relu")
    if name not in FEED_FORWARDS:
        raise UserError(
            f"{where} says feed_forward_proj {name!r}; everyhead's T5 has "
            f"{', '.join(FEED_FORWARDS)}."
        )
    fields["activation"], fields["gated"] = _function(FEED_FORWARDS[name], values, where)
    fields["n_decoder_layers"] = values.get("num_decoder_layers") or fields["n_encoder_layers"]
    divided = values.get("scale_decoder_outputs", values.get("tie_word_embeddings"))
    fields["tie_output"] = not newer and divided is not False
    return validated(T5Config, fields, where)


def _function(
    named: tuple[str, bool], values: Mapping[str, Any], where: object
) -> tuple[str, bool]:
    """Activation and gate; their code takes what config.json says of either beside the name."""
    told, gated = values.get("dense_act_fn"), values.get("is_gated_act")
    if told is not None and told not in ACTIVATIONS:
        raise UserError(
            f"{where} says dense_act_fn {told!r}; everyhead's T5 has {', '.join(ACTIVATIONS)}."
        )
    activation = named[0] if told is None else ACTIVATIONS[told]
    return activation, named[1] if gated is None else bool(gated)


def config_values(model: T5) -> dict[str, Any]:
    """The content of config.json."""
    c = model.config
    names = {ours: theirs for theirs, ours in reversed(FEED_FORWARDS.items())}
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        **TABLE.write(c),
        "num_decoder_layers": c.n_decoder_layers,
        "feed_forward_proj": names[c.activation, c.gated],
        "is_gated_act": c.gated,
        "tie_word_embeddings": c.tie_output,
        "initializer_factor": 1.0,
        "use_cache": True,
        "dtype": "float32",
    }


def slots(model: T5) -> list[Slot]:
    """Where each tensor lies in their files; the output's bias is ours alone, and zero."""
    table = name_table(gated=model.config.gated)
    found = []
    for ours, *_ in own_slots(model):
        if ours == ("output_head.bias",):
            continue
        theirs = tuple(table.row_of(name).theirs for name in ours)
        if "target_embed.weight" in ours:
            theirs = (*EMBEDDINGS, *((HEAD,) if HEAD in theirs else ()))
        found.append(Slot(ours, theirs))
    return found


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Without what was never read; an output table that is absent is the embeddings'."""
    found = {name: tensor for name, tensor in tensors.items() if name != NEVER_READ}
    notes: tuple[str, ...] = ()
    table = next((found[name] for name in EMBEDDINGS if name in found), None)
    if table is not None and HEAD not in found and not config(values, "config.json").tie_output:
        found[HEAD] = table
        notes = ("The file has no output table of its own: the embeddings are taken for it.",)
    return Tidied(found, notes)


KIND = Kind(
    family="t5",
    model_types=("t5", "mt5"),
    config=config,
    values=config_values,
    slots=slots,
    tidy=tidy,
    generation=lambda model: {"decoder_start_token_id": model.config.pad_id},
)
