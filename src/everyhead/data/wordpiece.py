"""BERT's WordPiece: words by white space and punctuation, Chinese characters alone, then pieces.

Devlin et al. 2018 (arXiv:1810.04805) section 3; Wu et al. 2016 (arXiv:1609.08144) section 4.1. The
longest piece that fits goes first, the rest of the word goes on with pieces that begin with ##.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from everyhead.data.special_pieces import text_of
from everyhead.errors import UserError


def open_vocabulary(path: Path, config: Mapping[str, Any]) -> Tokenizer:
    """From vocab.txt, one piece a line, its id the line's number.

    Raises:
        UserError: not UTF-8, or without the pieces around a text.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is broken: it is not UTF-8 ({error}). Copy it again.") from error
    lines = lines[:-1] if lines[-1] == "" else lines
    vocabulary = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    unk, cls, sep = (
        text_of(config.get(f"{role}_token") or f"[{role.upper()}]")
        for role in ("unk", "cls", "sep")
    )
    absent = [piece for piece in (unk, cls, sep) if piece not in vocabulary]
    if absent:
        raise UserError(f"{path} has no {' and no '.join(absent)}; is it a vocabulary of BERT's?")
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=100))
    prepare_as_said(inner, config)
    return framed(inner, cls, sep)


def prepare_as_said(inner: Tokenizer, config: Mapping[str, Any]) -> None:
    """As BertTokenizer does by tokenizer_config.json: lower case where it says nothing."""
    if isinstance(inner.model, models.WordPiece):
        prepare(
            inner,
            lowercase=bool(config.get("do_lower_case", True)),
            chinese=bool(config.get("tokenize_chinese_chars", True)),
            strip_accents=config.get("strip_accents"),
        )


def prepare(
    inner: Tokenizer, *, lowercase: bool, chinese: bool = True, strip_accents: bool | None = None
) -> None:
    """How text is cut into words. strip_accents None: as lowercase."""
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")


def framed(inner: Tokenizer, cls: str, sep: str) -> Tokenizer:
    """[CLS] text [SEP], or [CLS] text [SEP] pair [SEP] with the pair in segment 1."""
    inner.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(piece, inner.token_to_id(piece)) for piece in (cls, sep)],
    )
    return inner
