"""The jobs of pictures on a few pictures of one shade, with models of a few thousand weights."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SMALL = {"image_size": 8, "patch_size": 4, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}
SHARES = {"validation_share": 0.25, "test_share": 0.25}
SHADES = {"dark": 40, "bright": 210}


def pictures(folder: Path, n: int = 14) -> dict[str, list[Path]]:
    """Dark and bright noise, a folder each."""
    rng, found = np.random.default_rng(0), {}
    for name, shade in SHADES.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        found[name] = [folder / name / f"{i}.png" for i in range(n)]
        for path in found[name]:
            pixels = rng.integers(shade - 40, shade + 40, (9, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    return found


def image(folder: Path) -> dict[str, Any]:
    pictures(folder / "shades")
    return {
        "data": {"files": [str(folder / "shades")], **SHARES},
        "moves": {"shift": 1, "flip": True},
        "model": {**SMALL, "dropout": 0.2},
        "train": TRAIN,
    }


def vqa(folder: Path) -> dict[str, Any]:
    lines = [
        f"{path}\t{text}\t{answer}"
        for name, paths in pictures(folder / "shades").items()
        for path in paths
        for text, answer in (
            ("is it dark?", "yes" if name == "dark" else "no"),
            ("how is it?", name),
        )
    ]
    (folder / "asked.tsv").write_text("\n".join(lines), encoding="utf-8")
    return {
        "data": {"files": [str(folder / "asked.tsv")], **SHARES, "questions": 1},
        "moves": {"shift": 1},
        "tokenizer": {"vocab_size": 120},
        "model": {**SMALL, "dropout": 0.2, "max_len": 12},
        "train": TRAIN,
    }


def clip(folder: Path) -> dict[str, Any]:
    lines = [
        f"{path}\ta {name} picture"
        for name, paths in pictures(folder / "shades").items()
        for path in paths
    ]
    (folder / "captions.tsv").write_text("\n".join(lines), encoding="utf-8")
    sizes = {"image_d_model": 16, "image_n_heads": 2, "image_n_layers": 1, "image_d_ff": 16}
    return {
        "data": {"files": [str(folder / "captions.tsv")], **SHARES},
        "tokenizer": {"vocab_size": 120},
        "model": {**SMALL, **sizes, "d_embed": 8, "max_len": 12},
        "train": TRAIN,
    }


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
CASES = {"image": image, "vqa": vqa, "clip": clip}
