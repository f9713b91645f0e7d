"""docs/equations.md names places that exist, all of reference.py, and every equation line."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
REFERENCE = "reference.py"
N_LINES = {"A": 152, "B": 746}

# Every line of the documents that states an equation, a shape or a step of code. The documents are
# not part of this repository, so their line numbers are kept here.
EQUATION_LINES = """
A45 A51 A55 A59 A61-63 A67 A71 A81-84 A86-109 A111-128 A143-146
B15 B33 B62-64 B70-72 B82 B88 B94 B98-100 B105-106 B110-112 B117 B125-146 B148-150
B160-161 B167-168 B174-177 B204-207 B213-215 B219 B223 B227 B231-233 B239-288
B331 B345-346 B350-351 B357 B361-374 B377-378 B384-385 B395 B409
B419-429 B437 B441 B450 B454 B456 B462-481 B483-494 B496-505 B511-521
B540-554 B562-565 B577-606 B614-615 B619 B625-628 B681
"""


def lines_in(text: str) -> set[str]:
    """ "A61-63, B98" → {"A61", "A62", "A63", "B98"}."""
    found = re.findall(r"\b([AB])(\d+)(?:-(\d+))?\b", text)
    return {
        f"{document}{line}"
        for document, first, last in found
        for line in range(int(first), int(last or first) + 1)
    }


def rows() -> list[list[str]]:
    """The cells of every table row below the notation, heads and rules left out."""
    tables = PAGE[PAGE.index("## Equations") :].splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in tables
        if line.startswith("|")
    ]
    return [row for row in cells if row[0] != "lines" and not row[0].startswith("---")]


def places() -> list[tuple[str, str]]:
    return sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", PAGE)))


@cache
def definitions(path: Path) -> set[str]:
    """Names that a module defines at its top, and `Class.method`; read, not imported."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            names |= {f"{node.name}.{method.name}" for method in methods}
        if isinstance(node, ast.Assign):
            names |= {each.id for each in node.targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize(("path", "symbol"), places(), ids=":".join)
def test_every_place_on_the_page_exists(path: str, symbol: str) -> None:
    file = ROOT / path if path.startswith("tests/") else ROOT / "src" / "everyhead" / path
    assert file.is_file(), f"docs/equations.md names {path}, which does not exist"
    assert symbol in definitions(file), f"docs/equations.md names {symbol}, not defined in {path}"


def test_every_function_of_reference_py_is_on_the_page() -> None:
    tree = ast.parse((ROOT / "src" / "everyhead" / REFERENCE).read_text(encoding="utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert functions - {symbol for path, symbol in places() if path == REFERENCE} == set()


def test_every_equation_line_of_the_documents_has_a_row() -> None:
    covered = set().union(*(lines_in(row[0]) for row in rows()))
    missing = lines_in(EQUATION_LINES) - covered
    assert sorted(missing, key=lambda line: (line[0], int(line[1:]))) == []


def test_every_line_cited_here_or_in_reference_py_exists_in_the_documents() -> None:
    source = (ROOT / "src" / "everyhead" / REFERENCE).read_text(encoding="utf-8")
    docstrings = [
        ast.get_docstring(node) or ""
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    ]
    cited = lines_in(" ".join(row[0] for row in rows())) | lines_in(" ".join(docstrings))
    assert {line for line in cited if not 1 <= int(line[1:]) <= N_LINES[line[0]]} == set()


def test_no_backticked_place_is_written_in_a_form_that_goes_unchecked() -> None:
    checked = {f"{path}:{symbol}" for path, symbol in places()}
    assert set(re.findall(r"`([^`\s]*\.py:[^`]*)`", PAGE)) == checked
    assert len(checked) > 50


def test_rows_have_as_many_cells_as_their_heads() -> None:
    head = 0
    for line in PAGE.splitlines():
        n = line.count("|")
        assert not line.startswith("|") or head in (0, n), line
        head = n if line.startswith("|") else 0
