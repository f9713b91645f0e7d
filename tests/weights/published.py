"""Checkpoints as they were published: their names, shapes and config.json, with random tensors.

tests/weights/keys/NAME.txt lists the tensors of a file, `{0..11}` standing for each layer and
`{a|b}` for both; NAME.json is its config.json (`id2label` by its number of labels). A copy of
reduced size keeps every name, layer and dtype; widths are divided, and random numbers are drawn.
(reformer-enwik8's list is that of transformers' class for its config, with its buffers of then.)
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyhead.layers.positions import sinusoid
from everyhead.tensors import write_tensors

KEYS = Path(__file__).parent / "keys"
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64}
CHOICE = re.compile(r"\{(\d+)\.\.(\d+)\}|\{([\w|]+)\}")
# Published size → reduced; what is not named stays.
SIZES: dict[str, dict[int, int]] = {
    "gpt2": {768: 24, 2304: 72, 3072: 96, 1024: 20, 50257: 60, 50256: 59},
    "bert-base-uncased": {768: 24, 3072: 40, 30522: 60, 512: 20},
    "bert-base-chinese": {768: 24, 3072: 40, 21128: 60, 512: 20},
    "t5-small": {512: 32, 64: 4, 2048: 40, 32128: 60},
    "flan-t5-base": {768: 48, 64: 4, 2048: 40, 32128: 60},
    "vit-base-patch16-224": {768: 24, 3072: 40, 224: 12, 16: 4, 197: 10, 1000: 7},
    "clip-vit-base-patch32": {
        **{512: 16, 768: 24, 2048: 40, 3072: 56, 49408: 60, 49407: 59, 77: 9},
        **{224: 12, 32: 4, 50: 10},
    },
    "opus-mt-en-zh": {512: 16, 2048: 40, 65001: 60, 65000: 59},
    "Llama-3.2-1B": {2048: 128, 512: 32, 64: 4, 8192: 40, 128256: 60, 128000: 58, 128001: 59},
    "longformer-base-4096": {768: 24, 3072: 40, 50265: 60, 4098: 22, 512: 4},
    "reformer-enwik8": {
        **{258: 60, 1024: 32, 2048: 64, 4096: 40, 65536: 32},
        **{128: 4, 256: 8, 512: 8, 768: 24},
    },
    "SmolLM2-135M": {576: 36, 192: 12, 1536: 40, 49152: 60},
}


SAME = {  # name → that of the tensor that it held too
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "lm_head.decoder.weight": "longformer.embeddings.word_embeddings.weight",
    "lm_head.decoder.bias": "lm_head.bias",
}


class Listed(NamedTuple):
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


def listed(checkpoint: str) -> list[Listed]:
    """Every tensor of the published file, in its full size."""
    found = []
    for line in _lines(checkpoint)[1:]:
        dtype, sizes, pattern = line.split(" ")
        shape = tuple(int(size) for size in sizes.split(",")) if sizes != "-" else ()
        found += [Listed(name, DTYPES[dtype], shape) for name in _names(pattern)]
    return found


def config_of(checkpoint: str) -> dict[str, Any]:
    """The published config.json."""
    values = json.loads((KEYS / f"{checkpoint}.json").read_text(encoding="utf-8"))
    if isinstance(values.get("id2label"), int):
        values["id2label"] = {str(n): f"LABEL_{n}" for n in range(values["id2label"])}
    return values


def write_reduced(checkpoint: str, folder: Path, seed: int = 0) -> dict[str, Tensor]:
    """A folder of the published layout in reduced size; its tensors come back."""
    sizes = SIZES[checkpoint]
    rng = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape in listed(checkpoint):
        small = tuple(sizes.get(size, size) for size in shape)
        tensors[name] = _tensor(name, dtype, small, rng)
    _tie(tensors)
    folder.mkdir(parents=True, exist_ok=True)
    file = _lines(checkpoint)[0].rpartition(" ")[2]
    if file.endswith(".bin"):
        torch.save(tensors, folder / file)
    else:
        write_tensors(folder / file, tensors)
    values = _reduced(config_of(checkpoint), sizes)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return tensors


def _lines(checkpoint: str) -> list[str]:
    return (KEYS / f"{checkpoint}.txt").read_text(encoding="utf-8").splitlines()


def _names(pattern: str) -> Iterator[str]:
    """`h.{0..11}.ln_1.{bias|weight}` → each name."""
    parts = CHOICE.split(pattern)  # text, first, last, choices, text, …
    choices = [
        [str(n) for n in range(int(first), int(last) + 1)] if first else several.split("|")
        for first, last, several in zip(parts[1::4], parts[2::4], parts[3::4], strict=True)
    ]
    for chosen in itertools.product(*choices):
        texts = parts[0::4]
        yield texts[0] + "".join(a + b for a, b in zip(chosen, texts[1:], strict=True))


def _tensor(name: str, dtype: torch.dtype, shape: tuple[int, ...], rng: Any) -> Tensor:
    if dtype == torch.int64:
        return torch.arange(shape[-1]).expand(shape).clone()
    if name.endswith(".attn.bias"):  # GPT-2's causal mask
        return torch.ones(shape).tril()
    if name.endswith("embed_positions.weight"):  # Marian's sinusoid
        return sinusoid(*shape, layout="halves")
    drawn = torch.randn(shape, generator=rng)
    return (0.2 * drawn + (1 if name.endswith(("norm.weight", "gamma")) else 0)).to(dtype)


def _tie(tensors: dict[str, Tensor]) -> None:
    """Names that held one tensor when the file was written."""
    table = tensors.get("shared.weight", tensors.get("model.shared.weight"))
    for name in tensors:
        if name.endswith("embed_tokens.weight") and table is not None:
            tensors[name] = table.clone()
    for again, first in SAME.items():
        if again in tensors and first in tensors:
            tensors[again] = tensors[first].clone()


def _reduced(value: Any, sizes: dict[int, int]) -> Any:
    if isinstance(value, dict):
        if "0" in value and len(value) in sizes:  # labels
            return dict(itertools.islice(value.items(), sizes[len(value)]))
        return {key: _reduced(each, sizes) for key, each in value.items()}
    if isinstance(value, list):
        return [_reduced(each, sizes) for each in value]
    return sizes.get(value, value) if type(value) is int else value
