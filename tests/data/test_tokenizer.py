import json
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everyhead.data.tokenizer import Tokenizer, train_tokenizer
from everyhead.errors import UserError

from .conftest import KINDS, SIZES, SOURCE, TARGET

TRICKY = [
    "</s>", "<pad>", "<unk>", "<0x41>", "<0xE5><0x9B><0x9E>", "▁", "Ġ", "Ċ", "\t", "\n", "\r\n",
    " ", "  ", "\u00a0", "\u3000", "\u2028", "\x00", "\x85", "\ufeff", "�", "e\u0301", "é",
    "👩‍👩‍👧", "🏳️‍🌈", "回家", "，", "ﬁ", "²", "Straße", "don't", "l’eau",
    "12", "bread", "مرحبا", "नमस्ते",
]  # fmt: skip
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
TEXT = ANY_TEXT | st.lists(st.sampled_from(TRICKY) | ANY_TEXT).map("".join)
ANY_TOKENIZER = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@ANY_TOKENIZER
@given(text=TEXT)
def test_every_text_comes_back_as_it_was(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_looks_like_a_special_token_is_text_like_any_other(tokenizer):
    for text in [*TRICKY, "".join(TRICKY), " ".join(TRICKY), " a  b ", ""]:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {tokenizer.eos_id, tokenizer.unk_id, tokenizer.pad_id} & set(ids)


def test_trained_text_needs_no_bytes_and_few_pieces(tokenizer):
    for line in {*SOURCE, *TARGET}:
        ids = tokenizer.encode(line)
        assert len(ids) < len(line.encode("utf-8")) / 1.5
        assert tokenizer.decode(ids) == line


def test_ids_are_laid_out_as_promised(tokenizer):
    assert (tokenizer.eos_id, tokenizer.unk_id) == (0, 1)
    assert tokenizer.pad_id == tokenizer.vocab_size - 1
    vocab = tokenizer.inner.get_vocab()
    assert sorted(vocab.values()) == list(range(tokenizer.vocab_size))
    assert (vocab["</s>"], vocab["<unk>"], vocab["<pad>"]) == (0, 1, tokenizer.pad_id)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_never_larger_than_asked_for(trained, kind):
    assert trained[kind, 500].vocab_size <= 500
    assert trained[kind, (330, 340)].vocab_size <= 330 + 340 - 259
    assert train_tokenizer(SOURCE, TARGET, kind=kind, vocab_size=259).vocab_size == 259
    assert train_tokenizer([], [], kind=kind).vocab_size == 259


def test_byte_pieces_come_from_rare_characters_only(trained):
    tokenizer = trained["byte-fallback", 500]
    byte_ids = set(range(2, 258))
    assert not byte_ids & set(tokenizer.encode("On the way home，面包。"))
    assert tokenizer.encode("鼟") == [2 + byte for byte in "鼟".encode()]
    assert tokenizer.encode("鼟") != tokenizer.encode("<0xE9><0xBC><0x9F>")


def test_no_piece_but_the_specials_and_bytes_looks_like_one(trained):
    lines = ["</s> <pad> <unk> <0x41> <0xE5> "] * 50
    for kind in KINDS:
        vocab = train_tokenizer(lines, lines, kind=kind, vocab_size=400).inner.get_vocab()
        assert not [p for p, i in vocab.items() if p.startswith("<0x") and i >= 258]
        assert all(i >= 2 or p in ("</s>", "<unk>") for p, i in vocab.items())


def test_characters_seen_too_seldom_fall_to_bytes():
    lines = ["ab"] * 5 + ["c"] * 2
    rare = train_tokenizer(lines, [], vocab_size=300, min_count=3)
    common = train_tokenizer(lines, [], vocab_size=300, min_count=2)
    assert rare.encode("c") == [2 + ord("c")]
    assert common.encode("c")[0] >= 258


def test_no_merge_is_learned_across_a_rare_character():
    lines = [f"a{chr(0x4E00 + n)}b" for n in range(50)]
    vocab = train_tokenizer(lines, [], vocab_size=300).inner.get_vocab()
    assert "ab" not in vocab


def test_spaces_belong_to_the_word_that_follows(tokenizer):
    spans = tokenizer.spans("on the way home")
    assert " way" in spans
    assert not [span for span in spans if " " in span[1:]]


def test_digits_and_punctuation_stand_apart_from_letters(tokenizer):
    for span in map(str.strip, tokenizer.spans("home12, bread7.")):
        assert span.isalpha() or not any(map(str.isalpha, span))
        assert not any(map(str.isdigit, span)) or len(span) == 1


def test_merges_of_two_sides_keep_each_sides_pieces(trained):
    """Scripts that do not meet are cut as their own BPE cuts them."""
    for kind in KINDS:
        alone = train_tokenizer(SOURCE, [], kind=kind, vocab_size=330)
        joined = trained[kind, (330, 340)]
        for line in SOURCE:
            assert alone.spans(line) == joined.spans(line)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_lines_does_not_matter(trained, kind, size):
    again = train_tokenizer(SOURCE[::-1], TARGET[::-1], kind=kind, vocab_size=size)
    assert again.sha256 == trained[kind, size].sha256


@pytest.mark.slow
def test_the_same_lines_give_the_same_file_with_any_number_of_threads(tmp_path):
    code = (
        "from pathlib import Path\n"
        "from everyhead.data.tokenizer import train_tokenizer\n"
        "lines = [' '.join(f'w{a * b % 97} 回{chr(0x4E00 + a * b % 89)}家' for b in range(9))\n"
        "         for a in range(300)]\n"
        "for kind in ('byte-fallback', 'byte-level'):\n"
        "    train_tokenizer(lines, lines, kind=kind, vocab_size=600).save(\n"
        "        Path(sys.argv[1] + kind))\n"
    )
    for threads, hash_seed in (("1", "1"), ("4", "2")):
        env = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed}
        script = f"import sys; sys.path[:] = {sys.path!r}\n{code}"
        prefix = str(tmp_path / threads)
        subprocess.run([sys.executable, "-c", script, prefix], env=env, check=True)
    for kind in KINDS:
        files = [(tmp_path / f"{threads}{kind}").read_bytes() for threads in "14"]
        assert files[0] == files[1]


