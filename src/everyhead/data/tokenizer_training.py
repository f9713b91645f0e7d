"""Learning the pieces of one text's tokenizer: as BERT's, as GPT-2's, or as T5's.

wordpiece    BERT's normaliser, ## pieces, [CLS] … [SEP]     (data/wordpiece.py)
byte-level   merges over bytes: every text comes back        (Radford et al. 2019)
unigram      a piece for each likely stretch (Kudo 2018, arXiv:1804.10959), </s> at the end and
             the sentinels of span corruption, <extra_id_99> … <extra_id_0>, last
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from everyhead.data import wordpiece
from everyhead.data.sentencepiece_file import SPACE, ended
from everyhead.errors import UserError

Kind = Literal["wordpiece", "byte-level", "unigram"]
BERTS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT = "<|endoftext|>"
T5S = ("<pad>", "</s>", "<unk>")
SENTINELS = 100
SMALLEST = {"wordpiece": 100, "byte-level": 257, "unigram": 50 + SENTINELS}


def trained(
    lines: Iterable[str],
    kind: Kind,
    vocab_size: int,
    specials: Sequence[str],
    *,
    lowercase: bool = True,
) -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer of at most `vocab_size` pieces and its tokenizer_config.json.

    Same lines, same pieces; of unigram pieces that are worth exactly the same, chance may choose.

    specials: more pieces that are never cut, such as those around a turn of a conversation.
    lowercase: for wordpiece alone; the others keep capitals.

    Raises:
        UserError: no such kind, a vocabulary too small for what is always in it, or no text.
    """
    if kind not in get_args(Kind):
        raise UserError(f"The tokenizer kind is {kind!r}; it must be one of {get_args(Kind)}.")
    least = SMALLEST[kind] + len(specials)
    if vocab_size < least:
        raise UserError(
            f"vocab_size is {vocab_size}; a {kind} tokenizer needs {least} or more, since special "
            "pieces and single characters or bytes are always in it."
        )
    learn = {"wordpiece": _wordpiece, "byte-level": _byte_level, "unigram": _unigram}[kind]
    inner, config = learn(_some(lines), vocab_size, tuple(specials), lowercase)
    if specials:
        config["additional_special_tokens"] = list(specials)
    return inner, config


def _some(lines: Iterable[str]) -> Iterator[str]:
    """The lines, or an error if there is no text in any."""
    empty = True
    for line in lines:
        empty = empty and not line.strip()
        yield line
    if empty:
        raise UserError("There is no text to learn a tokenizer from: every line is blank.")


def _wordpiece(
    lines: Iterator[str], size: int, specials: tuple[str, ...], lowercase: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    wordpiece.prepare(inner, lowercase=lowercase)
    words: Counter[str] = Counter()
    for line in lines:
        clean = inner.normalizer.normalize_str(line)
        words.update(word for word, _ in inner.pre_tokenizer.pre_tokenize_str(clean))
    first = [*BERTS, *specials]
    characters, pieces = _alphabet(words, (size - len(first)) // 2)
    learned = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learned.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        # All are given in advance: the trainer would number them in an order that changes.
        special_tokens=[*first, *pieces],
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        show_progress=False,
    )
    learned.train_from_iterator((" ".join([w] * n) for w, n in sorted(words.items())), trainer)
    inner.model = models.WordPiece(learned.get_vocab(), unk_token="[UNK]")
    inner.add_special_tokens([*BERTS, *specials])
    named = {f"{piece[1:-1].lower()}_token": piece for piece in BERTS}
    return wordpiece.framed(inner, "[CLS]", "[SEP]"), {**named, "do_lower_case": lowercase}


def _alphabet(words: Mapping[str, int], most: int) -> tuple[list[str], list[str]]:
    """The most frequent characters, and the pieces of one: as a word begins, and ## inside."""
    counts: Counter[str] = Counter()
    for word, n in words.items():
        for character in word:
            counts[character] += n
    kept = set(sorted(counts, key=lambda character: (-counts[character], character))[:most])
    inside = {f"##{character}" for word in words for character in word[1:] if character in kept}
    return sorted(kept), [*sorted(kept), *sorted(inside)]


def _byte_level(
    lines: Iterator[str], size: int, specials: tuple[str, ...], lowercase: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END_OF_TEXT, *specials],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    return inner, dict.fromkeys(("bos_token", "eos_token"), END_OF_TEXT)


def _unigram(
    lines: Iterator[str], size: int, specials: tuple[str, ...], lowercase: bool
) -> tuple[Tokenizer, dict[str, Any]]:
    inner = Tokenizer(models.Unigram())
    inner.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, "always")]
    )
    inner.decoder = decoders.Metaspace(SPACE, "always")
    trainer = trainers.UnigramTrainer(
        vocab_size=size - SENTINELS - len(specials),
        special_tokens=list(T5S),
        unk_token="<unk>",
        show_progress=False,
    )
    inner.train_from_iterator(lines, trainer)
    inner.model = _in_order(inner)
    last = [f"<extra_id_{n}>" for n in reversed(range(SENTINELS))]
    inner.add_special_tokens([AddedToken(piece, normalized=False) for piece in (*specials, *last)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return ended(inner, "</s>"), {**named, "extra_ids": SENTINELS}


def _in_order(inner: Tokenizer) -> models.Unigram:
    """The same pieces, the likeliest first.

    The trainer leaves to chance the order, the last digits, and which of the characters that it
    had to add in the end (a hair apart from one another) is how unlikely: they go by code point.
    """
    pieces = [(p, round(score, 6)) for p, score in json.loads(inner.to_str())["model"]["vocab"]]
    score_of = dict(pieces[len(T5S) :])
    single = sorted((p for p in score_of if len(p) == 1), key=lambda piece: -score_of[piece])
    for run in _runs(single, score_of):
        scores = [score_of[piece] for piece in run]
        score_of.update(zip(sorted(run), scores, strict=True))
    rest = sorted(score_of.items(), key=lambda piece: (-piece[1], piece[0]))
    return models.Unigram([*pieces[: len(T5S)], *rest], T5S.index("<unk>"), byte_fallback=False)


def _runs(pieces: Sequence[str], score_of: Mapping[str, float]) -> list[list[str]]:
    """Neighbours whose scores are a hair apart, together."""
    runs: list[list[str]] = []
    for piece in pieces:
        if runs and score_of[runs[-1][-1]] - score_of[piece] < 3e-4:
            runs[-1].append(piece)
        else:
            runs.append([piece])
    return runs
