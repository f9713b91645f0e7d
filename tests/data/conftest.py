"""A small corpus and one tokenizer of each kind, learned from it once."""

import pytest

from everyhead.data.tokenizer import Tokenizer, train_tokenizer

SOURCE = [
    "On the way home, I bought bread.",
    "The bread at home isn't old.",
    "He bought 12 books on the way.",
    "Is the old man at home?",
    "She's on her way to the old library.",
] * 3
TARGET = [
    "回家的路上，我买了面包。",
    "家里的面包不旧。",
    "他在路上买了12本书。",
    "老人在家吗？",
    "她在去旧图书馆的路上。",
] * 3
KINDS = ("byte-fallback", "byte-level")
SIZES = (500, (330, 340))


@pytest.fixture(scope="session")
def trained() -> dict[tuple, Tokenizer]:
    """By kind and size: one number is a joint BPE, two numbers one BPE a side joined."""
    return {
        (kind, size): train_tokenizer(SOURCE, TARGET, kind=kind, vocab_size=size)
        for kind in KINDS
        for size in SIZES
    }


@pytest.fixture(params=[(kind, size) for kind in KINDS for size in SIZES], ids=str)
def tokenizer(request, trained) -> Tokenizer:
    return trained[request.param]
