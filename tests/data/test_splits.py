import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyhead.data.pairs import Pairs
from everyhead.data.splits import (
    groups,
    split_blocks,
    split_by_group,
    stable_fraction,
    without_shared,
)
from everyhead.errors import UserError

ROWS = st.lists(st.tuples(st.text("abc", max_size=2), st.text("xyz", max_size=2)), max_size=30)


def many(count: int) -> Pairs:
    return Pairs([f"s{n}" for n in range(count)], [f"t{n}" for n in range(count)])


def connected_by_hand(rows):
    """Grow each pair's group until nothing more shares a sentence with it."""
    named = []
    for row in rows:
        group = {row}
        while True:
            more = {r for r in rows if any(r[0] == g[0] or r[1] == g[1] for g in group)}
            if more == group:
                break
            group = more
        named.append("\t".join(min(group, key="\t".join)))
    return named


@given(ROWS)
def test_groups_are_the_connected_components(rows):
    assert groups(Pairs.of(rows)) == connected_by_hand(rows)


@given(ROWS, st.randoms())
def test_a_group_is_named_alike_in_any_order(rows, random):
    before = dict(zip(rows, groups(Pairs.of(rows)), strict=True))
    random.shuffle(rows)
    assert before == dict(zip(rows, groups(Pairs.of(rows)), strict=True))


def test_no_sentence_stands_on_both_sides_of_a_group_split():
    rows = [(f"s{n % 700}", f"t{n % 900}") for n in range(0, 4000, 3)]
    rows += [(f"u{n // 2}", f"v{n}") for n in range(2000)]
    splits, counts = split_by_group(Pairs.of(rows), validation=0.1, test=0.1)
    for side in range(2):
        seen = [set(part[side]) for part in splits]
        assert not (seen[0] & seen[1] or seen[0] & seen[2] or seen[1] & seen[2])
    assert sum(counts) == len(rows)


def test_a_group_split_has_about_the_shares_asked_for_and_keeps_the_order():
    splits, _ = split_by_group(many(10_000), validation=0.05, test=0.1)
    assert abs(splits.validation.size - 500) < 100
    assert abs(splits.test.size - 1000) < 130
    numbers = [int(line[1:]) for line in splits.test.source]
    assert numbers == sorted(numbers)


def test_a_pair_keeps_its_side_when_the_corpus_grows():
    small, _ = split_by_group(many(1000))
    large, _ = split_by_group(many(2000))
    assert set(small.test.source) <= set(large.test.source)


def test_the_salt_draws_another_split():
    assert split_by_group(many(1000))[0] != split_by_group(many(1000), salt="b")[0]


def test_the_hash_is_the_same_in_every_process():
    code = "from everyhead.data.splits import stable_fraction; print(stable_fraction('回家\\tx'))"
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert float(shown) == stable_fraction("回家\tx")


def test_blocks_are_held_out_whole():
    splits, counts = split_blocks(many(4000), block=50, every=20)
    assert splits.test.source[:50] == [f"s{n}" for n in range(950, 1000)]
    assert splits.validation.source[:50] == [f"s{n}" for n in range(450, 500)]
    assert counts[:3] == (3600, 200, 200)


def test_held_out_pairs_that_share_a_sentence_with_training_are_dropped_and_counted():
    pairs = many(4000)
    pairs.source[960] = pairs.source[0]
    pairs.target[470] = pairs.target[1]
    pairs.target[480] = pairs.target[990]  # validation and test
    splits, counts = split_blocks(pairs)
    assert counts == (3600, 198, 199, 0, 2, 1)
    for side in range(2):
        assert not set(splits.train[side]) & {*splits.validation[side], *splits.test[side]}
        assert not set(splits.validation[side]) & set(splits.test[side])


def test_a_small_file_gets_small_blocks():
    _, counts = split_blocks(many(60), block=50, every=20)
    assert counts[:3] == (54, 3, 3)


@pytest.mark.parametrize("count", [0, 1, 2, 19])
def test_defect_own_data_that_is_too_small_is_refused_with_its_sizes(count):
    with pytest.raises(UserError, match=r"Too few pairs.* for training.* for test"):
        split_blocks(many(count))


def test_a_group_that_holds_everything_is_refused_with_sizes():
    with pytest.raises(UserError, match="0 for"):
        split_by_group(Pairs(["same"] * 50, [f"t{n}" for n in range(50)]))


@pytest.mark.parametrize(("validation", "test"), [(0, 0.1), (0.1, 0), (0.5, 0.5)])
def test_impossible_shares_are_refused(validation, test):
    with pytest.raises(UserError, match="shares held out"):
        split_by_group(many(100), validation=validation, test=test)


def test_impossible_blocks_are_refused():
    with pytest.raises(UserError, match="block is 0"):
        split_blocks(many(100), block=0)


@given(ROWS, ROWS)
def test_nothing_shared_is_left(rows, others):
    kept, dropped = without_shared(Pairs.of(rows), [Pairs.of(others)])
    by_hand = [r for r in rows if all(r[0] != o[0] and r[1] != o[1] for o in others)]
    assert list(kept.rows()) == by_hand
    assert dropped == len(rows) - len(by_hand)
