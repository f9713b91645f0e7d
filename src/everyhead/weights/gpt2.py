"""GPT-2 in Hugging Face's folders: GPT2LMHeadModel, with and without `transformer.` before names.

Their maps are (in, out), and q, k and v are one map `c_attn`; three of our tensors are its thirds.
Old files hold the causal mask as `attn.bias`, `attn.masked_bias`.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.weights import ends
from everyhead.weights.config_table import ACTIVATIONS, ConfigTable, Field, validated
from everyhead.weights.kind import Kind
from everyhead.weights.names import NameTable, Row
from everyhead.weights.state import Slot, own_slots
from everyhead.weights.tidying import tidier

FUNCTIONS = {"gelu_new": "gelu_tanh", **ACTIVATIONS}  # the name that other readers look for
# fmt: off
TABLE = ConfigTable(
    "GPT2",
    (
        Field("vocab_size",        "vocab_size", 50_257),
        Field("d_model",           "n_embd", 768),
        Field("n_heads",           "n_head", 12),
        Field("n_layers",          "n_layer", 12),
        Field("d_ff",              "n_inner", None),
        Field("max_len",           ("n_positions", "n_ctx"), 1024),
        Field("dropout",           "resid_pdrop", 0.1),
        Field("embed_dropout",     "embd_pdrop", 0.1),
        Field("attention_dropout", "attn_pdrop", 0.1),
        Field("activation",        "activation_function", "gelu_new", FUNCTIONS),
        Field("norm_eps",          "layer_norm_epsilon", 1e-5),
        Field("scale_by_layer",    "scale_attn_by_inverse_layer_idx", False),
        Field("tie_output",        "tie_word_embeddings", True),
        Field("bos_id",            "bos_token_id", None),
        Field("pad_id",            "pad_token_id", None),
    ),
    fixed={"scale_attn_weights": True, "add_cross_attention": False},
)
MODULES = (  # of a layer; True: a map, which lies transposed
    ("self_attn_norm",         "ln_1",        False),
    ("self_attn.o_proj",       "attn.c_proj", True),
    ("feed_forward_norm",      "ln_2",        False),
    ("feed_forward.up_proj",   "mlp.c_fc",    True),
    ("feed_forward.down_proj", "mlp.c_proj",  True),
)
# fmt: on
IDS = {"bos_token_id": 50_256, "eos_token_id": 50_256}  # what their code takes for silence
FUSED, THIRDS = "attn.c_attn", ("q_proj", "k_proj", "v_proj")


def turned(tensor: Tensor) -> Tensor:
    """(out, in) ↔ (in, out); a bias stays."""
    return tensor.t().contiguous()


NAMES = NameTable(
    [
        Row("token_embed.weight", "transformer.wte.weight"),
        Row("positions.weight", "transformer.wpe.weight"),
        Row("decoder.norm.weight", "transformer.ln_f.weight"),
        Row("decoder.norm.bias", "transformer.ln_f.bias"),
        Row("output_head.weight", "lm_head.weight"),
        *(
            Row(
                f"decoder.blocks.{{n}}.{ours}.{part}",
                f"transformer.h.{{n}}.{theirs}.{part}",
                *((turned, turned) if turns and part == "weight" else ()),
            )
            for ours, theirs, turns in MODULES
            for part in ("weight", "bias")
        ),
    ]
)


def config(values: Mapping[str, Any], where: object) -> GPT2Config:
    """Our config for the content of a config.json.

    Raises:
        UserError: a value is one that this GPT-2 cannot express; it is named.
    """
    values = IDS | dict(values)
    if "n_positions" in values:  # theirs; n_ctx is an older name, which their code does not read
        values.pop("n_ctx", None)
    fields = TABLE.read(values, where) | ends.fields(values[ends.EOS])
    return validated(GPT2Config, fields, where)


def values(model: GPT2) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        **TABLE.write(model.config),
        ends.EOS: ends.value(model.config),
        "reorder_and_upcast_attn": False,
        "use_cache": True,
        "dtype": "float32",
    }


def slots(model: GPT2) -> list[Slot]:
    """Where each tensor lies; q, k and v of a layer have one place, each its third of it."""
    found = []
    for slot in own_slots(model):
        name = slot.ours[0]
        if name == "output_head.bias":
            continue  # zeros: no piece is closed
        layer, _, rest = name.partition(".self_attn.")
        module, _, part = rest.partition(".")
        if module in THIRDS:
            found.append(_third(model, layer, module, part))
            continue
        rows = [NAMES.row_of(each) for each in slot.ours]
        theirs = tuple(row.theirs for row in rows)
        found.append(Slot(slot.ours, theirs, rows[0].to_theirs, rows[0].to_ours))
    return found


def _third(model: GPT2, layer: str, module: str, part: str) -> Slot:
    """One of q, k, v in `c_attn`: written as the whole, read as its own third."""
    number = layer.rpartition(".")[2]
    attention = model.decoder.blocks[int(number)].self_attn
    assert isinstance(attention, torch.nn.Module)

    def to_theirs(_: Tensor) -> Tensor:
        thirds = [attention.get_parameter(f"{each}.{part}").detach() for each in THIRDS]
        joined = torch.cat([third.to("cpu", torch.float32) for third in thirds])
        return turned(joined) if part == "weight" else joined

    def to_ours(fused: Tensor) -> Tensor:
        joined = fused.t() if part == "weight" else fused
        return joined.chunk(3)[THIRDS.index(module)].contiguous()

    theirs = f"transformer.h.{number}.{FUSED}.{part}"
    return Slot((f"{layer}.self_attn.{module}.{part}",), (theirs,), to_theirs, to_ours)


KIND = Kind(
    family="gpt2",
    model_types=("gpt2",),
    config=config,
    values=values,
    slots=slots,
    tidy=tidier(
        prefix="transformer.",
        outside=("lm_head.", "score.", "multiple_choice_head."),
        buffers=(r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",),
    ),
    spare=("score.", "multiple_choice_head."),
    generation=ends.generation,
)
