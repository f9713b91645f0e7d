"""A SentencePiece model (spiece.model, tokenizer.model) as a `tokenizers.Tokenizer`.

The file is one protocol-buffer message; what is needed of it is read here, field by field, as
sentencepiece_model.proto of SentencePiece numbers them (Kudo & Richardson 2018, arXiv:1808.06226):

    ModelProto       1 pieces (1 piece, 2 score, 3 type) · 2 trainer · 3 normalizer
    TrainerSpec      3 model_type (1 unigram, 2 BPE) · 35 byte_fallback · 40 unk_id
    NormalizerSpec   2 precompiled_charsmap · 3 add_dummy_prefix
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from everyhead.errors import UserError

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
UNIGRAM, BPE = 1, 2
SPACE = "▁"
Value = int | bytes


class Pieces(NamedTuple):
    """What a SentencePiece file says: pieces with score and type by id, and how it was trained."""

    pieces: tuple[tuple[str, float, int], ...]
    model_type: int
    unk_id: int
    byte_fallback: bool
    charsmap: bytes


def read_pieces(path: Path) -> Pieces:
    """The content of the file.

    Raises:
        UserError: it is broken, or no SentencePiece model (Llama 3's tokenizer.model is none).
    """
    try:
        return _parsed(path.read_bytes())
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror}; check the path.") from error
    except (ValueError, IndexError, struct.error, AttributeError, TypeError) as error:
        raise UserError(
            f"{path} is no SentencePiece model, or it is cut off; copy it again, or bring the "
            "tokenizer.json of the same model."
        ) from error


def _parsed(data: bytes) -> Pieces:
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for number, value in _fields(data):
        if number == 1:
            piece = dict(_fields(_bytes(value)))
            (score,) = struct.unpack("<f", _bytes(piece.get(2, bytes(4))))
            kind = piece.get(3, NORMAL)
            assert isinstance(kind, int)
            pieces.append((_bytes(piece[1]).decode("utf-8"), score, kind))
        elif number == 2:
            trainer = dict(_fields(_bytes(value)))
        elif number == 3:
            normalizer = dict(_fields(_bytes(value)))
    if not pieces or not trainer:
        raise ValueError("no pieces")
    return Pieces(
        tuple(pieces),
        _int(trainer.get(3, UNIGRAM)),
        _int(trainer.get(40, 0)),
        bool(trainer.get(35, 0)),
        _bytes(normalizer.get(2, b"")),
    )


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message: varints as int, the rest as bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == 2:
            length, place = _varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + length > len(data):
            raise ValueError("cut off")
        yield number, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError("a number without end")


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where text belongs")
    return value


def _int(value: Value) -> int:
    if not isinstance(value, int):
        raise ValueError("text where a number belongs")
    return value


def t5_tokenizer(found: Pieces, extra_ids: int) -> Tokenizer:
    """Unigram over words, </s> at the end, and the sentinels <extra_id_99> … <extra_id_0> last.

    Raffel et al. 2019 (arXiv:1910.10683) section 3.1.4 and their released vocabulary.
    """
    sentinels = [f"<extra_id_{n}>" for n in reversed(range(extra_ids))]
    vocabulary = [(piece, score) for piece, score, _ in found.pieces]
    vocabulary += [(piece, 0.0) for piece in sentinels]
    inner = Tokenizer(models.Unigram(vocabulary, found.unk_id, byte_fallback=False))
    if found.charsmap:
        inner.normalizer = normalizers.Precompiled(found.charsmap)
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
    )
    inner.decoder = decoders.Metaspace(SPACE, "always")
    inner.add_tokens(_added(found))
    inner.add_special_tokens(sentinels)
    return ended(inner, "</s>")


def ended(inner: Tokenizer, piece: str) -> Tokenizer:
    """With `piece` after each text."""
    inner.post_processor = processors.TemplateProcessing(
        single=f"$A {piece}",
        pair=f"$A {piece} $B {piece}",
        special_tokens=[(piece, inner.token_to_id(piece))],
    )
    return inner


def llama_tokenizer(found: Pieces, *, prefix_every_part: bool) -> Tokenizer:
    """Byte-pair merges over the whole text, spaces as ▁, unknown characters as bytes.

    prefix_every_part: a ▁ goes before each part between special pieces, not the first alone.
    """
    vocabulary = {piece: i for i, (piece, _, _) in enumerate(found.pieces)}
    inner = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=_merges(found),
            unk_token=found.pieces[found.unk_id][0],
            fuse_unk=True,
            byte_fallback=found.byte_fallback,
        )
    )
    scheme = "always" if prefix_every_part else "first"
    inner.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    inner.add_tokens(_added(found))
    return inner


def _added(found: Pieces) -> list[AddedToken]:
    """Control pieces are special; what the trainer's user defined is cut out whole, too."""
    return [
        AddedToken(piece, normalized=False, special=kind == CONTROL)
        for piece, _, kind in found.pieces
        if kind in (CONTROL, USER_DEFINED)
    ]


def _merges(found: Pieces) -> list[tuple[str, str]]:
    """Every pair of pieces that make a third, the best (highest score, then lowest id) first.

    SentencePiece keeps no merges: it joins whatever neighbours make the piece of the best score.
    """
    normal = {p: (-score, i) for i, (p, score, kind) in enumerate(found.pieces) if kind == NORMAL}
    ranked = [
        (*rank, piece[:cut], piece[cut:])
        for piece, rank in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(left, right) for _, _, left, right in sorted(ranked)]
