"""BERT in Hugging Face's folders: BertModel, BertForPreTraining, BertForMaskedLM and their kin.

Names are read with and without `bert.` before them; old files say gamma and beta for a norm's
weight and bias, and keep position_ids, which are only 0, 1, 2, …
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.models.bert import Bert, BertConfig
from everyhead.weights.config_table import ACTIVATIONS, validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots

# fmt: off
FIELDS = (  # ours, theirs
    ("vocab_size",        "vocab_size"),
    ("d_model",           "hidden_size"),
    ("n_heads",           "num_attention_heads"),
    ("n_layers",          "num_hidden_layers"),
    ("d_ff",              "intermediate_size"),
    ("max_len",           "max_position_embeddings"),
    ("n_segments",        "type_vocab_size"),
    ("dropout",           "hidden_dropout_prob"),
    ("attention_dropout", "attention_probs_dropout_prob"),
    ("norm_eps",          "layer_norm_eps"),
    ("pad_id",            "pad_token_id"),
    ("tie_output",        "tie_word_embeddings"),
)
HEADS = {  # architecture → pooler, gap_head, next_sentence_head
    "BertModel":                     (True,  False, False),
    "BertForPreTraining":            (True,  True,  True),
    "BertForMaskedLM":               (False, True,  False),
    "BertForNextSentencePrediction": (True,  False, True),
}
MODULES = (  # of a layer
    ("self_attn.q_proj",       "attention.self.query"),
    ("self_attn.k_proj",       "attention.self.key"),
    ("self_attn.v_proj",       "attention.self.value"),
    ("self_attn.o_proj",       "attention.output.dense"),
    ("self_attn_norm",         "attention.output.LayerNorm"),
    ("feed_forward.up_proj",   "intermediate.dense"),
    ("feed_forward.down_proj", "output.dense"),
    ("feed_forward_norm",      "output.LayerNorm"),
)
ABOVE = (
    ("embed_norm",           "bert.embeddings.LayerNorm"),
    ("pooler",               "bert.pooler.dense"),
    ("gap_head.transform",   "cls.predictions.transform.dense"),
    ("gap_head.norm",        "cls.predictions.transform.LayerNorm"),
    ("next_sentence_head",   "cls.seq_relationship"),
)
# fmt: on
# What the family's code takes for granted; another value would be another model.
FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
BODY, PARTS = "bert.", ("weight", "bias")
SPARE = (
    "bert.pooler.",
    "pooler.",
    "cls.predictions.",
    "cls.seq_relationship.",
)  # heads beside the wanted
BIAS = "cls.predictions.bias"
DECODER, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
IN_BODY = ("embeddings.", "encoder.", "pooler.")
OLD_PARTS = {"gamma": "weight", "beta": "bias"}

TABLE = NameTable(
    [
        Row("token_embed.weight", "bert.embeddings.word_embeddings.weight"),
        Row("position_embed.weight", "bert.embeddings.position_embeddings.weight"),
        Row("segment_embed.weight", "bert.embeddings.token_type_embeddings.weight"),
        Row("gap_head.weight", DECODER),
        Row("gap_head.bias", BIAS),
        *(
            Row(f"encoder.blocks.{{n}}.{ours}.{part}", f"bert.encoder.layer.{{n}}.{theirs}.{part}")
            for ours, theirs in MODULES
            for part in PARTS
        ),
        *(Row(f"{ours}.{part}", f"{theirs}.{part}") for ours, theirs in ABOVE for part in PARTS),
    ]
)


def config(values: Mapping[str, Any], where: object) -> BertConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is missing, or is one that this Bert cannot express; it is named.
    """
    pooler, gap_head, next_sentence_head = HEADS[architecture(values)]
    heads = {"pooler": pooler, "gap_head": gap_head, "next_sentence_head": next_sentence_head}
    return body_config(values, where, heads)


