r"""Byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) made lossless, in two kinds.

"byte-fallback": merges over characters; a character that training saw too seldom is written as
its UTF-8 bytes, one of the pieces <0x00> … <0xFF>, as in SentencePiece (Kudo & Richardson 2018,
arXiv:1808.06226).
"byte-level": merges over UTF-8 bytes (Radford et al. 2019), each byte shown as one printable
character.

The text is cut into runs first and merges stay inside a run: a word with the space before it,
one digit, a run of punctuation, white space. So no merge makes `</s>` or `<0x41>`, which mix
letters, digits and punctuation: what looks like a special token in a text stays text. Spaces
are kept as spaces: SentencePiece's "▁" for a space could not be told from a "▁" in the text.

Ids: `</s>` 0, `<unk>` 1, 256 bytes, characters, merged pieces, and `<pad>` last.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, get_args

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from everyhead.errors import UserError

Kind = Literal["byte-fallback", "byte-level"]
EOS, UNK, PAD = "</s>", "<unk>", "<pad>"
FIXED = 259  # three specials and 256 bytes
RUNS = (
    r" ?[\p{L}\p{M}]+(?:['’][\p{L}\p{M}]+)*"  # a word; "don't" and "l'eau" are one
    r"| ?\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+"
    r"|\s+(?!\S)|\s"
)


class Subwords(NamedTuple):
    """What training learns: characters (by code point) and merges (by rank)."""

    characters: list[str]
    merges: list[tuple[str, str]]


def byte_characters() -> list[str]:
    """The printable character by which byte-level pieces show each byte (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: byte for byte in printable} | {b: 256 + n for n, b in enumerate(others)}
    return [chr(shown[byte]) for byte in range(256)]


def byte_pieces(kind: Kind) -> list[str]:
    """The 256 pieces of single bytes; they take the ids 2 to 257."""
    if kind == "byte-level":
        return byte_characters()
    return [f"<0x{byte:02X}>" for byte in range(256)]


def learn(lines: Sequence[str], kind: Kind, *, size: int, min_count: int) -> Subwords:
    """At most `size` pieces (characters and merges). Same lines, same pieces.

    A character seen fewer than `min_count` times is left to the bytes (byte-fallback only).
    """
    characters = frequent_characters(lines, size, min_count) if kind == "byte-fallback" else []
    alphabet = characters or byte_characters()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    trainer = trainers.BpeTrainer(
        vocab_size=size + (256 if kind == "byte-level" else 0),
        min_frequency=2,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    segments = cut_at_rare(lines, characters) if kind == "byte-fallback" else lines
    tokenizer.train_from_iterator(segments, trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return Subwords(characters, [(left, right) for left, right in merges])


def frequent_characters(lines: Iterable[str], size: int, min_count: int) -> list[str]:
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(c for c in ranked[:size] if counts[c] >= min_count)


def cut_at_rare(lines: Iterable[str], characters: Sequence[str]) -> Iterator[str]:
    """The stretches between rare characters, so that no merge is learned across one."""
    known = "".join(map(re.escape, characters))
    stretch = re.compile(f"[{known}]+") if known else re.compile("(?!)")
    for line in lines:
        yield from stretch.findall(line)


def union(first: Subwords, second: Subwords) -> Subwords:
    """Both sides' pieces; merges interleaved by relative rank, so neither side is always first."""
    ranked = sorted(
        (rank / len(side.merges), order, merge)
        for order, side in enumerate((first, second))
        for rank, merge in enumerate(side.merges)
    )
    merges = list(dict.fromkeys(merge for _, _, merge in ranked))
    return Subwords(sorted({*first.characters, *second.characters}), merges)


def vocabulary(subwords: Subwords, kind: Kind) -> dict[str, int]:
    merged = [left + right for left, right in subwords.merges]
    pieces = [EOS, UNK, *byte_pieces(kind), *subwords.characters, *merged]
    return {piece: i for i, piece in enumerate(dict.fromkeys([*pieces, PAD]))}


def assemble(subwords: Subwords, kind: Kind) -> Tokenizer:
    """The tokenizer as the `tokenizers` library and Hugging Face read it."""
    vocab = vocabulary(subwords, kind)
    model = {
        "type": "BPE",
        "unk_token": UNK,
        "byte_fallback": kind == "byte-fallback",
        "vocab": vocab,
        "merges": [list(merge) for merge in subwords.merges],
    }
    content = {
        "version": "1.0",
        "added_tokens": [_special(vocab[piece], piece) for piece in (EOS, UNK, PAD)],
        "model": model,
        "post_processor": _append_eos(vocab[EOS]),
    }
    tokenizer = Tokenizer.from_str(json.dumps(content, ensure_ascii=False))
    tokenizer.pre_tokenizer = pre_tokenizer(kind)
    if kind == "byte-level":
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def pre_tokenizer(kind: Kind) -> pre_tokenizers.PreTokenizer:
    runs = pre_tokenizers.Split(Regex(RUNS), behavior="isolated")
    if kind == "byte-fallback":
        return runs
    show_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([runs, show_bytes])


def _special(number: int, piece: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": piece, **flags, "special": True}


def _append_eos(number: int) -> dict[str, Any]:
    """For Hugging Face's sake, which expects the tokenizer to end a sentence."""
    eos = {"SpecialToken": {"id": EOS, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    return {
        "type": "TemplateProcessing",
        "single": [first, eos],
        "pair": [first, eos, second, eos],
        "special_tokens": {EOS: {"id": EOS, "ids": [number], "tokens": [EOS]}},
    }


def check_kind(kind: str) -> None:
    if kind not in get_args(Kind):
        raise UserError(f"The tokenizer kind is {kind!r}; it must be one of {get_args(Kind)}.")
