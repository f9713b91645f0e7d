"""A folder laid out like opus-mt-en-zh as published, with a model taught here for some seconds."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from transformers import MarianConfig, MarianMTModel

from everyhead.data.batching import pad_rows
from everyhead.data.sentencepiece_tokenizer import SentencePiecePair
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.weights.folder import save_model
from tests.data import opus

N = "the id of padding"
# Every key of opus-mt-en-zh's config.json; numbers smaller, padding by its place.
CONFIG: dict[str, Any] = {
    "_name_or_path": "/tmp/Helsinki-NLP/opus-mt-en-zh",
    "_num_labels": 3,
    "activation_dropout": 0.0,
    "activation_function": "swish",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0,
    "bad_words_ids": [[N]],
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 32,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 2,
    "decoder_start_token_id": N,
    "dropout": 0.1,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 2,
    "eos_token_id": 0,
    "extra_pos_embeddings": N,
    "forced_eos_token_id": 0,
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "max_length": 512,
    "max_position_embeddings": 512,
    "model_type": "marian",
    "normalize_before": False,
    "normalize_embedding": False,
    "num_beams": 6,
    "num_hidden_layers": 2,
    "pad_token_id": N,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "task_specific_params": {"translation": {"prefix": ">>cmn_Hans<< "}},
    "use_cache": True,
}
PAIRS = [(f">>cmn_Hans<< {a}", b) for a, b in zip(opus.ENGLISH[:5], opus.CHINESE[:5], strict=True)]
LINES = [source for source, _ in PAIRS] + [
    ">>cmn_Hans<< The dog looked at the house in the rain.",
    ">>yue_Hant<< I read a book.",
    "He lives on the hill; where is the cat, pizza?",
    ">>cmn_Hans<< Are you going home?",
]


def published(values: Any, pad_id: int) -> Any:
    """CONFIG with the real id of padding."""
    if isinstance(values, dict):
        return {key: published(value, pad_id) for key, value in values.items()}
    if isinstance(values, list):
        return [published(value, pad_id) for value in values]
    return pad_id if values == N else values


def write(folder: Path, *, old: bool = False) -> MarianMTModel:
    """The folder, and their model from it; old: a .bin in half precision with everything in it."""
    pad_id = len(opus.write(folder)) - 1
    save_model(taught(pad_id), folder)
    theirs = MarianMTModel.from_pretrained(folder).eval()
    torch.manual_seed(2)
    with torch.no_grad():
        theirs.final_logits_bias.normal_(std=0.5)
        theirs.final_logits_bias[0, pad_id] = 0
    for name in ("model.safetensors", "generation_config.json"):
        (folder / name).unlink()
    if old:  # its tables of positions were computed, not trained
        state = {k: v if "positions" in k else v.half() for k, v in theirs.state_dict().items()}
        torch.save(state, folder / "pytorch_model.bin")
    else:
        theirs.save_pretrained(folder)
    sizes = {"vocab_size": pad_id + 1, "decoder_vocab_size": pad_id + 1}
    values = published(CONFIG, pad_id) | sizes
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    config = MarianConfig(**values)
    return MarianMTModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()


@cache
def taught(pad_id: int) -> Transformer:
    """Has read PAIRS for some seconds, so that each of its steps has one clear best piece."""
    with TemporaryDirectory() as name:
        opus.write(Path(name))
        tokenizer = SentencePiecePair.load(Path(name))
    torch.manual_seed(0)
    sizes = {"d_model": 32, "n_heads": 4, "n_encoder_layers": 2, "n_decoder_layers": 2, "d_ff": 48}
    model = Transformer(
        TransformerConfig(vocab_size=pad_id + 1, activation="silu", dropout=0.0, **sizes)
    )
    source, real = pad_rows([[*tokenizer.source.encode(a), 0] for a, _ in PAIRS], pad_id)
    rows = [tokenizer.target.encode(b) for _, b in PAIRS]
    target, target_real = pad_rows([[pad_id, *row] for row in rows], pad_id)
    labels, _ = pad_rows([[*row, 0] for row in rows], pad_id)
    optimizer = torch.optim.Adam(model.parameters(), 4e-3)
    for _ in range(60):
        logits = model(source, target, real, target_real)[target_real]
        loss = F.cross_entropy(logits, labels[target_real])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