def body_config(values: Mapping[str, Any], where: object, heads: Mapping[str, bool]) -> BertConfig:
    """The same, where it is known which parts shall stand above the encoder."""
    for name, needed in FIXED.items():
        if values.get(name, needed) not in (needed, None):
            raise UserError(
                f"{where} says {name} {values[name]!r}; everyhead's Bert has {needed!r} only."
            )
    activation = values.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise UserError(
            f"{where} says hidden_act {activation!r}; everyhead's Bert has "
            f"{', '.join(ACTIVATIONS)}."
        )
    found = {ours: values[theirs] for ours, theirs in FIELDS if values.get(theirs) is not None}
    fields = {**found, **heads, "activation": ACTIVATIONS[activation]}
    return validated(BertConfig, fields, where)


def architecture(values: Mapping[str, Any]) -> str:
    """The class that the file was made of; a bare body where none or another is named."""
    named = values.get("architectures") or ()
    return next((name for name in named if name in HEADS), "BertModel")


def values(model: Bert) -> dict[str, Any]:
    """The content of config.json."""
    return {"architectures": [_class_of(model.config)], **body_values(model.config)}


def body_values(c: BertConfig) -> dict[str, Any]:
    """config.json without the class."""
    names = {ours: theirs for theirs, ours in reversed(list(ACTIVATIONS.items()))}
    return {
        "model_type": "bert",
        **{theirs: getattr(c, ours) for ours, theirs in FIELDS},
        "hidden_act": names[c.activation],
        **FIXED,
        "dtype": "float32",
    }


def why_not(c: BertConfig) -> str | None:
    """What of this config no class of Hugging Face's says, None if nothing."""
    if _heads_of(c) in HEADS.values():
        return None
    return "a choice of heads of its own"


def slots(model: Bert) -> list[Slot]:
    """Where each tensor lies in the file that `values` describes."""
    bare = why_not(model.config) is None and _class_of(model.config) == "BertModel"
    return [
        slot_of(slot.ours, tied=model.config.tie_output, bare=bare) for slot in own_slots(model)
    ]


def slots_in_task(model: Bert) -> list[Slot]:
    """The same below a task's head, where every name has `bert.` before it."""
    return [slot_of(slot.ours, tied=model.config.tie_output) for slot in own_slots(model)]


def slot_of(ours: tuple[str, ...], *, tied: bool, bare: bool = False) -> Slot:
    """The slot of one tensor by all of its names; bare: without `bert.` before the body's."""
    theirs = tuple(TABLE.row_of(name).theirs for name in ours)
    if ours == ("gap_head.bias",):
        theirs = (*theirs, DECODER_BIAS) if tied else (DECODER_BIAS,)
    return Slot(ours, tuple(name.removeprefix(BODY) if bare else name for name in theirs))


def extra(model: Bert) -> dict[str, Tensor]:
    """Hugging Face keeps the logits' bias twice where the table is not tied, and uses the other."""
    if model.config.tie_output or model.gap_head is None:
        return {}
    return {BIAS: model.gap_head.bias.detach().to("cpu", torch.float32, copy=True)}


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Published names → those of `slots`."""
    return Tidied(tidied(tensors, values, bare=architecture(values) == "BertModel"))


def tidy_in_task(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """The same below a task's head."""
    return Tidied(tidied(tensors, values))


def tidied(
    tensors: Mapping[str, Tensor], values: Mapping[str, Any], *, bare: bool = False
) -> dict[str, Tensor]:
    """gamma and beta, position_ids and the prefix as `slots` has them."""
    tidy: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        name = _prefixed(name)
        if name == f"{BODY}embeddings.position_ids":
            continue
        norm, _, part = name.rpartition(".")
        name = f"{norm}.{OLD_PARTS.get(part, part)}"
        tidy[name.removeprefix(BODY) if bare else name] = tensor
    if not values.get("tie_word_embeddings", True) and DECODER_BIAS in tidy:
        tidy.pop(BIAS, None)
    return tidy


def _prefixed(name: str) -> str:
    return BODY + name if name.startswith(IN_BODY) else name


def _heads_of(c: BertConfig) -> tuple[bool, bool, bool]:
    return c.pooler, c.gap_head, c.next_sentence_head


def _class_of(c: BertConfig) -> str:
    return {heads: name for name, heads in HEADS.items()}.get(_heads_of(c), "BertModel")


KIND = Kind(
    family="bert",
    model_types=("bert",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidy,
    heads=("pooler.", "gap_head.", "next_sentence_head."),
    spare=SPARE,
    why_not=why_not,
    extra=extra,
)
