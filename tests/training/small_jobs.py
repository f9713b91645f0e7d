"""Every job on data of a few kilobytes, with models of a few thousand weights.

A case is a function of a folder: it writes what the job reads there and returns a recipe's values.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.models.t5 import T5, T5Config
from everyhead.training.job import Tools
from everyhead.weights.as_task import load_as
from everyhead.weights.folder import load, save
from tests.training import picture_jobs

TOOLS = Tools(load, save, load_as)
TRAIN: dict[str, Any] = {
    "max_steps": 20,
    "batch_sentences": 4,
    "warmup": 4,
    "log_every": 3,
    "evaluate_every": 10,
    "save_every": 10,
    "precision": "fp32",
    "peak": 1e-2,
}
WORDS = [
    *("to", "be", "or", "not", "that", "is", "the", "question"),
    *("whether", "it", "was", "nobler", "in", "mind", "suffer", "slings"),
]


def text(seed: int, n_lines: int = 25) -> str:
    rng = np.random.default_rng(seed)
    lines = (" ".join(rng.choice(WORDS, rng.integers(3, 9))) + "." for _ in range(n_lines))
    return "\n".join(lines) + "\n"


def text_files(folder: Path, n: int = 6) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"text-{seed}.txt" for seed in range(n)]
    for seed, path in enumerate(paths):
        path.write_bytes(text(seed).encode("utf-8"))
    return [str(path) for path in paths]


def _data(folder: Path) -> dict[str, Any]:
    shares = {"validation_share": 0.2, "test_share": 0.2, "block_bytes": 200}
    return {"files": text_files(folder), **shares}


def gpt2(folder: Path) -> dict[str, Any]:
    return {
        "data": _data(folder),
        "tokenizer": {"vocab_size": 280},
        "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "max_len": 24, "dropout": 0.2},
        "train": TRAIN,
    }


def other_decoder(family: str, folder: Path) -> dict[str, Any]:
    """One that cannot keep the documents of a row apart: its rows end where a document ends."""
    numbers = {"family": family, "d_model": 16, "n_layers": 2, "max_len": 24, "dropout": 0.2}
    return gpt2(folder) | {"model": numbers}


def bert(folder: Path) -> dict[str, Any]:
    numbers = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 32, "max_len": 24}
    return {
        "data": _data(folder),
        "tokenizer": {"vocab_size": 120},
        "model": {**numbers, "dropout": 0.2},
        "train": TRAIN,
    }


def longformer(folder: Path) -> dict[str, Any]:
    """Gaps alone, over long stretches."""
    given = bert(folder)
    return given | {"model": {**given["model"], "family": "longformer", "windows": 4}}


def t5(folder: Path) -> dict[str, Any]:
    numbers = {"d_model": 16, "n_heads": 2, "d_head": 8, "n_layers": 1, "d_ff": 32, "max_len": 24}
    return {
        "data": _data(folder),
        "tokenizer": {"vocab_size": 180},
        "model": {**numbers, "dropout": 0.2},
        "train": TRAIN,
    }


def decoder(folder: Path, *, n_layers: int = 3) -> Path:
    """A small Llama's folder, with its tokenizer."""
    tokenizer = TextTokenizer.train([text(50)], kind="byte-level", vocab_size=280)
    numbers = {"d_model": 16, "n_heads": 2, "n_kv_heads": 1, "d_ff": 32, "max_len": 64}
    ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    torch.manual_seed(7)
    model = Llama(LlamaConfig(vocab_size=tokenizer.vocab_size, n_layers=n_layers, **numbers, **ids))
    save(model, tokenizer, folder)
    return folder


def tune(folder: Path) -> dict[str, Any]:
    start = decoder(folder / "start")
    train = TRAIN | {"freeze_layers": 1, "freeze_embeddings": True, "layer_decay": 0.8}
    return {
        "data": _data(folder),
        "model": {"start": str(start), "length": 24},
        "train": train,
    }


def halves(folder: Path) -> Path:
    """A small T5's folder, with its tokenizer; made once, as equal pieces are chosen by chance."""
    if (folder / "config.json").is_file():
        return folder
    tokenizer = TextTokenizer.train([text(50)], kind="unigram", vocab_size=180)
    numbers = {"d_model": 16, "n_heads": 2, "d_head": 8, "d_ff": 32}
    torch.manual_seed(7)
    config = T5Config(
        vocab_size=tokenizer.vocab_size, n_encoder_layers=2, n_decoder_layers=1, **numbers
    )
    save(T5(config), tokenizer, folder)
    return folder


def tune_pairs(folder: Path) -> dict[str, Any]:
    start = halves(folder / "start")
    lines = [f"{line}\t{line.split()[-1]}" for line in text(3, 60).splitlines()]
    (folder / "pairs.tsv").write_bytes("\n".join(lines).encode("utf-8"))
    shares = {"validation_share": 0.2, "test_share": 0.2, "prefix": "last: "}
    return {
        "data": {"files": [str(folder / "pairs.tsv")], **shares},
        "model": {"start": str(start), "max_len": 40, "dropout": 0.2},
        "train": TRAIN | {"freeze_layers": 1, "layer_decay": 0.8},
    }


CASES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "pretrain-gpt2": gpt2,
    "pretrain-gpt2 recurrent": partial(other_decoder, "recurrent"),
    "pretrain-gpt2 convolutional": partial(other_decoder, "convolutional"),
    "pretrain-bert": bert,
    "pretrain-bert longformer": longformer,
    "pretrain-t5": t5,
    "tune": tune,
    "tune-pairs": tune_pairs,
    **picture_jobs.CASES,
}


def values(case: str, folder: Path) -> dict[str, Any]:
    return {"name": "small", "job": case.partition(" ")[0]} | CASES[case](folder)
