"""The tokenizer of a published model folder, whichever files it is made of.

tokenizer.json                     all of it
vocab.txt                          BERT's WordPiece
vocab.json and merges.txt          byte-level BPE of GPT-2, RoBERTa and CLIP
spiece.model, tokenizer.model      SentencePiece of T5 and Llama
tokenizer_config.json              which pieces are special, how text is prepared
special_tokens_map.json, added_tokens.json, chat_template.jinja     more of the same
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from everyhead.data import byte_level, sentencepiece_file, wordpiece
from everyhead.data.special_pieces import CONFIG, ROLES, TOKENIZER, text_of
from everyhead.errors import UserError
from everyhead.files import read_json

SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model")
MERGES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
BERTS = {role: f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
ROBERTAS = {
    "bos": "<s>", "eos": "</s>", "sep": "</s>", "cls": "<s>", "unk": "<unk>", "pad": "<pad>",
    "mask": "<mask>",
}  # fmt: skip
# What each family's code takes where the files are silent.
DEFAULTS: dict[str, dict[str, str]] = {
    "bert": BERTS,
    "distilbert": BERTS,
    "gpt2": dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
    "roberta": ROBERTAS,
    "clip": {
        "unk": "<|endoftext|>",
        "bos": "<|startoftext|>",
        "eos": "<|endoftext|>",
        "pad": "<|endoftext|>",
    },
    "t5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
}
# Names by which special pieces are usually called, for a tokenizer.json that stands alone.
USUAL = {
    "bos": ("<s>", "<|startoftext|>", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>", "<|end_of_text|>"),
    "unk": ("<unk>", "[UNK]"),
    "sep": ("[SEP]",),
    "pad": ("<pad>", "[PAD]"),
    "cls": ("[CLS]",),
    "mask": ("[MASK]", "<mask>"),
}
# Whose code prepares a text by tokenizer_config.json, whatever tokenizer.json says.
BY_CONFIG = {
    **dict.fromkeys(("bert", "distilbert"), wordpiece.prepare_as_said),
    **dict.fromkeys(("gpt2", "roberta", "longformer"), byte_level.prepare_as_said),
}
# These put special pieces around a text themselves, whatever add_bos_token says.
OWN_FRAME = ("bert", "distilbert", "roberta", "clip", "t5")


def open_folder(folder: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer and the content of tokenizer_config.json, the other files' added.

    Raises:
        UserError: there is no tokenizer, it is broken, or of a kind that is not known here.
    """
    config = _config(folder)
    try:
        return _opened(folder, config)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(
            f"{folder / CONFIG}, or a file beside it that names pieces, has a value of another "
            f"form than a published one ({error}); compare it with one."
        ) from error


