"""The Transformer's tensors as Hugging Face's Marian (post-norm) and Pegasus (pre-norm) name them.

`model.shared.weight` is the joint table, `final_logits_bias` our `output_head.bias` with an axis
before it, `embed_positions.weight` the sinusoid in halves, which is computed here and only checked.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from everyhead.errors import UserError
from everyhead.layers.positions import sinusoid
from everyhead.models.transformer import TransformerConfig
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots

SHARED = "model.shared.weight"
BIAS = "final_logits_bias"
POSITIONS = tuple(f"model.{half}.embed_positions.weight" for half in ("encoder", "decoder"))

# fmt: off
MODULES = (  # in a layer of either half
    ("self_attn.q_proj",      "self_attn.q_proj"),
    ("self_attn.k_proj",      "self_attn.k_proj"),
    ("self_attn.v_proj",      "self_attn.v_proj"),
    ("self_attn.o_proj",      "self_attn.out_proj"),
    ("self_attn_norm",        "self_attn_layer_norm"),
    ("cross_attn.q_proj",     "encoder_attn.q_proj"),
    ("cross_attn.k_proj",     "encoder_attn.k_proj"),
    ("cross_attn.v_proj",     "encoder_attn.v_proj"),
    ("cross_attn.o_proj",     "encoder_attn.out_proj"),
    ("cross_attn_norm",       "encoder_attn_layer_norm"),
    ("feed_forward.up_proj",  "fc1"),
    ("feed_forward.down_proj", "fc2"),
    ("feed_forward_norm",     "final_layer_norm"),
)
# fmt: on

TABLE = NameTable(
    [
        *(
            Row(f"{half}.blocks.{{n}}.{ours}.{part}", f"model.{half}.layers.{{n}}.{theirs}.{part}")
            for half in ("encoder", "decoder")
            for ours, theirs in MODULES
            for part in ("weight", "bias")
        ),
        *(
            Row(f"{half}.norm.{part}", f"model.{half}.layer_norm.{part}")
            for half in ("encoder", "decoder")
            for part in ("weight", "bias")
        ),
        Row("target_embed.weight", "model.decoder.embed_tokens.weight"),
        Row("source_embed.weight", "model.encoder.embed_tokens.weight"),
        Row("output_head.weight", "lm_head.weight"),
        Row("output_head.bias", BIAS, lambda t: t[None], lambda t: t[0]),
    ]
)


def slots(model: nn.Module, config: TransformerConfig) -> list[Slot]:
    """Where each of the model's tensors lies in a Marian or Pegasus file."""
    return [_slot(slot.ours, config) for slot in own_slots(model)]


def _slot(ours: tuple[str, ...], config: TransformerConfig) -> Slot:
    rows = [TABLE.row_of(name) for name in ours]
    theirs = tuple(row.theirs for row in rows)
    if "source_embed.weight" in ours and config.source_vocab_size is None:
        theirs = (SHARED, *theirs)
    return Slot(ours, theirs, rows[0].to_theirs, rows[0].to_ours)


def position_tables(config: TransformerConfig) -> dict[str, Tensor]:
    """The computed tables under their Hugging Face names; Pegasus files hold them."""
    table = sinusoid(config.max_len, config.d_model, layout="halves")
    return {name: table.clone() for name in POSITIONS}


def completed(tensors: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """The file's tensors with the bias of the logits, which older files leave out where it is 0."""
    return {BIAS: torch.zeros(()).expand(1, vocab_size), **tensors}


def check_positions(tensors: Mapping[str, Tensor]) -> None:
    """Raises UserError if a file's position table is not the sinusoid that is computed here."""
    for name in POSITIONS:
        table = tensors.get(name)
        if table is None:
            continue
        same = table.dim() == 2 and torch.allclose(
            table.float(), sinusoid(*table.shape, layout="halves"), atol=5e-3
        )
        if not same:
            raise UserError(
                f"{name} is not the sinusoid, and everyhead's Transformer computes its "
                "positions; learned ones cannot be opened as this family."
            )
