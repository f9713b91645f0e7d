"""docs/defects.md names tests that exist, one at least a defect, and none for what is not here."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "defects.md").read_text(encoding="utf-8")
HELD, NOT_YET = PAGE.split("\n## Not yet", 1)
NAME = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(text: str) -> list[list[str]]:
    """The cells of every table row, heads and rules left out."""
    lines = text.splitlines()
    rules = {i for i, line in enumerate(lines) if line.startswith("|---")}
    heads = {i - 1 for i in rules}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for i, line in enumerate(lines)
        if line.startswith("|") and i not in rules | heads
    ]


@cache
def defined_tests(path: Path) -> set[str]:
    """Names of the test functions at the top of a file; read, not imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name for name in functions if name.startswith("test_")}


NAMED = sorted(set(NAME.findall(HELD)))


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_every_test_on_the_page_exists(path: str) -> None:
    assert (ROOT / path).is_file(), f"docs/defects.md names {path}, which does not exist"
    named = {test for each, test in NAMED if each == path}
    assert named - defined_tests(ROOT / path) == set()


def test_every_defect_has_its_right_behaviour_and_its_test() -> None:
    for row in rows(HELD):
        assert len(row) == 3 and all(row), row
        names = ", ".join(f"`{path}::{test}`" for path, test in NAME.findall(row[2]))
        assert row[2] == names, row


def test_no_defect_stands_there_twice() -> None:
    names = [row[0] for row in rows(HELD) + rows(NOT_YET)]
    assert len(names) == len(set(names)) and len(rows(HELD)) > 60


def test_what_is_not_here_yet_names_no_test() -> None:
    assert all(len(row) == 2 and all(row) for row in rows(NOT_YET))
    assert "::" not in NOT_YET and "tests/" not in NOT_YET


def test_every_test_written_for_a_defect_is_on_the_page() -> None:
    written = {
        (path.relative_to(ROOT).as_posix(), test)
        for path in (ROOT / "tests" / "defects").glob("test_*.py")
        for test in defined_tests(path)
    }
    assert len(written) >= 8 and written - set(NAMED) == set()
