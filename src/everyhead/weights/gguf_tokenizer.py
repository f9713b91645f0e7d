"""The tokenizer inside a GGUF file: byte-level BPE ("gpt2"), or SentencePiece's BPE ("llama").

How a text is cut before its pieces are merged, `tokenizer.ggml.pre` says by a name; what the names
mean stands in llama.cpp's code (ggml-org/llama.cpp, src/llama-vocab.cpp) and in the tokenizer.json
of the models that they are called after.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from everyhead.data.sentencepiece_file import SPACE, Pieces, llama_tokenizer
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError

CONTROL, USER_DEFINED = 3, 4
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}
# Letters, digits by threes, other signs, each with the space before it; line ends apart.
LLAMA3S = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2S = ("gpt-2", "gpt2", "mpt", "olmo", "phi-2", "roberta-bpe")
DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")
LLAMAS = ("llama-bpe", "llama-v3", "llama3", "falcon3", "dbrx", "smaug-bpe")


def tokenizer_of(values: Mapping[str, Any], where: object) -> TextTokenizer | None:
    """The tokenizer that the file's values describe, None where it holds none.

    Raises:
        UserError: it is of a kind that is not known here, or its parts do not fit each other.
    """
    kind = values.get("tokenizer.ggml.model")
    if kind is None:
        return None
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise UserError(
            f"{where} holds a tokenizer of type {kind!r}; everyhead opens gpt2 and llama. Give "
            "the model folder it was made of instead."
        )
    try:
        inner = makers[kind](values)
        config = _config(values)
        _frame(inner, values, config)
        return TextTokenizer(inner, config)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{where} holds no whole tokenizer ({error}).") from error


def _byte_level(values: Mapping[str, Any]) -> Tokenizer:
    """BPE over bytes, Radford et al. 2019 section 2.2."""
    pieces, merges = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.merges"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        raise UserError("a piece stands in the vocabulary twice")
    pre = str(values.get("tokenizer.ggml.pre"))
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    inner = Tokenizer(models.BPE(vocabulary, pairs, ignore_merges=pre in LLAMAS))
    inner.pre_tokenizer = _cuts(pre)
    inner.decoder = decoders.ByteLevel()
    inner.add_tokens(_added(values))
    return inner


def _cuts(pre: str) -> Any:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in GPT2S:
        return plain
    if pre in DIGIT_BY_DIGIT:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    if pre in LLAMAS:
        runs = pre_tokenizers.Split(Regex(LLAMA3S), "isolated")
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([runs, spelled])
    raise UserError(
        f"its text is cut by the rule {pre!r} (tokenizer.ggml.pre), which is not known here; known "
        f"are {', '.join((*GPT2S, *DIGIT_BY_DIGIT, *LLAMAS))}"
    )


def _sentencepiece(values: Mapping[str, Any]) -> Tokenizer:
    """BPE over characters by the pieces' scores; unknown characters as bytes."""
    columns = [values[f"tokenizer.ggml.{name}"] for name in ("tokens", "scores", "token_type")]
    found = Pieces(
        tuple(zip(*columns, strict=True)),
        model_type=2,
        unk_id=values.get("tokenizer.ggml.unknown_token_id", 0),
        byte_fallback=True,
        charsmap=b"",
    )
    inner = llama_tokenizer(found, prefix_every_part=True)
    prefixed = values.get("tokenizer.ggml.add_space_prefix", True)
    spaces = normalizers.Replace(" ", SPACE)
    # One space more before each part, where Metaspace adds none to a part that begins with one.
    steps = [normalizers.Prepend(SPACE), spaces] if prefixed else [spaces]
    inner.normalizer, inner.pre_tokenizer = normalizers.Sequence(steps), None
    if not prefixed:
        inner.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    return inner


def _added(values: Mapping[str, Any]) -> list[AddedToken]:
    """Control pieces are special; user-defined ones are cut out whole, too."""
    pieces, kinds = values["tokenizer.ggml.tokens"], values.get("tokenizer.ggml.token_type", [])
    return [
        AddedToken(piece, normalized=False, special=kind == CONTROL)
        for piece, kind in zip(pieces, kinds, strict=False)
        if kind in (CONTROL, USER_DEFINED)
    ]


def _config(values: Mapping[str, Any]) -> dict[str, Any]:
    """What tokenizer_config.json would say."""
    pieces, config = values["tokenizer.ggml.tokens"], {}
    for role, name in ROLES.items():
        number = values.get(f"tokenizer.ggml.{name}_token_id")
        if number is None:
            continue
        if not 0 <= number < len(pieces):
            raise UserError(f"{name}_token_id {number} is outside its {len(pieces)} pieces")
        config[f"{role}_token"] = pieces[number]
    template = values.get("tokenizer.chat_template")
    return config if template is None else config | {"chat_template": template}


def _frame(inner: Tokenizer, values: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """The beginning and the end that go around a text."""
    kind, pre = values["tokenizer.ggml.model"], values.get("tokenizer.ggml.pre")
    begins = values.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in LLAMAS)
    ends = values.get("tokenizer.ggml.add_eos_token", False)
    first = [config["bos_token"]] if begins and "bos_token" in config else []
    last = [config["eos_token"]] if ends and "eos_token" in config else []
    if first or last:
        inner.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            pair=[*first, "$A", *last, *(f"{piece}:1" for piece in first), "$B:1"]
            + [f"{piece}:1" for piece in last],
            special_tokens=[(piece, inner.token_to_id(piece)) for piece in {*first, *last}],
        )
