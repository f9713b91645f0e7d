"""Longformer in Hugging Face's folders: LongformerModel, LongformerForMaskedLM.

Their layers are Bert's with three maps more; the table of positions begins behind the padding's row
(both rows before the first position are kept as they are). Below the head of …ForSequence-
Classification the pooler is `classifier.dense`. Old files keep position_ids.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.longformer import Longformer, LongformerConfig
from everyhead.weights.bert import MODULES, PARTS
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots
from everyhead.weights.tidying import GAMMA_BETA, tidied

# fmt: off
TABLE = ConfigTable(
    "Longformer",
    (
        Field("vocab_size",        "vocab_size", 30_522),
        Field("d_model",           "hidden_size", 768),
        Field("n_heads",           "num_attention_heads", 12),
        Field("n_layers",          "num_hidden_layers", 12),
        Field("d_ff",              "intermediate_size", 3072),
        Field("max_len",           "max_position_embeddings", 512),
        Field("windows",           "attention_window", 512),
        Field("n_segments",        "type_vocab_size", 2),
        Field("dropout",           "hidden_dropout_prob", 0.1),
        Field("attention_dropout", "attention_probs_dropout_prob", 0.1),
        Field("activation",        "hidden_act", "gelu", ACTIVATIONS),
        Field("norm_eps",          "layer_norm_eps", 1e-12),
        Field("pad_id",            "pad_token_id", 1),
        Field("tie_output",        "tie_word_embeddings", True),
    ),
    fixed={"onnx_export": False},
)
HEADS = {  # architecture → pooler, gap_head
    "LongformerModel":       (True,  False),
    "LongformerForMaskedLM": (False, True),
}
GLOBAL = (
    ("self_attn.q_global", "attention.self.query_global"),
    ("self_attn.k_global", "attention.self.key_global"),
    ("self_attn.v_global", "attention.self.value_global"),
)
ABOVE = (
    ("embed_norm",         "longformer.embeddings.LayerNorm"),
    ("pooler",             "longformer.pooler.dense"),
    ("gap_head.transform", "lm_head.dense"),
    ("gap_head.norm",      "lm_head.layer_norm"),
)
# fmt: on
BODY, WORDS = "longformer.", "longformer.embeddings.word_embeddings.weight"
OUTSIDE = ("lm_head.", "classifier.", "qa_outputs.")
SPARE = ("longformer.pooler.", "pooler.", "lm_head.")  # heads beside the wanted
BIAS, DECODER, DECODER_BIAS = "lm_head.bias", "lm_head.decoder.weight", "lm_head.decoder.bias"
POOLER_IN_TASK = "classifier.dense"

NAMES = NameTable(
    [
        Row("token_embed.weight", WORDS),
        Row("position_embed.weight", "longformer.embeddings.position_embeddings.weight"),
        Row("segment_embed.weight", "longformer.embeddings.token_type_embeddings.weight"),
        Row("gap_head.weight", DECODER),
        Row("gap_head.bias", BIAS),
        *(
            Row(
                f"encoder.blocks.{{n}}.{ours}.{part}",
                f"longformer.encoder.layer.{{n}}.{theirs}.{part}",
            )
            for ours, theirs in MODULES + GLOBAL
            for part in PARTS
        ),
        *(Row(f"{ours}.{part}", f"{theirs}.{part}") for ours, theirs in ABOVE for part in PARTS),
    ]
)


def config(values: Mapping[str, Any], where: object) -> LongformerConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that this Longformer cannot express; it is named.
    """
    fields = TABLE.read(values, where)
    try:
        fields["max_len"] = fields["max_len"] - fields["pad_id"] - 1
        windows = fields["windows"]
        fields["windows"] = windows if isinstance(windows, int) else tuple(windows)
    except TypeError:
        raise UserError(
            f"{where} says max_position_embeddings {values.get('max_position_embeddings')}, "
            f"pad_token_id {values.get('pad_token_id')} and attention_window "
            f"{values.get('attention_window')}; they must be numbers, the last one or a list."
        ) from None
    fields["pooler"], fields["gap_head"] = HEADS[_architecture(values)]
    return validated(LongformerConfig, fields, where)


def values(model: Longformer) -> dict[str, Any]:
    """The content of config.json."""
    c = model.config
    return {
        "architectures": [_class_of(c)],
        "model_type": "longformer",
        **TABLE.write(c),
        "max_position_embeddings": c.first_position + c.max_len,
        "attention_window": list(c.windows) if isinstance(c.windows, tuple) else c.windows,
        "dtype": "float32",
    }


def why_not(c: LongformerConfig) -> str | None:
    """What of this config no class of Hugging Face's says, None if nothing."""
    if (c.pooler, c.gap_head) not in HEADS.values() or c.next_sentence_head:
        return "a choice of heads of its own"
    return "a first token that is global by itself" if c.global_first else None


def slots(model: Longformer) -> list[Slot]:
    """Where each tensor lies in the file that `values` describes."""
    bare = why_not(model.config) is None and _class_of(model.config) == "LongformerModel"
    return [_slot(slot.ours, model, BODY if bare else "") for slot in own_slots(model)]


def slots_in_task(model: Longformer) -> list[Slot]:
    """The same below a task's head, which has the pooler."""
    found = []
    for slot in (_slot(slot.ours, model, "") for slot in own_slots(model)):
        theirs = (name.replace("longformer.pooler.dense", POOLER_IN_TASK) for name in slot.theirs)
        found.append(slot._replace(theirs=tuple(theirs)))
    return found


def extra(model: Longformer) -> dict[str, Tensor]:
    """As of Bert: the logits' bias twice where the table is not tied."""
    if model.config.tie_output or model.gap_head is None:
        return {}
    return {BIAS: model.gap_head.bias.detach().to("cpu", torch.float32, copy=True)}


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Published names → those of `slots`."""
    found = tidy_in_task(tensors, values)
    if _architecture(values) != "LongformerModel":
        return found
    bare = {name.removeprefix(BODY): tensor for name, tensor in found.tensors.items()}
    return found._replace(tensors=bare)


def tidy_in_task(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """The same below a task's head, where every name of the body has `longformer.` before it."""
    buffers = (r"longformer\.embeddings\.position_ids",)
    found = tidied(tensors, prefix=BODY, outside=OUTSIDE, buffers=buffers, renames=GAMMA_BETA)
    if not values.get("tie_word_embeddings", True) and DECODER_BIAS in found.tensors:
        found.tensors.pop(BIAS, None)
    return found


def _slot(ours: tuple[str, ...], model: Longformer, without: str) -> Slot:
    theirs = tuple(NAMES.row_of(name).theirs for name in ours)
    if ours == ("gap_head.bias",):
        theirs = (BIAS, DECODER_BIAS) if model.config.tie_output else (DECODER_BIAS,)
    return Slot(ours, tuple(name.removeprefix(without) for name in theirs))


def _architecture(values: Mapping[str, Any]) -> str:
    """The class that the file was made of; a bare body where none or another is named."""
    named = values.get("architectures")
    known = [str(name) for name in named if str(name) in HEADS] if isinstance(named, list) else []
    return known[0] if known else "LongformerModel"


def _class_of(c: LongformerConfig) -> str:
    found = {heads: name for name, heads in HEADS.items()}
    return found.get((c.pooler, c.gap_head), "LongformerModel")


KIND = Kind(
    family="longformer",
    model_types=("longformer",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidy,
    heads=("pooler.", "gap_head."),
    spare=SPARE,
    why_not=why_not,
    extra=extra,
    hidden_there=True,
)
