"""Tokenizers of the kinds that published decoders have, small, behind the verbs of ours."""

from collections.abc import Sequence
from functools import cache

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

LINES = [
    "The cat sat on the mat, and the dog sat by the door.",
    "To be, or not to be: that is the question.",
    "我看见一只猫。 你好，世界！",
    "naïve café — 🙂 👍🏽 👨‍👩‍👧 🇫🇷 e\u0301",
]
END, BEGIN = "<|end|>", "<|begin|>"
BYTES = [f"<0x{number:02X}>" for number in range(256)]


class Spelled:
    """A `tokenizers.Tokenizer` with the verbs that generation uses."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        self.vocab_size = inner.get_vocab_size()
        self.eos_id = inner.token_to_id(END)

    def encode(self, text: str, pair: str | None = None, *, special: bool = True) -> list[int]:
        return self.inner.encode(text, pair, add_special_tokens=special).ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=skip_special)


@cache
def byte_level() -> Spelled:
    """As GPT-2's: pieces of bytes."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END, BEGIN], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(LINES, trainer)
    return Spelled(inner)


@cache
def byte_fallback() -> Spelled:
    """As Llama 2's: words with their space, and bytes for what is in no piece."""
    words = ["▁", "▁the", "▁cat", "t", "h", "e", "c", "a", "s", "▁sat", "猫", "\ufffd"]
    vocabulary = {word: i for i, word in enumerate([END, BEGIN, *BYTES, *words])}
    inner = tokenizers.Tokenizer(
        models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, fuse_unk=True)
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens([END, BEGIN])
    begin = inner.token_to_id(BEGIN)
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, begin)]
    )
    return Spelled(inner)


@cache
def metaspace() -> Spelled:
    """As T5's: a unigram model whose pieces carry the space before them."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=[END, BEGIN, "<unk>"], unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator(LINES, trainer)
    return Spelled(inner)


@cache
def wordpiece() -> Spelled:
    """As BERT's: ## joins a piece to the one before it."""
    inner = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=90, special_tokens=[END, BEGIN, "<unk>"], show_progress=False
    )
    inner.train_from_iterator(LINES, trainer)
    return Spelled(inner)


SPELLINGS = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}
