"""Reformer in Hugging Face's folders: ReformerModelWithLMHead.

Their chunks are the published ones, so a folder with LSH layers is opened with those, and said to
be. They draw rotations at every call, from `hash_seed` where it is given: here they are drawn once,
from the same seed, and are not in the file; without a seed, theirs differ from call to call, and
ours are those of seed 0. Old files hold the numbers that hid scores (mask_value_float32).
"""

import math
import re
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.layers.lsh import LshAttention
from everyhead.models.reformer import Reformer, ReformerConfig
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kind import Kind, Tidied
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots
from everyhead.weights.tidying import tidied

# fmt: off
TABLE = ConfigTable(
    "Reformer",
    (
        Field("vocab_size",    "vocab_size", 320),
        Field("d_model",       "hidden_size", 256),
        Field("n_heads",       "num_attention_heads", 12),
        Field("d_head",        "attention_head_size", 64),
        Field("d_ff",          "feed_forward_size", 512),
        Field("max_len",       "max_position_embeddings", 4096),
        Field("attn_layers",   "attn_layers", ("local", "lsh") * 3),
        Field("local_chunk",   "local_attn_chunk_length", 64),
        Field("local_before",  "local_num_chunks_before", 1),
        Field("local_dropout", "local_attention_probs_dropout_prob", 0.05),
        Field("dropout",       "hidden_dropout_prob", 0.05),
        Field("activation",    "hidden_act", "relu", ACTIVATIONS),
        Field("norm_eps",      "layer_norm_eps", 1e-12),
        Field("axial_std",     "axial_norm_std", 1.0),
        Field("bos_id",        "bos_token_id", None),
        Field("eos_id",        "eos_token_id", None),
        Field("pad_id",        "pad_token_id", None),
    ),
    fixed={"local_num_chunks_after": 0, "lsh_num_chunks_after": 0, "tie_word_embeddings": False},
)
HASHED = ConfigTable(  # null where no layer hashes
    "Reformer",
    (
        Field("lsh_chunk",   "lsh_attn_chunk_length", 64),
        Field("lsh_before",  "lsh_num_chunks_before", 1),
        Field("lsh_dropout", "lsh_attention_probs_dropout_prob", 0.0),
        Field("n_buckets",   "num_buckets"),
        Field("n_rounds",    "num_hashes", 1),
    ),
)
MODULES = (  # of a layer, with the parts that each has
    ("self_attn_norm",         "attention.layer_norm",   ("weight", "bias")),
    ("self_attn.v_proj",       "attention.self_attention.value", ("weight",)),
    ("self_attn.o_proj",       "attention.output.dense", ("weight",)),
    ("feed_forward_norm",      "feed_forward.layer_norm", ("weight", "bias")),
    ("feed_forward.up_proj",   "feed_forward.dense.dense", ("weight", "bias")),
    ("feed_forward.down_proj", "feed_forward.output.dense", ("weight", "bias")),
)
# fmt: on
EOS = {"eos_token_id": 2}  # what their code takes for silence
QUERY, QUERY_KEY, KEY = (f"attention.self_attention.{n}" for n in ("query", "query_key", "key"))
POSITIONS, LAYER = "reformer.embeddings.position_embeddings", "reformer.encoder.layers.{n}"
SPARE = ("classifier.", "qa_outputs.")  # other classes' heads
BIAS, UNUSED_BIAS = "lm_head.decoder.bias", "lm_head.bias"
MASK_VALUES = r"reformer\.encoder\.layers\.\d+\.attention\.self_attention\.(self_)?mask_value_.*"

UNSEEDED = (
    "Its hash_seed is null: their code draws other rotations at every call, here they are seed 0's."
)
CHUNKS = (
    "This Reformer is opened with the published chunks: it sees the future, and reads the whole "
    "text again for every token. changes={'chunking': 'within-buckets'} opens the same weights "
    "without either."
)

NAMES = NameTable(
    [
        Row("token_embed.weight", "reformer.embeddings.word_embeddings.weight"),
        Row("positions.weight", f"{POSITIONS}.embedding.weight"),
        Row("positions.tables.{n}", f"{POSITIONS}.weights.{{n}}"),
        Row("decoder.norm.weight", "reformer.encoder.layer_norm.weight"),
        Row("decoder.norm.bias", "reformer.encoder.layer_norm.bias"),
        Row("output_head.weight", "lm_head.decoder.weight"),
        Row("output_head.bias", BIAS),
        Row("decoder.blocks.{n}.self_attn.q_proj.weight", f"{LAYER}.{QUERY}.weight"),
        Row("decoder.blocks.{n}.self_attn.k_proj.weight", f"{LAYER}.{KEY}.weight"),
        *(
            Row(f"decoder.blocks.{{n}}.{ours}.{part}", f"{LAYER}.{theirs}.{part}")
            for ours, theirs, parts in MODULES
            for part in parts
        ),
    ]
)


