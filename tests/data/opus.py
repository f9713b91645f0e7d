"""A tokenizer laid out like those of published translation models, learnt here."""

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import sentencepiece

ENGLISH = [
    "The cat sat on the mat and looked at the dog.",
    "We walk home in the rain, and read a book.",
    "A small house stands on the hill; nobody lives in it.",
    "Where are you going? I am going to the station.",
    "He said: “It’s 25 °C today — isn’t it?”",
] * 4
CHINESE = [
    "猫坐在垫子上看着狗。",
    "下雨了，我们走回家去看书。",
    "山上有一座小房子，没有人住在里面。",
    "你去哪儿？我去车站。",
    "他说：“今天二十五度，是吗？”",
] * 4
CODES = [">>cmn_Hans<<", ">>yue_Hant<<"]


@cache
def spm(side: str, **options: Any) -> bytes:
    """A SentencePiece model, bytes of its file."""
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH if side == "source" else CHINESE),
        model_writer=made,
        vocab_size=400 if "byte_fallback" in options else 90,
        hard_vocab_limit=False,
        character_coverage=1.0,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return made.getvalue()


def pieces(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def vocabulary(*models: bytes, codes: list[str] = CODES) -> dict[str, int]:
    """`</s>` first, `<unk>` second, `<pad>` last; a few pieces are missing, as in real ones."""
    found = dict.fromkeys(["</s>", "<unk>", *codes])
    for model in models:
        found |= dict.fromkeys(p for p in pieces(model)[3:] if p not in ("z", "狗", "▁read"))
    return {piece: i for i, piece in enumerate([*found, "<pad>"])}


def write(folder: Path, *, separate: bool = False, **options: Any) -> dict[str, int]:
    """The files of a published folder's tokenizer; returns the (target's) vocabulary."""
    models = {side: spm(side, **options) for side in ("source", "target")}
    for side, model in models.items():
        (folder / f"{side}.spm").write_bytes(model)
    config: dict[str, Any] = {"source_lang": "en", "target_lang": "zh", "model_max_length": 512}
    if separate:
        config |= {"separate_vocabs": True}
        tables = {"vocab.json": [models["source"]], "target_vocab.json": [models["target"]]}
    else:
        tables = {"vocab.json": list(models.values())}
    found: dict[str, int] = {}
    for name, several in tables.items():
        found = vocabulary(*several, codes=[] if separate else CODES)
        (folder / name).write_text(json.dumps(found), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return found
