"""metrics.jsonl: whole lines, cut back on resume; perplexity from sums."""

import json
import math
from pathlib import Path

import pytest

from everyhead.training.metrics import FILE, append_row, cut_back, perplexity, read_rows


def test_rows_come_back_in_order(tmp_path: Path):
    rows = [{"step": 1, "kind": "train", "loss": 0.1 + 0.2}, {"step": 2, "note": "中文"}]
    for row in rows:
        append_row(tmp_path, row)
    assert read_rows(tmp_path) == rows
    assert "中文" in (tmp_path / FILE).read_text(encoding="utf-8")


def test_numbers_that_are_not_finite_are_null(tmp_path: Path):
    append_row(tmp_path, {"step": 1, "loss": math.nan, "perplexity": math.inf})
    assert read_rows(tmp_path) == [{"step": 1, "loss": None, "perplexity": None}]
    assert json.loads((tmp_path / FILE).read_text(encoding="utf-8"))


def test_no_file_is_no_rows(tmp_path: Path):
    assert read_rows(tmp_path) == []


@pytest.mark.parametrize("cut", [1, 12, 30])
def test_a_last_line_cut_short_by_a_kill_is_left_out(tmp_path: Path, cut: int):
    append_row(tmp_path, {"step": 1})
    append_row(tmp_path, {"step": 2, "note": "下雨了，我们走回家"})
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[:-cut])
    assert read_rows(tmp_path)[0] == {"step": 1}
    cut_back(tmp_path, 1)
    append_row(tmp_path, {"step": 3})
    assert read_rows(tmp_path) == [{"step": 1}, {"step": 3}]


def test_cutting_back_keeps_every_byte_up_to_the_step(tmp_path: Path):
    for step in (1, 2, 2, 3):
        append_row(tmp_path, {"step": step, "loss": 1 / 3, "kind": "train"})
    before = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    cut_back(tmp_path, 2)
    assert (tmp_path / FILE).read_bytes() == b"".join(before[:3])
    cut_back(tmp_path, 0)
    assert (tmp_path / FILE).read_bytes() == b""
    assert [p.name for p in tmp_path.iterdir()] == [FILE]


def test_perplexity_is_a_quotient_of_sums():
    assert perplexity(math.log(8), 3) == pytest.approx(2)
    assert perplexity(1e9, 1) == math.inf
    assert math.isnan(perplexity(0.0, 0))
