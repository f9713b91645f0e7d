"""Random tiny models of transformers, one line an architecture, and what they are given."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers as hf
from torch import Tensor, nn

WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
SIZE = {**WIDE, "num_attention_heads": 4}
IDS = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
TEXT = {**SIZE, "vocab_size": 61, "max_position_embeddings": 64, **IDS}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
PAIR = {
    "d_model": 32,
    "vocab_size": 61,
    **{f"{half}_{what}": n for half in ("encoder", "decoder") for what, n in
       (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))},
    "max_position_embeddings": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    **IDS,
}  # fmt: skip
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 61,
      "decoder_start_token_id": 2, **IDS}  # fmt: skip
IMAGE = {**SIZE, "image_size": 16, "patch_size": 4}


class Kind(NamedTuple):
    """A model's class, its config's, the config, and which inputs it takes."""

    model: str
    config: str
    values: dict[str, Any]
    takes: str  # "text", "pair", "image", "both"


# fmt: off
KINDS: dict[str, Kind] = {
    "bert":     Kind("BertModel", "BertConfig", TEXT, "text"),
    "albert":   Kind("AlbertModel", "AlbertConfig",
                     {**TEXT, "num_hidden_layers": 4, "num_hidden_groups": 2,
                      "embedding_size": 16}, "text"),
    "gpt2":     Kind("GPT2LMHeadModel", "GPT2Config",
                     {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, **IDS}, "text"),
    "llama":    Kind("LlamaForCausalLM", "LlamaConfig", GROUPED, "text"),
    "qwen2":    Kind("Qwen2ForCausalLM", "Qwen2Config", GROUPED, "text"),
    "qwen3":    Kind("Qwen3ForCausalLM", "Qwen3Config", GROUPED, "text"),
    "mistral":  Kind("MistralForCausalLM", "MistralConfig",
                     {**GROUPED, "sliding_window": 4}, "text"),
    "gemma2":   Kind("Gemma2ForCausalLM", "Gemma2Config",
                     {**GROUPED, "sliding_window": 4, "attn_logit_softcapping": 0.05}, "text"),
    "gpt-oss":  Kind("GptOssForCausalLM", "GptOssConfig",
                     {**GROUPED, "sliding_window": 4, "num_local_experts": 2,
                      "num_experts_per_tok": 1}, "text"),
    "gpt-neox": Kind("GPTNeoXForCausalLM", "GPTNeoXConfig", TEXT, "text"),
    "opt":      Kind("OPTForCausalLM", "OPTConfig",
                     {"hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 48, "vocab_size": 61,
                      "num_attention_heads": 4, "max_position_embeddings": 64,
                      "word_embed_proj_dim": 32, **IDS}, "text"),
    "t5":       Kind("T5ForConditionalGeneration", "T5Config", T5, "pair"),
    "bart":     Kind("BartForConditionalGeneration", "BartConfig", PAIR, "pair"),
    "marian":   Kind("MarianMTModel", "MarianConfig", PAIR, "pair"),
    "pegasus":  Kind("PegasusForConditionalGeneration", "PegasusConfig", PAIR, "pair"),
    "vit":      Kind("ViTModel", "ViTConfig", IMAGE, "image"),
    "clip":     Kind("CLIPModel", "CLIPConfig",
                     {"text_config": TEXT, "vision_config": IMAGE, "projection_dim": 16}, "both"),
}
# fmt: on
READERS = ("bert", "albert")
WRITERS = [
    name for name, kind in KINDS.items() if kind.takes in ("text", "pair") and name not in READERS
]
PAIRS = [name for name, kind in KINDS.items() if kind.takes == "pair"]


def make(name: str, **more: Any) -> Any:
    """The architecture with random weights, in eval, on the attention it chooses itself."""
    torch.manual_seed(0)
    kind = KINDS[name]
    model = getattr(hf, kind.model)(getattr(hf, kind.config)(**{**kind.values, **more})).eval()
    with torch.no_grad():
        for p in model.parameters():  # so that rows of the matrices differ from their mean
            p.add_(0.2 * torch.randn_like(p))
    return model


def ids(n_rows: int, length: int, seed: int = 1) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(3, 61, (n_rows, length), generator=rng)


def inputs(name: str, padding: str = "none") -> dict[str, Tensor]:
    """Two rows; the second is three tokens shorter where there is padding."""
    takes = KINDS[name].takes
    image = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    if takes == "image":
        return {"pixel_values": image}
    real = torch.ones(2, 9, dtype=torch.long)
    if padding != "none":
        real[1, slice(0, 3) if padding == "left" else slice(6, 9)] = 0
    given = {"input_ids": ids(2, 9)}
    if padding != "none":
        given["attention_mask"] = real
    if takes == "pair":
        given["decoder_input_ids"] = ids(2, 5, seed=3)
    return given | ({"pixel_values": image} if takes == "both" else {})


def eager_attentions(model: Any, given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """`output_attentions` of the same model on its eager attention, by the stack of a place."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**given, output_attentions=True)
    model.set_attn_implementation(before)
    if "text_model_output" in out:
        text, vision = out.text_model_output, out.vision_model_output
        return {"text": list(text.attentions), "vision": list(vision.attentions)}
    if "encoder_attentions" in out:
        return {
            "encoder": list(out.encoder_attentions),
            "decoder.self": list(out.decoder_attentions),
            "decoder.cross": list(out.cross_attentions),
        }
    half = "encoder" if KINDS[model_name(model)].takes == "image" else None
    half = half or ("encoder" if model_name(model) in READERS else "decoder")
    return {half: list(out.attentions)}


def model_name(model: nn.Module) -> str:
    return next(name for name, kind in KINDS.items() if kind.model == type(model).__name__)


def tensors_of(output: Any) -> list[Tensor]:
    """Every tensor of a model's output, nested ones too."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    if not isinstance(parts, Callable) and isinstance(output, dict | tuple | list):  # type: ignore[arg-type]
        return [x for part in parts for x in tensors_of(part)]
    return []
