"""Tokenizers out of .gguf files, beside tokenizers, SentencePiece and transformers."""

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.weights.gguf_tokenizer import tokenizer_of
from tests.weights.gguf_files import llama, write

LINES = [
    "the cat sat on the mat, and it's fine",
    "A small house on the hill; 1999 was 12345 days ago.",
    "we walk home in the rain\n\n  twice   more",
    "下雨了，我们走回家去看书。",
    "Émile déjà vu: naïve café 🙂",
]
UNSEEN = ["the rain isn't 2024's, café 雨 🙃", "  two  spaces\tand a tab\r\n", "", " ", "A1b22c333"]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(cuts: Any) -> tokenizers.Tokenizer:
    """A small byte-level BPE, cut by this rule."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = cuts
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(LINES, trainer)
    return inner


def values_of(inner: tokenizers.Tokenizer, pre: str, **more: Any) -> dict[str, Any]:
    """What a converter writes of it."""
    import json

    told = json.loads(inner.to_str())["model"]
    pieces = sorted(told["vocab"], key=told["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [3 if piece in SPECIALS else 1 for piece in pieces],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in told["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


PLAIN = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
# As Llama 3's own tokenizer.json has it.
LLAMA3S = tokenizers.pre_tokenizers.Sequence(
    [
        tokenizers.pre_tokenizers.Split(
            tokenizers.Regex(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
                r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            ),
            "isolated",
        ),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
SMOLLMS = tokenizers.pre_tokenizers.Sequence(
    [tokenizers.pre_tokenizers.Digits(individual_digits=True), PLAIN]
)


@pytest.mark.parametrize(
    ("pre", "cuts"), [("gpt-2", PLAIN), ("smollm", SMOLLMS), ("llama-bpe", LLAMA3S)]
)
def test_byte_level_ids_are_those_of_the_tokenizer_it_was_made_of(pre: str, cuts: Any) -> None:
    inner = byte_level(cuts)
    found = tokenizer_of(values_of(inner, pre, add_bos_token=False), "small.gguf")
    assert found is not None and (found.bos_id, found.eos_id) == (1, 2)
    for text in [*LINES, *UNSEEN]:
        assert found.encode(text) == inner.encode(text).ids
        assert found.decode(found.encode(text)) == text
    chat = "<|im_start|>user\nhi<|im_end|>"
    assert found.encode(chat)[0] == 1 and found.encode(chat)[-1] == 2
    assert found.decode(found.encode(chat)) == "user\nhi"


def test_llama3_begins_with_its_first_piece_unless_the_file_says_otherwise() -> None:
    inner = byte_level(LLAMA3S)
    for more, framed in (({}, True), ({"add_bos_token": False}, False)):
        found = tokenizer_of(values_of(inner, "llama-bpe", **more), "small.gguf")
        plain = inner.encode("a cat").ids
        assert found.encode("a cat") == ([1, *plain] if framed else plain)
        assert found.encode("a cat", special=False) == plain
    both = tokenizer_of(values_of(inner, "smollm", add_bos_token=True, add_eos_token=True), "x")
    assert both.encode("a cat", "a") == [1, *plain, 2, 1, *inner.encode("a").ids, 2]


@pytest.fixture(scope="module")
def spm() -> sentencepiece.SentencePieceProcessor:
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 4),
        model_writer=made,
        vocab_size=400,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def spm_values(spm: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    ids = range(spm.get_piece_size())
    kinds = [
        2 if spm.is_unknown(i) else 3 if spm.is_control(i) else 6 if spm.is_byte(i) else 1
        for i in ids
    ]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [spm.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [spm.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": spm.unk_id(),
        "tokenizer.ggml.bos_token_id": spm.bos_id(),
        "tokenizer.ggml.eos_token_id": spm.eos_id(),
    }


def test_sentencepiece_ids_are_sentencepieces(spm: sentencepiece.SentencePieceProcessor) -> None:
    found = tokenizer_of(spm_values(spm), "small.gguf")
    for text in [*LINES, *UNSEEN]:
        if not text:
            continue
        assert found.encode(text) == [spm.bos_id(), *spm.encode(text)]
        assert found.decode(found.encode(text)) == text


def test_what_transformers_reads_from_the_same_file(
    spm: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    values = {name.replace(".", "__"): value for name, value in spm_values(spm).items()}
    path = write(tmp_path / "small.gguf", llama(vocab_size=spm.get_piece_size()), **values)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    found = tokenizer_of(spm_values(spm), path)
    for text in LINES:
        assert found.encode(text) == theirs(text)["input_ids"]


def test_it_comes_back_from_a_folder(
    spm: sentencepiece.SentencePieceProcessor, tmp_path: Path
) -> None:
    template = "{{ messages[0]['content'] }}"
    values = spm_values(spm) | {"tokenizer.chat_template": template}
    for number, each in enumerate((values, values_of(byte_level(SMOLLMS), "smollm"))):
        found = tokenizer_of(each, "small.gguf")
        found.save(tmp_path / str(number))
        again = TextTokenizer.load(tmp_path / str(number))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert again.chat_template == found.chat_template == (None if number else template)
        for text in LINES:
            assert again.encode(text) == found.encode(text) == theirs(text)["input_ids"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tokenizer.ggml.pre": "qwen2"}, "cut by the rule 'qwen2'"),
        ({"tokenizer.ggml.pre": None}, "cut by the rule 'None'"),
        ({"tokenizer.ggml.model": "t5"}, "tokenizer of type 't5'"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "eos_token_id 4000 is outside"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "twice"),
        ({"tokenizer.ggml.merges": ["q z"]}, "no whole tokenizer"),
        ({"tokenizer.ggml.merges": 7}, "no whole tokenizer"),
    ],
)
def test_what_it_cannot_be_is_named(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        tokenizer_of(values_of(byte_level(PLAIN), "gpt-2") | change, "small.gguf")


def test_a_file_without_one_has_none() -> None:
    assert tokenizer_of({"general.architecture": "llama"}, "small.gguf") is None
