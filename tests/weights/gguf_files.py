"""Small .gguf files, written by the gguf package as llama.cpp's converter would."""

from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import torch
import transformers

from tests.models.decoders import stirred

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
PIECES = ["<s>", "</s>", "<unk>", *(chr(33 + i) for i in range(57))]


def llama(**changes: Any) -> transformers.LlamaForCausalLM:
    torch.manual_seed(2)
    fields = {"vocab_size": len(PIECES), "max_position_embeddings": 64, **SIZES, **HEADS}
    config = transformers.LlamaConfig(**{**fields, **changes})
    return stirred(transformers.LlamaForCausalLM(config), 3.0)


def their_name(name: str) -> str:
    """A tensor's name in the file."""
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    module, _, part = name.rpartition(".")
    if module in top:
        return f"{top[module]}.{part}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{MODULES[inner]}.{part}"


def turned_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row (i, i + d/2) of each head beside one another, by a plain loop."""
    d = rows.shape[0] // heads
    made = np.empty_like(rows)
    for head in range(heads):
        for i in range(d // 2):
            made[head * d + 2 * i] = rows[head * d + i]
            made[head * d + 2 * i + 1] = rows[head * d + d // 2 + i]
    return made


def write(
    path: Path, model: transformers.LlamaForCausalLM, kind: str = "F32", **values: Any
) -> Path:
    """The model as one file; `kind` of its matrices. values: more, or None to leave one out."""
    c = model.config
    writer = gguf.GGUFWriter(path, "llama")
    told = {
        "llama.block_count": c.num_hidden_layers,
        "llama.context_length": c.max_position_embeddings,
        "llama.embedding_length": c.hidden_size,
        "llama.feed_forward_length": c.intermediate_size,
        "llama.attention.head_count": c.num_attention_heads,
        "llama.attention.head_count_kv": c.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "llama.rope.freq_base": float(c.rope_parameters["rope_theta"]),
        "llama.rope.dimension_count": c.head_dim,
        "llama.vocab_size": c.vocab_size,
        **{name.replace("__", "."): value for name, value in values.items()},
    }
    for key, value in told.items():
        add(writer, key, value)
    quantised = gguf.GGMLQuantizationType[kind]
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        rows = tensor.numpy()
        for module, heads in (("q", c.num_attention_heads), ("k", c.num_key_value_heads)):
            if f".{module}_proj." in name:
                rows = turned_pairs(rows, heads)
        if rows.ndim == 1:
            writer.add_tensor(their_name(name), rows)
        else:
            packed = gguf.quants.quantize(rows, quantised)
            writer.add_tensor(their_name(name), packed, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """By the type of the value, as the converter has them."""
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
