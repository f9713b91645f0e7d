import gzip
import io
import lzma
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyhead.data.text import read_lines, write_lines
from everyhead.errors import UserError

LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")).filter(
    lambda line: not line.startswith("\ufeff") and not line.endswith("\r")
)


@given(st.lists(LINE))
def test_what_is_written_is_read_back(lines):
    stream = io.BytesIO()
    write_lines(lines, stream)
    assert read_lines(io.BytesIO(stream.getvalue())) == lines


def test_a_line_ends_at_the_newline_only(tmp_path):
    path = tmp_path / "a.txt"
    odd = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
    path.write_bytes(f"{odd}\r\nlast".encode())
    assert read_lines(path) == [odd, "last"]


@pytest.mark.parametrize(
    ("data", "lines"),
    [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"]), (b"a\n\n", ["a", ""])],
)
def test_blank_lines_are_lines_and_the_last_newline_is_no_line(data, lines):
    assert read_lines(io.BytesIO(data)) == lines


def test_a_line_break_inside_a_line_is_refused():
    with pytest.raises(ValueError, match="Line 2 holds a line break"):
        write_lines(["a", "b\nc"], io.BytesIO())


def test_a_byte_order_mark_at_the_start_is_tolerated_silently():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_lines(io.BytesIO(b"\xef\xbb\xbfa\nb")) == ["a", "b"]


def test_defect_bom_inside_training_text_is_stripped_with_a_warning():
    with pytest.warns(UserWarning, match="1 lines, the first being line 2"):
        assert read_lines(io.BytesIO(b"a\n\xef\xbb\xbfb\nc")) == ["a", "b", "c"]


def test_bytes_that_are_not_utf8_are_named_by_file_and_line(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"one\ntwo\ncaf\xe9\n")
    with pytest.raises(UserError, match=r"latin\.txt, line 3: byte 0xE9 is not UTF-8"):
        read_lines(path)


def test_utf16_is_called_by_its_name(tmp_path):
    path = tmp_path / "notepad.txt"
    path.write_bytes("hello".encode("utf-16"))
    with pytest.raises(UserError, match="is UTF-16"):
        read_lines(path)


def test_a_missing_file_and_a_folder_are_sentences(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        read_lines(tmp_path / "none.txt")
    with pytest.raises(UserError, match="is a folder"):
        read_lines(tmp_path)


@pytest.mark.parametrize(("suffix", "module"), [(".gz", gzip), (".xz", lzma)])
def test_compressed_files_are_read_and_broken_ones_named(tmp_path, suffix, module):
    path = tmp_path / f"a.txt{suffix}"
    whole = module.compress("回家\n".encode())
    path.write_bytes(whole)
    assert read_lines(path) == ["回家"]
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be decompressed"):
        read_lines(path)
    path.write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"a\.txt"):
        read_lines(path)
