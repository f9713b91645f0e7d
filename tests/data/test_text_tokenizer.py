"""TextTokenizer gives the ids of Hugging Face's AutoTokenizer, whichever files there are."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from everyhead.data.sentencepiece_file import read_pieces
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.weights.fetch import fetch

transformers = pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("google.protobuf", reason="transformers reads SentencePiece files with it")

LINES = [
    "The cat sat on the mat, and the dog sat under it.",
    "On the way home I bought bread; it was still warm.",
    "下雨了，我们走回家去看书。今天天气很好。",
    "def encode(text: str) -> list[int]:\n    return [ord(c) for c in text]",
    "Größe, naïve café, Ünïcödé; 12345 67 8",
    "What is the capital of France? It's Paris, isn't it?",
] * 4
TEXTS = [
    "",
    " ",
    "The cat sat on the mat.",
    "  two  spaces\tand\na line  ",
    "Größe naïve CAFÉ",
    "下雨了，我们走回家。",
    "mixed 中文 and English🎉👩‍👩‍👧 emoji",
    "x = {'a': [1, 2]}  # code\n\tif x:\n\t\treturn",
    "don't we've I'll 3.14159 1,000",
    "\u200b\u00a0\u3000odd spaces",
    "ﬁ ligature Å ① ％",
    "привет мир",
    "a" * 120,
]


def typed(*specials: str) -> list[str]:
    """Special pieces typed in a text, with and without spaces around."""
    return [f"before {piece} after{piece}x" for piece in specials] + list(specials)


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


@cache
def trained(kind: Any, lowercase: bool = True) -> TextTokenizer:
    return TextTokenizer.train(LINES, kind=kind, vocab_size=500, lowercase=lowercase)


def bert_folder(folder: Path, **config: object) -> list[str]:
    pieces = trained("wordpiece", bool(config.get("do_lower_case", True))).inner.get_vocab()
    text = "".join(f"{piece}\n" for piece in sorted(pieces, key=pieces.__getitem__))
    (folder / "vocab.txt").write_text(text, encoding="utf-8", newline="\n")
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", **config})
    write_json(folder / "config.json", {"model_type": "bert"})
    return ["[MASK]", "[SEP]", "[UNK]", "[PAD]"]


def merges_of(tokenizer: TextTokenizer) -> tuple[dict[str, int], list[list[str]]]:
    model = json.loads(tokenizer.inner.to_str())["model"]
    return model["vocab"], model["merges"]


def write_merges(folder: Path, pieces: dict[str, int], merges: list[list[str]]) -> None:
    write_json(folder / "vocab.json", pieces)
    text = "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges)
    (folder / "merges.txt").write_text(text, encoding="utf-8", newline="\n")


def gpt2_folder(folder: Path) -> list[str]:
    write_merges(folder, *merges_of(trained("byte-level")))
    write_json(folder / "tokenizer_config.json", {"model_max_length": 1024})
    write_json(folder / "config.json", {"model_type": "gpt2"})
    return ["<|endoftext|>"]


def roberta_folder(folder: Path) -> list[str]:
    pieces, merges = merges_of(trained("byte-level"))
    specials = ("<s>", "<pad>", "</s>", "<unk>")
    ranked = sorted(pieces, key=pieces.__getitem__)
    names = [*specials, *(piece for piece in ranked if piece != "<|endoftext|>"), "<mask>"]
    write_merges(folder, {piece: n for n, piece in enumerate(names)}, merges)
    write_json(folder / "config.json", {"model_type": "roberta"})
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False}
    write_json(folder / "special_tokens_map.json", {"mask_token": {**mask, "single_word": False}})
    return ["<mask>", "</s>"]


def clip_folder(folder: Path) -> list[str]:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ("the</w>", "cat</w>", "home</w>")
    merges = [["t", "h"], ["th", "e</w>"], ["c", "a"], ["ca", "t</w>"], ["h", "o"], ["m", "e</w>"]]
    merges += [["ho", "me</w>"]]
    joined = ["".join(pair) for pair in merges]
    assert set(words) <= set(joined)
    names = [*alphabet, *(f"{c}</w>" for c in alphabet), *joined]
    names += ["<|startoftext|>", "<|endoftext|>"]
    write_merges(folder, {piece: n for n, piece in enumerate(names)}, merges)
    write_json(folder / "config.json", {"model_type": "clip"})
    return ["<|endoftext|>"]


def spm(folder: Path, name: str, **choices: object) -> None:
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **choices,
    )
    (folder / name).write_bytes(model.getvalue())


def t5_folder(folder: Path) -> list[str]:
    spm(
        folder,
        "spiece.model",
        model_type="unigram",
        vocab_size=250,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        normalization_rule_name="nmt_nfkc",
    )
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"})
    write_json(folder / "config.json", {"model_type": "t5"})
    return ["<extra_id_0>", "<extra_id_17>", "</s>"]


def llama_folder(folder: Path) -> list[str]:
    spm(
        folder,
        "tokenizer.model",
        model_type="bpe",
        vocab_size=450,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
    )
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False}
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    write_json(
        folder / "tokenizer_config.json", {**config, "legacy": False, "chat_template": template}
    )
    write_json(folder / "config.json", {"model_type": "llama"})
    return ["<s>", "</s>"]


def cased_folder(folder: Path) -> list[str]:
    return bert_folder(folder, do_lower_case=False)


def framed_gpt2_folder(folder: Path) -> list[str]:
    """Its config asks for a beginning and an end."""
    specials = gpt2_folder(folder)
    asked = {"add_bos_token": True, "add_eos_token": True, "add_prefix_space": True}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "GPT2Tokenizer", **asked})
    return specials


def more_pieces_folder(folder: Path) -> list[str]:
    """A tokenizer.json beside a config that adds a piece; what it asks to put around is not done.

    So transformers 5 has it.
    """
    trained("byte-level").save(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    n = trained("byte-level").vocab_size
    config |= {
        "add_bos_token": True,
        "add_eos_token": True,
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": {str(n): {"content": "<|im_end|>", "special": True, **flags}},
    }
    write_json(path, config)
    return ["<|im_end|>", "<|endoftext|>"]


def saved_folder(kind: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        trained(kind).save(folder)
        return list(trained(kind).special_pieces.values())

    return make


FOLDERS: dict[str, Callable[[Path], list[str]]] = {
    "bert": bert_folder,
    "bert cased": cased_folder,
    "gpt2": gpt2_folder,
    "roberta": roberta_folder,
    "clip": clip_folder,
    "t5": t5_folder,
    "llama": llama_folder,
    "gpt2 with a frame": framed_gpt2_folder,
    "more pieces": more_pieces_folder,
    **{f"trained {kind}": saved_folder(kind) for kind in ("wordpiece", "byte-level", "unigram")},
}


def both(name: str, folder: Path) -> tuple[TextTokenizer, Any, list[str]]:
    specials = FOLDERS[name](folder)
    ours = TextTokenizer.load(folder)
    return ours, transformers.AutoTokenizer.from_pretrained(folder), typed(*specials)


def check_equal(ours: TextTokenizer, theirs: Any, texts: list[str]) -> None:
    for text in texts:
        ids = theirs(text).input_ids
        assert ours.encode(text) == ids, text
        assert ours.encode(text, special=False) == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids), text
        assert len(ours.spans(ids)) == len(ids)
    assert ours.encode_batch(texts) == theirs(texts).input_ids
    for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(ours, f"{role}_id") == getattr(theirs, f"{role}_token_id"), role
    assert ours.vocab_size == len(theirs)
    assert ours.chat_template == theirs.chat_template


@pytest.mark.parametrize("name", FOLDERS)
def test_ids_are_those_of_auto_tokenizer(name: str, tmp_path: Path) -> None:
    ours, theirs, more = both(name, tmp_path)
    check_equal(ours, theirs, TEXTS + more)
    pair = theirs(TEXTS[2], TEXTS[5])
    assert ours.encode(TEXTS[2], TEXTS[5]) == pair.input_ids
    if "token_type_ids" in pair:
        assert ours.segments(TEXTS[2], TEXTS[5]) == pair.token_type_ids


@pytest.mark.parametrize("name", FOLDERS)
def test_what_is_saved_opens_here_and_there_the_same(name: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    ours, _, more = both(name, tmp_path / "first")
    again = tmp_path / "again"
    ours.save(again, model_max_length=64)
    if (tmp_path / "first" / "config.json").is_file():
        shutil.copy(tmp_path / "first" / "config.json", again)
    theirs = transformers.AutoTokenizer.from_pretrained(again)
    assert theirs.model_max_length == 64
    check_equal(TextTokenizer.load(again), theirs, TEXTS + more)
    assert [TextTokenizer.load(again).encode(text) for text in TEXTS] == ours.encode_batch(TEXTS)


def whole_folder(
    folder: Path, kind: str, *, model_type: str | None, lowercase: bool = True, **config: object
) -> None:
    """A tokenizer.json beside a config that may speak against it."""
    trained(kind, lowercase).save(folder)
    path = folder / "tokenizer_config.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    for key in ("tokenizer_class", "do_lower_case"):
        kept.pop(key, None)
    write_json(path, {**kept, **config})
    if model_type is not None:
        write_json(folder / "config.json", {"model_type": model_type})


BESIDE = {
    "named, cased": ("wordpiece", "bert", {"tokenizer_class": "BertTokenizer"}, False),
    "by the model": ("wordpiece", "bert", {}, True),
    "alone": ("wordpiece", None, {"tokenizer_class": "BertTokenizerFast"}, True),
    "distilled": ("wordpiece", "distilbert", {"tokenizer_class": "DistilBertTokenizer"}, True),
    "another class": ("wordpiece", "bert", {"tokenizer_class": "PreTrainedTokenizerFast"}, False),
    "another's class": ("wordpiece", "gpt2", {"tokenizer_class": "BertTokenizer"}, False),
}


@pytest.mark.parametrize("said", [{}, *({"do_lower_case": x} for x in (True, False))], ids=str)
@pytest.mark.parametrize("name", BESIDE)
def test_capitals_are_as_berts_config_says_whatever_tokenizer_json_does(
    name: str, said: dict[str, object], tmp_path: Path
) -> None:
    kind, model_type, config, lowercase = BESIDE[name]
    more = {"strip_accents": False} if name == "named, cased" else {}
    whole_folder(
        tmp_path, kind, model_type=model_type, lowercase=lowercase, **config, **said, **more
    )
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    check_equal(TextTokenizer.load(tmp_path), theirs, TEXTS + typed("[MASK]", "[SEP]"))


@pytest.mark.parametrize("said", [None, True, False])
@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("model_type", ["gpt2", "roberta", "longformer", "fast"])
def test_a_space_in_front_is_as_gpt2s_config_says_whatever_tokenizer_json_does(
    model_type: str, written: bool, said: bool | None, tmp_path: Path
) -> None:
    fast = model_type == "fast"
    config = {} if said is None else {"add_prefix_space": said}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"} if fast else {}
    whole_folder(tmp_path, "byte-level", model_type="gpt2" if fast else model_type, **config)
    path = tmp_path / "tokenizer.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    file["pre_tokenizer"]["add_prefix_space"] = written
    write_json(path, file)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = TextTokenizer.load(tmp_path)
    for text in [*TEXTS, *typed("<|endoftext|>")]:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, special=False) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_digits_stay_apart_where_tokenizer_json_cuts_in_several_steps(tmp_path: Path) -> None:
    """SmolLM2's, whose class is named GPT2Tokenizer: transformers 5 drops its other steps."""
    said = {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}
    whole_folder(tmp_path, "byte-level", model_type="llama", **said)
    path = tmp_path / "tokenizer.json"
    file = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, file["pre_tokenizer"]]}
    write_json(path, file)
    whole = tokenizers.Tokenizer.from_file(str(path))
    ours = TextTokenizer.load(tmp_path)
    for text in TEXTS:
        assert ours.encode(text, special=False) == whole.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("name", ["bert", "gpt2", "roberta", "t5", "llama"])