def test_a_batch_is_encoded_as_each_text_alone(tokenizer):
    assert tokenizer.encode_batch(TRICKY) == [tokenizer.encode(text) for text in TRICKY]
    assert tokenizer.encode_batch([]) == []


def test_a_tokenizer_comes_back_as_it_was(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    again = Tokenizer.load(tmp_path / "tokenizer.json")
    assert again.sha256 == tokenizer.sha256
    assert again.kind == tokenizer.kind
    assert again.encode("</s> 鼟 home") == tokenizer.encode("</s> 鼟 home")


def test_the_hash_tells_tokenizers_apart(trained):
    assert len({tokenizer.sha256 for tokenizer in trained.values()}) == len(trained)


def test_broken_and_foreign_files_are_named(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="There is no tokenizer"):
        Tokenizer.load(path)
    tokenizer.save(path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UserError, match="is not a whole tokenizer file"):
        Tokenizer.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a whole tokenizer file"):
        Tokenizer.load(path)
    foreign = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
    path.write_text(json.dumps(foreign), encoding="utf-8")
    with pytest.raises(UserError, match="cannot be used: the ids of"):
        Tokenizer.load(path)


@pytest.mark.parametrize("number", [-1, -9223372036854775808, 10**6, 2**63])
def test_defect_a_garbage_id_is_refused_with_the_size_of_the_vocabulary(tokenizer, number):
    with pytest.raises(ValueError, match=f"Id {number} is not in the vocabulary of"):
        tokenizer.decode([3, number])
    with pytest.raises(ValueError, match="may not belong together"):
        tokenizer.pieces_to_spans([number])


def test_defect_a_character_never_seen_is_no_key_error(tokenizer):
    assert tokenizer.decode(tokenizer.encode("\U0010fffd龘d")) == "\U0010fffd龘d"


@ANY_TOKENIZER
@given(ids=st.lists(st.integers(0, 10**6)))
def test_any_ids_decode_to_text(tokenizer, ids):
    ids = [number % tokenizer.vocab_size for number in ids]
    text = tokenizer.decode(ids)
    text.encode("utf-8")
    assert len(tokenizer.pieces_to_spans(ids)) == len(ids)


def test_specials_are_dropped_in_text_and_shown_as_spans(tokenizer):
    ids = [tokenizer.pad_id, *tokenizer.encode("the way"), tokenizer.eos_id]
    assert tokenizer.decode(ids) == "the way"
    assert tokenizer.pieces_to_spans(ids) == ["<pad>", *tokenizer.spans("the way"), "</s>"]


def test_bytes_that_are_not_utf8_become_replacement_characters(tokenizer):
    assert tokenizer.decode([2 + 0xE5]) == "�"


def test_half_a_character_is_refused_in_words(tokenizer):
    with pytest.raises(UserError, match=r"character 2 is U\+DCE9, half a character"):
        tokenizer.encode("a\udce9")


@pytest.mark.parametrize("settings", [{"kind": "unigram"}, {"vocab_size": 258}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError, match="must be"):
        train_tokenizer(SOURCE, TARGET, **settings)
