"""What the linter does not count: sizes, switches, printing, encodings, unsafe loading."""

import ast
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "everyhead"
PRODUCT = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = PRODUCT + sorted(
    path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")
)
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in EVERYTHING}
# reference.py is one file on purpose: it is read from top to bottom beside the documents.
LONGEST_FILE = {PACKAGE / "reference.py": 400}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


product = pytest.mark.parametrize("path", PRODUCT, ids=label)
everything = pytest.mark.parametrize("path", EVERYTHING, ids=label)


def functions(path: Path) -> Iterator[Function]:
    yield from (node for node in ast.walk(TREES[path]) if isinstance(node, Function))


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the name that is called: `open`, `torch.load`, `?.write_text`."""
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Call):
            yield node, dotted(node.func)


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def lines_of(function: Function) -> int:
    """Lines of the body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return 1 + (body[-1].end_lineno or 0) - body[0].lineno if body else 0


@product
def test_a_file_is_short(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    limit = LONGEST_FILE.get(path, 250)
    assert len(lines) <= limit, f"{len(lines)} lines of {limit}"


@everything
def test_lines_end_by_column_100(path: Path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        line = re.sub(r"  # (type: ignore|noqa).*", "", line)
        assert len(line) <= 100, f"line {number} has {len(line)} characters"


@product
def test_functions_are_short(path: Path):
    for function in functions(path):
        length = 1 + (function.end_lineno or 0) - function.lineno
        assert length <= 60, f"{function.name} has {length} lines"


def test_most_functions_are_very_short():
    lengths = [lines_of(function) for path in PRODUCT for function in functions(path)]
    assert statistics.median(lengths) <= 10
    assert statistics.quantiles(lengths, n=10)[-1] <= 30


@product
def test_constructors_take_few_arguments_by_name(path: Path):
    for function in functions(path):
        if function.name == "__init__":
            positional = [a.arg for a in function.args.args if a.arg != "self"]
            names = positional + [a.arg for a in function.args.kwonlyargs]
            assert len(names) <= 8, f"line {function.lineno} has {len(names)} arguments"
            assert len(positional) <= 2, f"line {function.lineno}: keyword-only after the second"


@product
def test_no_flag_switches_an_equation(path: Path):
    for function in functions(path):
        arguments = function.args
        for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            assert not each.arg.startswith("use_"), f"{function.name} takes {each.arg}"


@product
def test_public_functions_are_typed(path: Path):
    for function in functions(path):
        if not function.name.startswith("_"):
            assert function.returns is not None, f"{function.name} does not say what it returns"


@product
def test_a_module_opens_with_its_purpose(path: Path):
    if path.name != "__init__.py" or TREES[path].body:
        assert ast.get_docstring(TREES[path]), "no docstring at the top"


@product
def test_only_the_command_line_prints(path: Path):
    if path.is_relative_to(PACKAGE / "cli"):
        return
    script: set[ast.AST] = set()
    if path == PACKAGE / "reference.py":  # whose `__main__` part prints the documents' example
        mains = (node for node in TREES[path].body if isinstance(node, ast.If))
        script = {inside for main in mains for inside in ast.walk(main)}
    for call, name in calls(path):
        assert name != "print" or call in script, f"line {call.lineno} prints"


def opens_text(call: ast.Call, name: str) -> bool:
    if name.split(".")[-1] in ("read_text", "write_text"):
        return True
    bytes_alone = ("os.open", "Image.open", "webbrowser.open", "archive.open")
    if name.split(".")[-1] != "open" or name in bytes_alone:
        return False
    # open(path, mode), path.open(mode)
    place = 1 if name in ("open", "io.open", "gzip.open") else 0
    mode = keywords(call).get("mode") or (call.args[place] if len(call.args) > place else None)
    return not (isinstance(mode, ast.Constant) and "b" in str(mode.value))


@everything
def test_every_text_file_says_its_encoding(path: Path):
    for call, name in calls(path):
        if opens_text(call, name):
            given = keywords(call)
            positional = name.endswith("read_text") and call.args
            assert "encoding" in given or positional, f"line {call.lineno}: {name} has no encoding"


@everything
def test_nothing_unsafe_is_loaded_or_run(path: Path):
    for node in ast.walk(TREES[path]):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            unsafe = names & {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
            assert not unsafe or "tests" in path.parts, f"line {node.lineno} imports {unsafe}"
    for call, name in calls(path):
        assert name not in ("exec", "eval"), f"line {call.lineno} calls {name}"
        if name == "torch.load":
            safe = keywords(call).get("weights_only")
            safe = isinstance(safe, ast.Constant) and safe.value is True
            assert safe, f"line {call.lineno}: torch.load without weights_only=True"