@pytest.mark.parametrize("most", [4, 5, 9, 16])
def test_a_long_text_is_cut_inside_its_frame(name: str, most: int, tmp_path: Path) -> None:
    ours, theirs, _ = both(name, tmp_path)
    for text, pair in ((TEXTS[2], None), (TEXTS[2], TEXTS[5]), ("a", TEXTS[2]), (TEXTS[2], "a")):
        ids = theirs(text, pair, truncation="longest_first", max_length=most).input_ids
        assert ours.encode(text, pair, max_len=most) == ids, (text, pair)
    assert ours.encode_batch([TEXTS[2]], max_len=most) == [ours.encode(TEXTS[2], max_len=most)]


@pytest.mark.parametrize(("name", "file"), [("t5", "spiece.model"), ("llama", "tokenizer.model")])
def test_sentencepiece_files_are_read_as_sentencepiece_reads_them(
    name: str, file: str, tmp_path: Path
) -> None:
    FOLDERS[name](tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / file))
    found = read_pieces(tmp_path / file)
    pieces = [(theirs.id_to_piece(i), theirs.get_score(i)) for i in range(len(theirs))]
    assert [(piece, score) for piece, score, _ in found.pieces] == pieces
    assert found.unk_id == theirs.unk_id()
    ours = TextTokenizer.load(tmp_path)
    for text in TEXTS:
        if name == "t5" and ("\u3000" in text or "\u200b" in text):
            continue  # transformers' own rebuilding differs from SentencePiece at odd spaces,
        if name == "llama" and text.startswith(" "):
            continue  # and at spaces in front
        assert ours.encode(text, special=False) == theirs.encode(text), text


