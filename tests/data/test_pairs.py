import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyhead.data.pairs import PairFilter, Pairs, filter_pairs, read_parallel, read_tsv
from everyhead.data.text import write_lines
from everyhead.errors import UserError

SENTENCE = st.text("ab 回\t\u3000", max_size=6)


@given(st.lists(st.tuples(SENTENCE, SENTENCE)), st.integers(1, 8), st.floats(1, 4))
def test_filters_keep_true_pairs_in_order_and_count_every_pair_once(rows, max_bytes, max_ratio):
    keep = PairFilter(max_bytes=max_bytes, max_ratio=max_ratio)
    pairs, counts = filter_pairs(Pairs.of(rows), keep)
    stripped = [(source.strip(), target.strip()) for source, target in rows]
    left = iter(dict.fromkeys(stripped))
    assert all(row in left for row in pairs.rows())  # a subsequence
    assert counts.read == len(rows) == sum(counts[1:])
    assert counts.kept == pairs.size
    assert all(keep.reason(*row) is None for row in pairs.rows())


def test_defect_pairs_after_a_blank_line_do_not_shift():
    pairs, counts = filter_pairs(Pairs(["a", "", "c"], ["A", "B", "C"]))
    assert list(pairs.rows()) == [("a", "A"), ("c", "C")]
    assert counts.blank == 1


def test_defect_files_of_2042_and_1997_lines_are_refused_with_both_counts(tmp_path):
    write_lines(["s"] * 2042, tmp_path / "a.en")
    write_lines(["t"] * 1997, tmp_path / "a.de")
    with pytest.raises(UserError, match=r"a\.en has 2,042 lines and .*a\.de has 1,997"):
        read_parallel(tmp_path / "a.en", tmp_path / "a.de")


def test_each_filter_drops_what_it_names():
    rows = [
        ("a", "A"),
        (" a ", "A"),  # the same once stripped
        ("same", "same"),
        ("long", "x" * 30),
        ("long" * 9, "x" * 41),
        ("\u3000", "A"),
        ("b", "B"),
    ]
    pairs, counts = filter_pairs(Pairs.of(rows), PairFilter(max_bytes=40, max_ratio=4))
    assert list(pairs.rows()) == [("a", "A"), ("b", "B")]
    assert counts == (7, 1, 1, 1, 1, 1, 2)


def test_filters_can_be_switched_off():
    rows = [("same", "same"), ("same", "same")]
    keep = PairFilter(drop_identical=False, drop_duplicates=False)
    assert filter_pairs(Pairs.of(rows), keep)[0].size == 2
    with pytest.raises(UserError, match="max_bytes"):
        PairFilter(max_bytes=0)


def test_the_ratio_counts_bytes_so_that_chinese_is_not_short():
    pairs, _ = filter_pairs(Pairs(["On the way home, I bought bread."], ["回家路上我买面包。"]))
    assert pairs.size == 1


def test_a_tsv_is_read_with_its_blank_lines(tmp_path):
    path = tmp_path / "pairs.tsv"
    write_lines(["a\tA", "", "c\tC", "d\t"], path)
    assert list(read_tsv(path).rows()) == [("a", "A"), ("", ""), ("c", "C"), ("d", "")]


@pytest.mark.parametrize(("line", "count"), [("alone", "1 column"), ("a\tb\tc", "3 columns")])
def test_a_tsv_line_without_two_columns_is_named(tmp_path, line, count):
    path = tmp_path / "pairs.tsv"
    write_lines(["a\tA", line], path)
    with pytest.raises(UserError, match=f"line 2 has {count} where two are needed"):
        read_tsv(path)


def test_empty_files_are_named(tmp_path):
    path = tmp_path / "nothing"
    path.write_bytes(b"")
    with pytest.raises(UserError, match="nothing is empty"):
        read_tsv(path)
    with pytest.raises(UserError, match="are empty"):
        read_parallel(path, path)


def test_defect_a_side_of_invisible_characters_alone_is_blank():
    """Zero-width spaces and byte order marks are no white space to str.strip."""
    pairs = Pairs(["one", "\u200b", "\ufeff \u2060", "four"], ["A", "B", "C", "\u00ad\x00"])
    kept, counts = filter_pairs(pairs)
    assert kept == Pairs(["one"], ["A"]) and counts.blank == 3


def test_quotation_marks_around_every_column_are_kept_and_told(tmp_path, recwarn):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'"a ""b"""\t"A"\n\n"c"\t"C"\n')
    with pytest.warns(UserWarning, match=r"a\.tsv: every column stands in quotation marks"):
        assert read_tsv(path).source == ['"a ""b"""', "", '"c"']
    for plain in (b'"a"\t"A"\nb\tB\n', b"\n\n", b'"\t"\n'):
        path.write_bytes(plain)
        read_tsv(path)
    assert not recwarn.list
