import json

import pytest

from everyhead.data.pairs import FilterCounts, PairFilter
from everyhead.data.text import write_lines
from everyhead.data.translation import PairSource, SplitRule, counts_text, prepare_pairs
from everyhead.errors import UserError

from .test_corpora import needs_hsk


def tsv(path, start, stop, extra=()):
    write_lines([f"source {n}\ttarget {n}" for n in range(start, stop)] + list(extra), path)
    return PairSource(pairs=path)


@needs_hsk
def test_the_built_in_corpus_is_cut_by_group_with_its_attribution():
    splits, report = prepare_pairs(PairSource(corpus="hsk-en-zh"))
    assert report["split_by"] == "group"
    assert report["origin"]["licence"] == "CC-BY-SA-4.0"
    assert report["origin"]["attribution"]
    assert [part.size for part in splits] == list(report["splits"].values())[:3]
    assert sum(part.size for part in splits) == report["filters"]["kept"]
    assert 150 < splits.test.size < 300
    for side in range(2):
        assert not set(splits.train[side]) & {*splits.validation[side], *splits.test[side]}


def test_a_users_file_is_cut_by_block(tmp_path):
    splits, report = prepare_pairs(
        tsv(tmp_path / "a.tsv", 0, 2000, ["x\tx", "", "source 0\ttarget 0"])
    )
    assert report["split_by"] == "block"
    assert report["filters"] == {
        "read": 2003, "blank": 1, "identical": 1, "too_long": 0, "length_ratio": 0,
        "duplicate": 1, "kept": 2000,
    }  # fmt: skip
    assert splits.test.source[0] == "source 950"
    assert report == json.loads(json.dumps(report))


def test_two_files_are_one_file_of_pairs(tmp_path):
    write_lines([f"source {n}" for n in range(100)], tmp_path / "a")
    write_lines([f"target {n}" for n in range(100)], tmp_path / "b")
    both = PairSource(source=tmp_path / "a", target=tmp_path / "b")
    assert prepare_pairs(both).splits == prepare_pairs(tsv(tmp_path / "c", 0, 100)).splits


def test_settings_of_filter_and_split_are_obeyed(tmp_path):
    origin = tsv(tmp_path / "a.tsv", 0, 1000)
    rule = SplitRule(block=10, every=5)
    splits, report = prepare_pairs(origin, keep=PairFilter(max_bytes=9), rule=rule)
    assert report["filters"]["kept"] == 10 + 90
    assert [part.size for part in splits] == [60, 20, 20]


def test_given_sets_stay_as_they_are_and_training_keeps_clear_of_them(tmp_path):
    long = "a\t" + "b" * 2000
    origin = tsv(tmp_path / "train.tsv", 0, 100)
    validation = tsv(tmp_path / "validation.tsv", 90, 95)
    test = tsv(tmp_path / "test.tsv", 95, 110, ["", long, long, "x\tx"])
    splits, report = prepare_pairs(origin, validation=validation, test=test)
    assert splits.train.source == [f"source {n}" for n in range(90)]
    assert splits.validation.size == 5
    assert splits.test.size == 15 + 3
    assert report["test"]["filters"]["blank"] == 1
    assert report["splits"]["dropped_train"] == 10


@pytest.mark.parametrize("name", ["validation", "test"])
def test_a_set_that_is_not_given_is_cut_out_of_training(tmp_path, name):
    origin = tsv(tmp_path / "a.tsv", 0, 1000)
    splits, report = prepare_pairs(origin, **{name: tsv(tmp_path / "b.tsv", 0, 10)})
    assert getattr(splits, name).source == [f"source {n}" for n in range(10)]
    assert min(part.size for part in splits) >= 10
    assert sum(part.size for part in splits) == 1000
    assert report["splits"]["dropped_train"] == 10
    for side in range(2):
        assert len({line for part in splits for line in part[side]}) == 1000


@pytest.mark.parametrize(
    "names", [{}, {"corpus": "a", "pairs": "b"}, {"source": "a"}, {"target": "a"},
              {"pairs": "p", "source": "a", "target": "b"}],
)  # fmt: skip
def test_an_origin_is_exactly_one(names):
    with pytest.raises(UserError):
        PairSource(**names)


def test_defect_own_data_that_is_too_small_says_so_before_training(tmp_path):
    with pytest.raises(UserError, match="Too few pairs to train and to measure"):
        prepare_pairs(tsv(tmp_path / "a.tsv", 0, 5))


def test_a_file_of_which_nothing_is_left_says_which_filters_took_it(tmp_path):
    write_lines(["a\ta", "", "b\tb"], tmp_path / "a.tsv")
    with pytest.raises(UserError, match=r"No pair is left.*3 read, 1 blank, 2 identical"):
        prepare_pairs(PairSource(pairs=tmp_path / "a.tsv"))


def test_counts_read_as_words(tmp_path):
    _, report = prepare_pairs(tsv(tmp_path / "a.tsv", 0, 1200))
    assert report["filters"]["kept"] == 1200
    assert counts_text(FilterCounts(**report["filters"])) == "1,200 read, 1,200 kept"