def test_a_sentencepiece_file_that_is_cut_off_or_none_is_one_sentence(tmp_path: Path) -> None:
    t5_folder(tmp_path)
    path = tmp_path / "spiece.model"
    whole = path.read_bytes()
    for content in (b"", b"IQ== 0\nIg== 1\n", whole[:100], whole[: len(whole) // 2], b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"spiece\.model is no SentencePiece model"):
            TextTokenizer.load(tmp_path)
    path.write_bytes(whole)
    write_json(tmp_path / "config.json", {"model_type": "albert"})
    write_json(tmp_path / "tokenizer_config.json", {"tokenizer_class": "AlbertTokenizer"})
    with pytest.raises(UserError, match="albert"):
        TextTokenizer.load(tmp_path)


PLAIN = {"tokenizer.json": Tokenizer(models.BPE()).to_str().encode("utf-8")}


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no tokenizer in"),
        ({"tokenizer.json": b"{"}, "not a whole tokenizer file"),
        ({"vocab.txt": b"\xff\xfe"}, "not UTF-8"),
        ({"vocab.txt": b"a\nb\n"}, r"no \[UNK\] and no \[CLS\]"),
        ({"vocab.json": b"{}", "merges.txt": b"a b\n"}, "not of one model"),
        ({"tokenizer.json": b"{}", "tokenizer_config.json": b"[]"}, "JSON object"),
        (PLAIN | {"tokenizer_config.json": b'{"added_tokens_decoder": {"x": 3}}'}, "another form"),
        (PLAIN | {"tokenizer_config.json": b'{"added_tokens_decoder": [1]}'}, "another form"),
        (PLAIN | {"tokenizer_config.json": b'{"extra_special_tokens": 3}'}, "another form"),
        (PLAIN | {"tokenizer_config.json": b'{"bos_token": {"text": "a"}}'}, "another form"),
        (PLAIN | {"added_tokens.json": b'{"a": "b"}'}, "another form"),
        (PLAIN | {"chat_template.jinja": b"\xff"}, "not UTF-8"),
    ],
)
def test_broken_files_are_named(files: dict[str, bytes], said: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=said) as caught:
        TextTokenizer.load(tmp_path)
    assert str(tmp_path) in str(caught.value)


