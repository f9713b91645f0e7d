import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everyhead.data.batching import BatchPlan, EncodedPairs, collate, encode_pairs
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.pairs import Pairs
from everyhead.errors import UserError

from .conftest import SOURCE, TARGET

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
IDS = EncodedPairs([[5, 6, 7], [], [8]], [[9], [9, 9], [0, 99, 3, 4]])


@given(LENGTHS, st.integers(1, 100), st.integers(0, 5), st.booleans())
def test_every_sentence_is_in_one_batch_that_keeps_the_budget(lengths, budget, epoch, sort):
    source, target = zip(*lengths, strict=True)
    plan = BatchPlan(source, target, batch_tokens=budget, seed=1, sort=sort)
    batches = plan.epoch(epoch)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        width = max(max(lengths[i]) for i in batch)
        assert len(batch) * width <= budget or len(batch) == 1


@given(LENGTHS, st.integers(1, 20))
def test_batches_of_a_number_of_sentences(lengths, rows):
    source, target = zip(*lengths, strict=True)
    batches = BatchPlan(source, target, batch_sentences=rows, seed=1).epoch(0)
    assert [len(batch) for batch in batches[:-1]] == [rows] * (len(batches) - 1)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))


def test_a_sentence_longer_than_the_budget_is_a_batch_by_itself():
    plan = BatchPlan([3, 50, 3], [3, 3, 3], batch_tokens=10, seed=0)
    assert sorted(map(sorted, plan.epoch(0))) == [[0, 2], [1]]


def test_the_order_depends_on_seed_and_epoch_alone():
    lengths = np.random.default_rng(0).integers(1, 30, 200).tolist()

    def order(seed: int, *epochs: int) -> list:
        plan = BatchPlan(lengths, lengths, batch_tokens=300, seed=seed)
        return [plan.epoch(epoch) for epoch in epochs][-1]

    assert order(1, 0, 1, 2) == order(1, 2)
    assert order(1, 2) != order(1, 3)
    assert order(1, 2) != order(2, 2)


def test_every_epoch_of_a_token_budget_has_the_same_number_of_batches():
    rng = np.random.default_rng(0)
    source, target = rng.integers(1, 30, (2, 300)).tolist()
    plan = BatchPlan(source, target, batch_tokens=256, seed=0)
    assert len({len(plan.epoch(number)) for number in range(8)}) == 1


def test_sorting_leaves_little_padding():
    lengths = np.random.default_rng(0).integers(2, 60, 3000)

    def real_share(sort: bool) -> float:
        batches = BatchPlan(lengths, lengths, batch_tokens=1024, seed=0, sort=sort).epoch(0)
        return lengths.sum() / sum(lengths[b].max() * len(b) for b in batches)

    assert real_share(True) > 0.95 > real_share(False)


@pytest.mark.parametrize(
    "options", [{}, {"batch_tokens": 9, "batch_sentences": 9}, {"batch_tokens": 0}]
)
def test_a_plan_needs_one_size(options):
    with pytest.raises(UserError, match="batch_tokens"):
        BatchPlan([1], [1], seed=0, **options)


@pytest.mark.parametrize(("source", "target"), [([], []), ([1, 2], [1])])
def test_a_plan_needs_as_many_sources_as_targets(source, target):
    with pytest.raises(UserError, match="Cannot batch"):
        BatchPlan(source, target, batch_tokens=9, seed=0)


def test_a_batch_is_laid_out_as_promised():
    batch = collate(IDS, [0, 2], pad_id=99, source_pad_id=77)
    assert batch.source.tolist() == [[5, 6, 7, 0], [8, 0, 77, 77]]
    assert batch.source_mask.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.target_in.tolist() == [[99, 9, 99, 99, 99], [99, 0, 99, 3, 4]]
    assert batch.labels.tolist() == [[9, 0, 99, 99, 99], [0, 99, 3, 4, 0]]
    assert batch.target_mask.tolist() == [[True, True, False, False, False], [True] * 5]
    assert (batch.n_target, batch.n_sentences) == (7, 2)
    assert batch.source.dtype == batch.labels.dtype == torch.int64
    assert batch.target_mask.dtype == torch.bool


def test_a_batch_moves_whole():
    batch = collate(IDS, [0, 1], pad_id=99).to("meta")
    assert batch.source.device.type == batch.target_mask.device.type == "meta"
    assert batch.n_target == 5


def test_defect_a_blank_source_makes_a_row_of_eos_alone_and_no_crash():
    batch = collate(IDS, [1], pad_id=99)
    assert batch.source.tolist() == [[0]]
    assert batch.source_mask.tolist() == [[True]]


def test_defect_eos_has_a_label_and_pads_are_masked_by_length_not_by_id():
    """Ids 0 and 99 stand inside the target too, and are not taken for `</s>` or padding."""
    batch = collate(IDS, [0, 1, 2], pad_id=99)
    for row, mask, ids in zip(batch.labels, batch.target_mask, IDS.target, strict=True):
        assert row[mask].tolist() == [*ids, 0]


def test_defect_the_count_of_real_tokens_does_not_depend_on_the_batch_size():
    ids = EncodedPairs([[5] * n for n in range(24)], [[6] * (n * 7 % 24) for n in range(24)])
    totals = set()
    for rows in (1, 3, 8):
        plan = BatchPlan(ids.source_lengths, ids.target_lengths, batch_sentences=rows, seed=0)
        totals.add(sum(collate(ids, batch, pad_id=9).n_target for batch in plan.epoch(0)))
    assert totals == {sum(ids.target_lengths)}


def test_too_long_pairs_are_left_out_and_counted():
    short, dropped = IDS.within(4)
    assert short == EncodedPairs([[5, 6, 7], []], [[9], [9, 9]])
    assert dropped == 1
    assert max(short.source_lengths + short.target_lengths) == 4


def test_pairs_are_encoded_by_their_sides_tokenizer():
    pair = PairTokenizer.train(SOURCE, TARGET, vocab_size=(320, 330), shared=False)
    ids = encode_pairs(Pairs(SOURCE, TARGET), pair)
    assert ids.size == len(SOURCE)
    assert [pair.source.decode(row) for row in ids.source] == SOURCE
    assert [pair.target.decode(row) for row in ids.target] == TARGET