def config(values: Mapping[str, Any], where: object) -> ReformerConfig:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is one that this Reformer cannot express; it is named.
    """
    TABLE.need(values, "is_decoder", True, where, default=False)
    values = EOS | dict(values)
    fields = TABLE.read(values, where)
    if values.get("axial_pos_embds", True):
        shape, widths = (values.get(f"axial_pos_{name}") for name in ("shape", "embds_dim"))
        fields |= {"axial_shape": shape or (64, 64), "axial_widths": widths or (64, 192)}
        fields["max_len"] = min(fields["max_len"], math.prod(fields["axial_shape"]))
    else:
        fields["positions"] = "learned"
    if "lsh" in fields["attn_layers"]:
        if values.get("num_buckets") is None:
            raise UserError(
                f"{where} says num_buckets null: their code would choose it by the first text that "
                "it reads. Write a number, or two factors, into it."
            )
        fields |= HASHED.read(values, where)
        fields |= {"chunking": "published", "hash_seed": values.get("hash_seed") or 0}
    else:
        unused = (*HASHED.fields, Field("hash_seed", "hash_seed"))
        fields |= {f.ours: values[str(f.theirs)] for f in unused if f.theirs in values}
        fields = {name: value for name, value in fields.items() if value is not None}
    fields["feed_forward_chunk"] = values.get("chunk_size_feed_forward") or None
    return validated(ReformerConfig, fields, where)


def values(model: Reformer) -> dict[str, Any]:
    """The content of config.json; where it names no pad_token_id, which they need, theirs is 0.

    Raises:
        UserError: the rotations are no longer those of the seed, which is all that is written.
    """
    c = model.config
    hashing = [part for part in model.modules() if isinstance(part, LshAttention)]
    if c.hash_seed is not None and not all(part.is_seeded(c.hash_seed) for part in hashing):
        raise UserError(
            f"The rotations are others than those of hash_seed {c.hash_seed}, which is all that "
            "Hugging Face's folder says of them: save it before redraw()."
        )
    axial = c.axial_shape is not None
    grid = {"axial_pos_shape": c.axial_shape, "axial_pos_embds_dim": c.axial_widths}
    return {
        "architectures": ["ReformerModelWithLMHead"],
        "model_type": "reformer",
        **{k: v for k, v in TABLE.write(c).items() if k != "pad_token_id" or v is not None},
        **HASHED.write(c),
        "axial_pos_embds": axial,
        **(grid if axial else {}),
        "hash_seed": c.hash_seed,
        "chunk_size_feed_forward": c.feed_forward_chunk or 0,
        "num_hidden_layers": c.n_layers,
        "is_decoder": True,
        "use_cache": True,
        "dtype": "float32",
    }


def why_not(c: ReformerConfig) -> str | None:
    """What of this config their class cannot say, None if nothing."""
    if c.axial_shape is not None and len(c.axial_shape) != 2:
        return f"a grid of {len(c.axial_shape)} axes"
    if not c.n_layers:
        return "no layer"
    if not c.hashes:
        return None
    if not c.published:
        return "chunks that no later token moves (theirs are the published ones)"
    if c.hash_seed is None:
        return "rotations that no seed tells"
    factors = (c.n_buckets,) if isinstance(c.n_buckets, int) else c.n_buckets
    return "a single bucket" if any(factor % 2 for factor in factors) else None


def slots(model: Reformer) -> list[Slot]:
    """Where each tensor lies; rotations are told by the seed."""
    found = []
    for slot in own_slots(model):
        (name,) = slot.ours
        if name.endswith(".rotations"):
            continue
        theirs = NAMES.row_of(name).theirs
        if name.startswith("positions.tables."):
            found.append(_axis(model, slot, theirs))
            continue
        number = name.split(".")[2] if ".q_proj." in name else ""
        if number and model.config.attn_layers[int(number)] == "lsh":
            theirs = theirs.replace(QUERY, QUERY_KEY)
        found.append(Slot(slot.ours, (theirs,)))
    return found


def _axis(model: Reformer, slot: Slot, theirs: str) -> Slot:
    """A table (n, d) of one axis: theirs is as long as 1 along the others, (n, 1, d)."""
    shape, axis = model.config.axial_shape or (), int(theirs.rpartition(".")[2])
    wide = [1] * len(shape)
    wide[axis] = shape[axis]
    return Slot(
        slot.ours,
        (theirs,),
        lambda table: table.reshape(*wide, -1),
        lambda table: table.reshape(shape[axis], -1),
    )


def tidy(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> Tidied:
    """Published names → those of `slots`, and what a person should know."""
    unused = (MASK_VALUES, re.escape(UNUSED_BIAS)) if BIAS in tensors else (MASK_VALUES,)
    outside = ("lm_head.", *SPARE)
    found = tidied(tensors, prefix="reformer.", outside=outside, buffers=unused).tensors
    if UNUSED_BIAS in found:  # of a time when the two were one
        found[BIAS] = found.pop(UNUSED_BIAS)
    unsaid = "lsh" in values.get("attn_layers", ("lsh",)) and values.get("hash_seed") is None
    return Tidied(found, (UNSEEDED,) if unsaid else ())


def told(model: Reformer) -> None:
    """Warns of the published chunks."""
    if model.config.published:
        warnings.warn(CHUNKS, stacklevel=5)


def extra(model: Reformer) -> dict[str, Tensor]:
    """Hugging Face keeps the logits' bias twice, and uses the other."""
    bias = model.get_parameter("output_head.bias").detach()
    return {UNUSED_BIAS: bias.to("cpu", torch.float32, copy=True)}


KIND = Kind(
    family="reformer",
    model_types=("reformer",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidy,
    spare=SPARE,
    architectures=("ReformerModelWithLMHead",),
    why_not=why_not,
    extra=extra,
    finish=told,
)