@settings(deadline=None, max_examples=60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_byte_level_loses_nothing(text: str) -> None:
    tokenizer = trained("byte-level")
    ids = tokenizer.encode(text, literal=True)
    assert tokenizer.decode(ids, skip_special=False) == text
    assert all(0 <= number < tokenizer.vocab_size for number in ids)


def test_a_length_without_room_for_the_frame_is_told() -> None:
    words = trained("wordpiece")
    assert words.encode("the cat", max_len=2) == [words.cls_id, words.sep_id]
    with pytest.raises(ValueError, match="max_len 1 has no room for the 2 special pieces"):
        words.encode("the cat", max_len=1)
    assert words.encode("the cat", special=False, max_len=1) == [words.id("the")]
    assert words.encode_batch([]) == []


def test_spans_are_the_characters_of_each_id() -> None:
    tokenizer = trained("byte-level")
    ids = tokenizer.encode("The cat 下雨了 🎉<|endoftext|>")
    spans = tokenizer.spans(ids)
    assert spans[0] == "The"
    assert spans[-5:] == [*["🎉"] * 4, "<|endoftext|>"]
    words = trained("wordpiece")
    ids = words.encode("Thecat 下雨", "café")
    shown = words.spans(ids)
    assert (shown[0], shown[-1]) == ("[CLS]", "[SEP]")
    assert "".join(shown[1 : shown.index("[SEP]")]) == "thecat下雨"
    sentences = trained("unigram")
    shown = sentences.spans(sentences.encode("the cat sat"))
    assert "".join(shown[:-1]) == " the cat sat"


def test_special_pieces_can_be_taken_as_text() -> None:
    tokenizer = trained("byte-level")
    text = "a<|endoftext|>b"
    assert tokenizer.eos_id in tokenizer.encode(text)
    ids = tokenizer.encode(text, literal=True)
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.eos_id in tokenizer.encode(text)  # and back


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "unigram"])
def test_training_twice_gives_the_same_tokenizer(kind: Any) -> None:
    again = TextTokenizer.train(iter(LINES), kind=kind, vocab_size=500)
    assert again.inner.to_str() == trained(kind).inner.to_str()


