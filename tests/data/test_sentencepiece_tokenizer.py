"""Tokenizers of published translation models against transformers' MarianTokenizer."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.data.sentencepiece_tokenizer import SentencePiecePair
from everyhead.data.sides import sides_of
from everyhead.errors import UserError

pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")
from tests.data import opus  # noqa: E402

TEXTS = [
    "The cat sat on the mat.",
    ">>cmn_Hans<< Where are you going?",
    ">>fra<< a language that is not there",
    "Ｆｕｌｌ－ｗｉｄｔｈ ﬁ ①  two  spaces \t and\ttabs ",
    "pizza, dog 狗 and 🦜 parrots",
    "a </s> in the text, <pad> and <unk>too</s>>>cmn_Hans<< the cat",
    "He said: “It’s 25 °C”",
    "猫坐在垫子上看着狗。",
    "",
    "   ",
    ">>",
    "▁ marks",
]
ALPHABET = "the catsogrdn .,“”’°25猫狗坐在上。，？zß\u0301\u200b\u3000<>/_▁"


@cache
def both(separate: bool = False, **options: Any) -> tuple[SentencePiecePair, Any]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        opus.write(folder, separate=separate, **options)
        ours = SentencePiecePair.load(folder)
        theirs = transformers.MarianTokenizer.from_pretrained(folder)
    return ours, theirs


def check(text: str, separate: bool, **options: Any) -> None:
    ours, theirs = both(separate, **options)
    # With two vocabularies theirs gives a typed <pad> of the target the source's id.
    sides = [(ours.source, {"text": text}), (ours.target, {"text_target": text})]
    for side, asked in sides[: 1 if separate and "<pad>" in text else 2]:
        ids = side.encode(text)
        assert [*ids, 0] == theirs(**asked).input_ids
        assert len(side.spans(text)) == len(side.pieces_to_spans(ids)) == len(ids)
    if all(i in theirs.decoder for i in ids):
        wanted = theirs.decode(ids, skip_special_tokens=True, use_source_tokenizer=False)
        assert ours.target.decode([*ids, 0]) == wanted


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_texts_are_theirs(text: str, separate: bool) -> None:
    check(text, separate)


@settings(deadline=None, max_examples=150)
@given(
    text=st.text(st.sampled_from(ALPHABET), max_size=40) | st.text(max_size=10),
    options=st.sampled_from([{}, {"byte_fallback": True}, {"model_type": "bpe"}]),
)
def test_ids_and_texts_are_theirs_whatever_is_typed(text: str, options: dict[str, Any]) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return
    check(text, False, **options)


def test_specials_and_codes_are_where_the_files_put_them() -> None:
    ours, theirs = both()
    side = ours.target
    assert (side.eos_id, side.unk_id, side.pad_id) == (0, 1, len(theirs.encoder) - 1)
    assert side.vocab_size == ours.vocab_size == theirs.vocab_size
    assert side.language_codes == theirs.supported_language_codes == opus.CODES
    assert ours.shared and not both(separate=True)[0].shared
    assert sides_of(ours) is ours


def test_spans_are_the_texts_characters() -> None:
    side = both()[0].source
    text = "The cat sat, zzz 家"
    assert "".join(side.spans(text)) == text
    ids = side.encode(">>cmn_Hans<< The cat")
    assert side.pieces_to_spans([*ids, 0, side.pad_id])[-2:] == ["</s>", "<pad>"]
    assert side.pieces_to_spans(ids)[0] == ">>cmn_Hans<<"
    in_bytes = both(byte_fallback=True)[0].source
    assert set(in_bytes.spans("🦜")) == {"", "🦜"}  # four bytes, each shows the whole


@pytest.mark.parametrize("separate", [False, True])
def test_what_is_saved_opens_here_and_there(tmp_path: Path, separate: bool) -> None:
    ours, theirs = both(separate)
    ours.save(tmp_path, model_max_length=77)
    again, other = SentencePiecePair.load(tmp_path), transformers.AutoTokenizer.from_pretrained
    assert again.sha256 == ours.sha256
    opened = other(tmp_path)
    assert type(opened).__name__ == "MarianTokenizer" and opened.model_max_length == 77
    for text in TEXTS:
        assert again.source.encode(text) == ours.source.encode(text)
        assert opened(text).input_ids == theirs(text).input_ids


def test_an_id_beyond_the_vocabulary_and_half_a_character_are_refused() -> None:
    side = both()[0].target
    with pytest.raises(ValueError, match=f"Id {side.vocab_size} is not in the vocabulary"):
        side.decode([side.vocab_size])
    with pytest.raises(UserError, match="half a character"):
        side.encode("a\ud800b")


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("target.spm", None, "has no target.spm"),
        ("vocab.json", None, "has no vocab.json"),
        ("source.spm", b"no model", "no whole SentencePiece model"),
        ("vocab.json", b'{"a": 0}', "lacks the piece '</s>'"),
        ("vocab.json", b'{"a": "b"}', "each piece must have an id"),
    ],
)
def test_a_broken_folder_is_told(
    tmp_path: Path, file: str, content: bytes | None, said: str
) -> None:
    opus.write(tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=said):
        SentencePiecePair.load(tmp_path)


def test_other_names_of_the_special_pieces_are_read(tmp_path: Path) -> None:
    found = opus.write(tmp_path)
    renamed = {("[end]" if piece == "</s>" else piece): i for piece, i in found.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(renamed), encoding="utf-8")
    config = {"eos_token": {"content": "[end]", "lstrip": False}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    ours = SentencePiecePair.load(tmp_path)
    assert ours.source.eos_id == 0 and 0 in ours.source.encode("the cat[end]")
