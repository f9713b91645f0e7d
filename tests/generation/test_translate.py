"""Lines in, lines out: order, blanks, cuts, chunks, and what the caller is told."""

from collections.abc import Iterator
from itertools import count, islice

import pytest
import torch

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.errors import UserError
from everyhead.generation.hypotheses import EMPTY, Hypothesis
from everyhead.generation.translate import (
    Options,
    batches,
    encoded,
    texts,
    translate,
    translate_stream,
)
from everyhead.models.transformer import Transformer
from tests.generation.models import lively

LINES = ["the cat sat", "a dog", "", "on the mat the cat sat", " \t", "a", "dog on a mat", "the"]


@pytest.fixture(scope="module")
def tokenizer() -> PairTokenizer:
    return PairTokenizer.train(LINES * 3, LINES * 3, vocab_size=280)


@pytest.fixture(scope="module")
def model(tokenizer: PairTokenizer) -> Transformer:
    """It writes ASCII, so that its translations differ as texts."""
    model = lively(tokenizer.target.vocab_size, 2, max_len=20)
    model.output_head.bias[2 + 128 : 2 + 256] = float("-inf")
    return model


def test_lines_come_out_in_order_and_blank_for_blank(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    alone = [translate(model, tokenizer, [line])[0] for line in LINES]
    assert translate(model, tokenizer, LINES) == alone
    assert alone[2] == alone[4] == ""
    assert len(set(alone)) > 4


@pytest.mark.parametrize("batch_tokens", [1, 7, 16, 10_000])
@pytest.mark.parametrize("beam", [1, 2])
def test_the_batch_size_changes_nothing(
    model: Transformer, tokenizer: PairTokenizer, beam: int, batch_tokens: int
) -> None:
    wanted = translate(model, tokenizer, LINES, beam=beam)
    assert translate(model, tokenizer, LINES, beam=beam, batch_tokens=batch_tokens) == wanted


def test_several_threads_translate_the_same(
    model: Transformer, tokenizer: PairTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = translate(model, tokenizer, LINES, beam=2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    model.train()
    try:
        assert translate(model, tokenizer, LINES, beam=2, batch_tokens=16) == wanted
        assert model.training
    finally:
        model.eval()


@pytest.mark.parametrize("chunk_lines", [1, 3, 8])
def test_a_stream_says_the_same_in_chunks_of_any_size(
    model: Transformer, tokenizer: PairTokenizer, chunk_lines: int
) -> None:
    options = Options(chunk_lines=chunk_lines)
    told: list[int] = []
    found = translate_stream(model, tokenizer, LINES, options, progress=told.append)
    assert [best[0].text for best in found] == translate(model, tokenizer, LINES)
    assert told == sorted(told) and told[-1] == len(LINES)


def test_a_stream_reads_no_more_than_a_chunk_ahead(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    read: list[int] = []

    def endless() -> Iterator[str]:
        for number in count():
            read.append(number)
            yield "a dog"

    options = Options(chunk_lines=4)
    assert len(list(islice(translate_stream(model, tokenizer, endless(), options), 5))) == 5
    assert len(read) == 8


def test_no_lines_and_blank_lines_alone_never_reach_the_model(tokenizer: PairTokenizer) -> None:
    model = lively(tokenizer.target.vocab_size)
    model.encode = None
    assert translate(model, tokenizer, []) == []
    assert translate(model, tokenizer, ["", "  ", "\u3000"]) == ["", "", ""]


def test_a_line_that_is_too_long_is_cut_at_the_end_and_told(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    told: list[tuple[int, int, int]] = []
    lines = ["a", "", "zzzz" * 20, "q" * 19, "q" * 20]
    options = Options(chunk_lines=2)
    found = list(
        translate_stream(model, tokenizer, lines, options, on_cut=lambda *cut: told.append(cut))
    )
    assert len(found) == 5
    assert told == [(3, 80, 19), (5, 20, 19)]
    rows = encoded(tokenizer, lines, 20)
    assert [len(row) for row in rows] == [2, 0, 20, 20, 20]
    assert rows[2][-1] == rows[4][-1] == tokenizer.source.eos_id
    assert found[3][0].text == found[4][0].text


def test_the_n_best_are_shown_best_first_and_the_best_is_the_only_one_of_one(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    found = list(translate_stream(model, tokenizer, LINES, Options(beam=3, n_best=3)))
    scores = [[t.hypothesis.score for t in best] for best in found]
    assert scores == [sorted(row, reverse=True) for row in scores]
    assert [best[0].text for best in found] == translate(model, tokenizer, LINES, beam=3)
    assert [t.hypothesis for t in found[2]] == [EMPTY]


def test_a_line_break_that_the_model_writes_stays_in_its_line(tokenizer: PairTokenizer) -> None:
    ids = tokenizer.target.encode("a\nb\r\nc")
    assert texts(tokenizer, [Hypothesis(ids, 0.0, 0.0, True)])[0].text == "a b  c"


def test_separate_vocabularies_translate_from_one_to_the_other(tokenizer: PairTokenizer) -> None:
    target = ["die katze sass", "ein hund auf der matte"] * 3
    two = PairTokenizer.train(LINES * 3, target, vocab_size=(270, 290), shared=False)
    model = lively(290, 1, source_vocab_size=270)
    assert len(translate(model, two, LINES, beam=2)) == len(LINES)
    with pytest.raises(UserError, match="270 source and 290 target pieces and the model 290"):
        translate(lively(290), two, LINES)


def test_another_model_s_tokenizer_is_refused_before_anything_is_read(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    other = PairTokenizer.train(LINES, LINES, vocab_size=270)
    with pytest.raises(UserError, match="do not belong together"):
        translate_stream(model, other, iter(lambda: pytest.fail("read"), None))


def test_options_are_checked_before_anything_is_read(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    for options in (Options(beam=0), Options(n_best=2), Options(chunk_lines=0)):
        with pytest.raises(UserError):
            translate_stream(model, tokenizer, [], options)


def test_batches_hold_similar_lengths_within_the_budget_each_place_once() -> None:
    lengths = torch.randint(0, 30, (200,), generator=torch.Generator().manual_seed(0)).tolist()
    found = list(batches(lengths, 64))
    assert sorted(i for places in found for i in places) == [i for i, n in enumerate(lengths) if n]
    assert all(len(places) * max(lengths[i] for i in places) <= 64 for places in found)
    longest = [max(lengths[i] for i in places) for places in found]
    assert longest == sorted(longest, reverse=True)
    assert list(batches([100, 3, 4], 10)) == [[0], [2, 1]]


def test_a_line_of_invisible_characters_is_blank(
    model: Transformer, tokenizer: PairTokenizer
) -> None:
    assert translate(model, tokenizer, ["\u200b\u200b", "\ufeff"]) == ["", ""]