def _opened(folder: Path, config: dict[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    family = _family(folder, config)
    whole = (folder / TOKENIZER).is_file()
    if whole:
        inner = _read(folder / TOKENIZER)
        prepare = BY_CONFIG.get(_class(folder, config))
        if prepare is not None:
            prepare(inner, config)
    else:
        inner, family = _older(folder, family, config)
        config = _with_defaults(DEFAULTS.get(family, {}), config)
    if not any(f"{role}_token" in config for role in ROLES):
        config = _with_defaults(DEFAULTS.get(family) or _usual(inner), config)
    _add(inner, folder, config)
    if not whole:  # else tokenizer.json says itself what stands around a text
        _frame(inner, family, config)
    return inner, config


def has_tokenizer(folder: Path) -> bool:
    """Does the folder hold any of the files that `open_folder` opens?"""
    names = (TOKENIZER, "vocab.txt", *SENTENCEPIECE, *(first for first, _ in MERGES))
    return any((folder / name).is_file() for name in names)


def _config(folder: Path) -> dict[str, Any]:
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    named = folder / "special_tokens_map.json"
    if named.is_file() and "added_tokens_decoder" not in config:
        config |= {k: v for k, v in read_json(named).items() if config.get(k) is None}
    template = folder / "chat_template.jinja"
    if template.is_file():
        config["chat_template"] = _text(template)
    return config


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is broken: it is not UTF-8 ({error}). Copy it again.") from error


def _family(folder: Path, config: Mapping[str, Any]) -> str:
    """Whose tokenizer it is: by the class that is named, else by the model beside it."""
    name = str(config.get("tokenizer_class") or "")
    family = _without_suffix(name)
    return family if family in DEFAULTS else str(_model(folder).get("model_type") or "")


def _class(folder: Path, config: Mapping[str, Any]) -> str:
    """Whose code opens the tokenizer: the class that is named, else the model's own."""
    name = config.get("tokenizer_class") or _model(folder).get("tokenizer_class")
    return _without_suffix(str(name)) if name else str(_model(folder).get("model_type") or "")


def _without_suffix(name: str) -> str:
    return name.removesuffix("Fast").removesuffix("Tokenizer").lower()


def _model(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_json(path) if path.is_file() else {}


def _read(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{path} is not a whole tokenizer file ({error}).") from None


def _older(folder: Path, family: str, config: Mapping[str, Any]) -> tuple[Tokenizer, str]:
    """From the files that were usual before tokenizer.json, and whose tokenizer it turned out."""
    if (folder / "vocab.txt").is_file():
        return wordpiece.open_vocabulary(folder / "vocab.txt", config), "bert"
    for names in MERGES:
        vocabulary, merges = (folder / name for name in names)
        if vocabulary.is_file() and merges.is_file():
            return byte_level.open_merges(vocabulary, merges, config)
    for name in SENTENCEPIECE:
        if (folder / name).is_file():
            return _sentencepiece(folder / name, family, config), family
    raise UserError(
        f"There is no tokenizer in {folder}: neither {TOKENIZER}, vocab.txt, vocab.json with "
        f"merges.txt, nor {' or '.join(SENTENCEPIECE[:2])}."
    )


def _sentencepiece(path: Path, family: str, config: Mapping[str, Any]) -> Tokenizer:
    found = sentencepiece_file.read_pieces(path)
    if family in ("t5", "mt5") and found.model_type == sentencepiece_file.UNIGRAM:
        return sentencepiece_file.t5_tokenizer(found, int(config.get("extra_ids", 100)))
    if family == "llama" and found.model_type == sentencepiece_file.BPE:
        return sentencepiece_file.llama_tokenizer(
            found, prefix_every_part=bool(config.get("legacy", False))
        )
    raise UserError(
        f"{path} belongs to a model of type {family or 'unknown'!r}; from SentencePiece files "
        f"everyhead opens tokenizers of T5 and Llama. Save it as {TOKENIZER} first."
    )


def _with_defaults(defaults: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, Any]:
    named = {f"{role}_token": piece for role, piece in defaults.items()}
    return named | dict(config)


def _usual(inner: Tokenizer) -> dict[str, str]:
    there = {
        role: next((piece for piece in pieces if inner.token_to_id(piece) is not None), None)
        for role, pieces in USUAL.items()
    }
    return {role: piece for role, piece in there.items() if piece is not None}


def _add(inner: Tokenizer, folder: Path, config: Mapping[str, Any]) -> None:
    """Pieces that the files name besides the vocabulary, in the order of their ids."""
    given = {int(n): token for n, token in (config.get("added_tokens_decoder") or {}).items()}
    older = folder / "added_tokens.json"
    if older.is_file() and not given:
        given = {int(n): piece for piece, n in read_json(older).items()}
    known = {token.content for token in inner.get_added_tokens_decoder().values()}
    extra = [*(config.get("additional_special_tokens") or [])]
    more = config.get("extra_special_tokens") or []
    extra += more.values() if isinstance(more, dict) else more
    named = [config.get(f"{role}_token") for role in ROLES]
    for token in (*(token for _, token in sorted(given.items())), *named, *extra):
        if token is not None and text_of(token) not in known:
            known.add(text_of(token))
            inner.add_tokens([_added(token, special=token in named or token in extra)])


def _added(token: Any, *, special: bool) -> AddedToken:
    if not isinstance(token, dict):
        return AddedToken(str(token), special=special, normalized=False)
    flags = {k: token[k] for k in ("single_word", "lstrip", "rstrip", "normalized") if k in token}
    return AddedToken(token["content"], special=special or token.get("special", False), **flags)


def _frame(inner: Tokenizer, family: str, config: Mapping[str, Any]) -> None:
    """Beginning and end of a text as the config says them; Llama begins where it says nothing."""
    if family in OWN_FRAME:
        return
    said = "add_bos_token" in config or "add_eos_token" in config
    begins = config.get("add_bos_token", family == "llama" and not said)
    pieces = (
        (config.get("bos_token") if begins else None),
        (config.get("eos_token") if config.get("add_eos_token") else None),
    )
    first, last = ([] if token is None else [text_of(token)] for token in pieces)
    single, second = [*first, "$A:0", *last], [*(f"{piece}:1" for piece in first), "$B:1"]
    inner.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, *second, *(f"{piece}:1" for piece in last)],
        special_tokens=[(piece, inner.token_to_id(piece)) for piece in {*first, *last}],
    )
