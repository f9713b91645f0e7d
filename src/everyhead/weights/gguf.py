"""A .gguf file of the Llama kind, as llama.cpp writes and publishes them: model and tokenizer.

In it the rows of q and k stand in another order: llama.cpp turns the pairs (2i, 2i + 1) of a head,
as the rotary paper does, and the published code turns (i, i + d/2). How angles are scaled for
longer texts: weights/gguf_scaling.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.weights.config_table import validated
from everyhead.weights.fetch import NICKNAMES, fetch, fetched
from everyhead.weights.gguf_file import GgufFile
from everyhead.weights.gguf_scaling import DIVISORS, turned
from everyhead.weights.gguf_tokenizer import tokenizer_of
from everyhead.weights.names import Change, NameTable, Row
from everyhead.weights.state import Slot, Undrawn, fill, own_slots

SUFFIX = ".gguf"
# fmt: off
MODULES = (  # of a layer
    ("self_attn.q_proj",       "attn_q"),
    ("self_attn.k_proj",       "attn_k"),
    ("self_attn.v_proj",       "attn_v"),
    ("self_attn.o_proj",       "attn_output"),
    ("self_attn_norm",         "attn_norm"),
    ("feed_forward.gate_proj", "ffn_gate"),
    ("feed_forward.up_proj",   "ffn_up"),
    ("feed_forward.down_proj", "ffn_down"),
    ("feed_forward_norm",      "ffn_norm"),
)
FIELDS = (  # ours, theirs, whether a file may lack it
    ("d_model",      "embedding_length",                 False),
    ("n_heads",      "attention.head_count",             False),
    ("n_kv_heads",   "attention.head_count_kv",          True),
    ("d_head",       "attention.key_length",             True),
    ("d_ff",         "feed_forward_length",              False),
    ("n_layers",     "block_count",                      False),
    ("max_len",      "context_length",                   False),
    ("norm_eps",     "attention.layer_norm_rms_epsilon", False),
    ("rotary_base",  "rope.freq_base",                   True),
)
# fmt: on
IDS = {"bos_id": "bos", "eos_id": "eos", "pad_id": "padding"}
MORE_ENDS = ("eot", "eom")
NAMES = NameTable(
    [
        Row("token_embed.weight", "token_embd.weight"),
        Row("decoder.norm.weight", "output_norm.weight"),
        Row("output_head.weight", "output.weight"),
        *(
            Row(f"decoder.blocks.{{n}}.{ours}.{part}", f"blk.{{n}}.{theirs}.{part}")
            for ours, theirs in MODULES
            for part in ("weight", "bias")
        ),
    ]
)


def gguf_at(path: Path) -> Path | None:
    """The file that the path names, or the only one of a folder without a config.json."""
    if not path.is_dir():
        return path if path.suffix.lower() == SUFFIX else None
    found = sorted(path.glob(f"*{SUFFIX}"))
    return found[0] if len(found) == 1 and not (path / "config.json").exists() else None


def gguf_named(place: Path | str) -> Path | None:
    """The .gguf file that a path or a name such as `smollm2` stands for, None: it is no such file.

    A name of everyhead's own that is not on this machine is fetched, as for other models.

    Raises:
        UserError: that failed.
    """
    path = Path(place).expanduser()
    if path.exists() or isinstance(place, Path):
        return gguf_at(path)
    if place in NICKNAMES:
        return gguf_at((fetched(place) or fetch(place)).folder)
    return gguf_at(path)


def open_gguf(
    path: Path | str, changes: Mapping[str, Any] | None = None
) -> tuple[Llama, TextTokenizer | None]:
    """The model, float32, on the CPU, in eval mode, and its tokenizer, if the file has one.

    changes: fields of the config that shall be other than the file says, such as dropout.

    Raises:
        UserError: no such file, it is broken, or it is of a kind that everyhead does not have.
    """
    file = GgufFile(path)
    config = config_of(file)
    if changes:
        config = validated(LlamaConfig, config.model_dump() | dict(changes), f"{path}, changed,")
    model = _unfilled(config, file)
    tensors = {name: file.tensor(name) for name in file.entries if name != DIVISORS}
    fill(model, tensors, slots(model), where=file.path, described="what it says of itself")
    tokenizer = tokenizer_of(file.values, file.path)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{file.path} has {tokenizer.vocab_size} pieces and rows for {config.vocab_size}; it "
            "is broken."
        )
    return model.eval(), tokenizer


def _unfilled(config: LlamaConfig, file: GgufFile) -> Llama:
    """The model whose start is not drawn; a broken file may ask for more than there is room for."""
    if config.n_layers > len(file.entries):
        raise UserError(
            f"{file.path} says it has {config.n_layers} layers and holds {len(file.entries)} "
            "tensors; it is broken."
        )
    try:
        with Undrawn():
            return Llama(config)
    except (ValueError, RuntimeError, ArithmeticError, MemoryError) as error:
        raise UserError(
            f"{file.path} describes no Llama that fits here: {str(error).splitlines()[0]}."
        ) from error


def config_of(file: GgufFile) -> LlamaConfig:
    """Our config for the file's values.

    Raises:
        UserError: a family, or a value, that this Llama cannot express; it is named.
    """
    values, where = file.values, file.path
    family = values.get("general.architecture")
    if family != "llama":
        raise UserError(
            f"{where} holds a model of the kind {family!r}; of .gguf files everyhead opens the "
            "kind 'llama'. Its Hugging Face folder may be openable."
        )
    if values.get("llama.expert_count"):
        raise UserError(f"{where} is a mixture of experts, which everyhead's Llama is not.")
    fields: dict[str, Any] = {}
    for ours, theirs, may_lack in FIELDS:
        found = values.get(f"llama.{theirs}")
        if found is not None:
            fields[ours] = found
        elif not may_lack:
            raise UserError(f"{where} lacks llama.{theirs}; is the whole file there?")
    table = file.entries.get("token_embd.weight")
    fields |= {
        "vocab_size": table.shape[0] if table is not None and table.shape else 0,
        "tie_output": "output.weight" not in file.entries,
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "mlp_bias": "blk.0.ffn_up.bias" in file.entries,
        "more_eos_ids": _ends(values),
    }
    ids = {ours: values.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in IDS.items()}
    config = validated(LlamaConfig, fields | ids, where)
    return turned(config, file)


def _ends(values: dict[str, Any]) -> tuple[int, ...]:
    first = values.get("tokenizer.ggml.eos_token_id")
    found = (values.get(f"tokenizer.ggml.{name}_token_id") for name in MORE_ENDS)
    return tuple({number: None for number in found if number is not None and number != first})


def slots(model: Llama) -> list[Slot]:
    """Where each tensor lies."""
    found = []
    for slot in own_slots(model):
        if slot.ours == ("output_head.bias",):
            continue  # zeros: no piece is closed
        heads = {"q_proj": model.config.n_heads, "k_proj": model.config.n_kv_heads}
        module = slot.ours[0].split(".")[-2]
        changes = _reorder(heads[module]) if module in heads else ()
        found.append(Slot(slot.ours, tuple(NAMES.row_of(n).theirs for n in slot.ours), *changes))
    return found


def _reorder(heads: int) -> tuple[Change, Change]:
    """Rows of each head: (half, pair) ↔ (pair, half)."""

    def to_theirs(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()

    def to_ours(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()

    return to_theirs, to_ours