def test_training_says_what_it_cannot_do() -> None:
    with pytest.raises(UserError, match="must be one of"):
        TextTokenizer.train(LINES, kind="words")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="needs 257 or more"):
        TextTokenizer.train(LINES, vocab_size=100)
    for kind in ("wordpiece", "byte-level", "unigram"):
        with pytest.raises(UserError, match="every line is blank"):
            TextTokenizer.train(["", "  "], kind=kind, vocab_size=500)


@pytest.mark.parametrize("kind", ["wordpiece", "byte-level", "unigram"])
def test_pieces_of_the_users_are_never_cut(kind: Any) -> None:
    tokenizer = TextTokenizer.train(LINES, kind=kind, vocab_size=500, specials=["<|user|>"])
    number = tokenizer.id("<|user|>")
    assert number in tokenizer.special_ids
    assert number in tokenizer.encode("hi<|user|>there")
    assert tokenizer.vocab_size <= 500


def test_ids_outside_the_vocabulary_and_half_characters_are_told() -> None:
    tokenizer = trained("byte-level")
    for number in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            tokenizer.decode([number])
        with pytest.raises(ValueError, match="not in the vocabulary"):
            tokenizer.spans([number])
    for call in (tokenizer.encode, lambda text: tokenizer.encode_batch([text])):
        with pytest.raises(UserError, match=r"U\+D83D, half a character"):
            call("a\ud83d")


def test_a_tokenizer_that_stands_alone_finds_its_special_pieces(tmp_path: Path) -> None:
    for kind in ("wordpiece", "unigram"):
        trained(kind).save(tmp_path)
        (tmp_path / "tokenizer_config.json").unlink()
        found = TextTokenizer.load(tmp_path)
        assert found.special_pieces == trained(kind).special_pieces
        assert found.pad_id == trained(kind).pad_id


@pytest.mark.parametrize("files", ["tokenizer.json", "vocab.txt"])
def test_the_real_minilm_gives_the_same_ids(files: str, tmp_path: Path) -> None:
    try:
        folder = fetch("minilm").folder
    except UserError as error:
        pytest.skip(f"the real tokenizer cannot be had here: {error}")
    for name in (files, "tokenizer_config.json", "special_tokens_map.json", "config.json"):
        shutil.copy(folder / name, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.backend_tokenizer.no_truncation()  # the file cuts at 128 ids
    theirs.backend_tokenizer.no_padding()
    check_equal(TextTokenizer.load(tmp_path), theirs, TEXTS + LINES + typed("[MASK]", "[PAD]"))
