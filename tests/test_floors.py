"""The house's floors: imports go only downward, and never in a circle.

Every import statement of src/everyhead is read, those inside functions too. Only the front door,
`everyhead/__init__.py`, may reach every floor; nothing inside the house goes out through it.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src"
# The ground: single files that every floor may use, and that may use each other.
GROUND = {"errors", "files", "tensors"}
FLOORS = {
    **dict.fromkeys(GROUND, 0),
    "reference": 0,
    "layers": 1,
    "data": 1,
    "models": 2,
    "weights": 3,
    "generation": 3,
    "training": 3,
    "inspection": 3,
    "explorer": 4,
    "cli": 5,
}
NO_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|misc)(_|$)")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.glob("everyhead/**/*.py"))}
# The front door, and the entry of `python -m everyhead`, which is the command line's.
DOORS = {"everyhead", "everyhead.__main__"}
INSIDE = [name for name in MODULES if name not in DOORS]


def imported(name: str, tree: ast.AST) -> set[str]:
    """Full names that a module imports; `from a import b` is a.b if that is a module, else a."""
    found = set()
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in MODULES else base)
    return found


class Read(NamedTuple):
    """What the rules ask of a module: what it imports, what of that when it runs, its names."""

    imports: set[str]
    at_run_time: set[str]
    names: set[str]


@cache
def read(name: str) -> Read:
    """A module, parsed when a rule first asks, once for all rules."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    imports, names = imported(name, tree), identifiers(tree)
    for node in ast.walk(tree):  # `if TYPE_CHECKING:` is for the type checker alone
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node.body = []
    return Read(imports, imported(name, tree), names)


def identifiers(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def part(name: str) -> str:
    """`everyhead.layers.masks` → `layers`."""
    return name.split(".")[1]


def inner(names: set[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "everyhead"}


def test_there_is_a_house():
    assert {"everyhead.layers", "everyhead.data", "everyhead.models"} <= {
        name.rpartition(".")[0] for name in MODULES
    }


def test_every_module_stands_on_a_floor():
    assert len(INSIDE) > 100
    assert [name for name in INSIDE if part(name) not in FLOORS] == [], "which floor are they on?"


def upward(name: str) -> Iterator[str]:
    """What is wrong with where a module's imports go."""
    here = part(name)
    for target in inner(read(name).imports):
        if target == "everyhead":
            yield f"{name} goes out through the front door"
            continue
        there = part(target)
        if not (there == here or FLOORS[there] < FLOORS[here] or {there, here} <= GROUND):
            yield f"{name} (floor {FLOORS[here]}) imports {target} (floor {FLOORS[there]})"


def test_imports_go_only_downward():
    wrong = [each for name in INSIDE for each in upward(name)]
    assert not wrong, "\n".join(wrong)


def test_the_data_floor_knows_no_torch_modules():
    for name in INSIDE:
        if part(name) == "data":
            assert "torch.nn" not in read(name).imports, f"{name} imports torch.nn"


def test_models_are_made_of_layers_only():
    for name in INSIDE:
        if part(name) == "models":
            parts = {part(target) for target in inner(read(name).imports)}
            assert parts <= {"models", "layers"} | GROUND, f"{name} imports {parts}"


def test_the_reference_imports_numpy_only():
    outside = {name.split(".")[0] for name in read("everyhead.reference").imports}
    assert outside - sys.stdlib_module_names <= {"numpy"}


def test_no_module_imports_in_a_circle():
    graph = {name: inner(read(name).at_run_time) - {name, "everyhead"} for name in INSIDE}
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_nothing_is_called_utils_or_misc():
    wrong = {}
    for name in MODULES:
        spelled = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", n).lower() for n in read(name).names}
        bad = {n for n in spelled | set(name.split(".")) if NO_NAMES.search(n)}
        wrong |= {name: bad} if bad else {}
    assert wrong == {}, "say what it is instead"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch.nn", {"torch.nn"}),
        ("def f():\n    from everyhead.errors import UserError", {"everyhead.errors"}),
        ("from everyhead import errors", {"everyhead.errors"}),
        ("from .. import errors", {"everyhead.errors"}),
        ("from ..errors import UserError", {"everyhead.errors"}),
        ("from . import fonts", {"everyhead.inspection.fonts"}),
    ],
)
def test_imports_are_read_in_every_spelling(source: str, expected: set[str]):
    assert imported("everyhead.inspection.figures", ast.parse(source)) == expected
