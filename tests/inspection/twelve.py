"""Small random models of transformers, one line a family, for tests that must hold for all."""

from typing import Any

import torch
import transformers

TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIRS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "decoder_start_token_id": 1,
    **ENDS,
}
LLAMA = {
    **TINY,
    **ENDS,
    "intermediate_size": 64,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
PATCHES = {"image_size": 16, "patch_size": 4, "hidden_size": 32, "intermediate_size": 64}
PATCHES |= {"num_hidden_layers": 2, "num_attention_heads": 4}
CLIP_TEXT = {**TINY, "intermediate_size": 64, "max_position_embeddings": 64}
CLIP_TEXT |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 98}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 99}

# name: (class, config's class, config)
TWELVE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", {**TINY, **ENDS, "intermediate_size": 64}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64, **ENDS},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "qwen": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 4}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**LLAMA, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8},
    ),
    "t5": ("T5ForConditionalGeneration", "T5Config", {**T5, **ENDS, "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", PAIRS),
    "marian": ("MarianMTModel", "MarianConfig", PAIRS),
    "vit": ("ViTForImageClassification", "ViTConfig", {**PATCHES, "num_labels": 3}),
    "clip": (
        "CLIPModel",
        "CLIPConfig",
        {"text_config": CLIP_TEXT, "vision_config": PATCHES, "projection_dim": 16},
    ),
    "roberta": (
        "RobertaModel",
        "RobertaConfig",
        {**TINY, "intermediate_size": 64, "max_position_embeddings": 66, "pad_token_id": 1},
    ),
}


def build(name: str, **changes: object) -> Any:
    """The family's small model in eval, with weights large enough that every part matters."""
    kind, config, values = TWELVE[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**values | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif parameter.requires_grad:  # Marian's sinusoids are no weights
                parameter.mul_(4)
    return model
