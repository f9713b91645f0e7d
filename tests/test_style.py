"""What the linter does not count: sizes, switches, printing, encodings, unsafe loading.

One test per rule, over every file: what breaks it is listed by file and line.
"""

import ast
import re
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "everyhead"
PRODUCT = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = PRODUCT + sorted(
    path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py")
)
# reference.py is one file on purpose: it is read from top to bottom beside the documents.
LONGEST_FILE = {PACKAGE / "reference.py": 400}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def hold(rule: Callable[[Path], Iterator[str]], paths: list[Path]) -> None:
    """The rule says of no file what is wrong with it; if it does, all of it is shown."""
    assert len(paths) > 100
    wrong = [
        f"{path.relative_to(ROOT).as_posix()}: {each}" for path in paths for each in rule(path)
    ]
    assert not wrong, "\n".join(wrong)


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of a file, the module first; parsed once for all rules."""
    return list(ast.walk(ast.parse(text(path))))


def functions(path: Path) -> Iterator[Function]:
    yield from (node for node in nodes(path) if isinstance(node, Function))


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call with the name that is called: `open`, `torch.load`, `?.write_text`."""
    for node in nodes(path):
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


def test_a_file_is_short():
    def rule(path: Path) -> Iterator[str]:
        lines, limit = len(text(path).splitlines()), LONGEST_FILE.get(path, 250)
        if lines > limit:
            yield f"{lines} lines of {limit}"

    hold(rule, PRODUCT)


def test_lines_end_by_column_100():
    def rule(path: Path) -> Iterator[str]:
        for number, line in enumerate(text(path).splitlines(), 1):
            if len(line) > 100:
                line = re.sub(r"  # (type: ignore|noqa).*", "", line)
            if len(line) > 100:
                yield f"line {number} has {len(line)} characters"

    hold(rule, EVERYTHING)


def test_functions_are_short():
    def rule(path: Path) -> Iterator[str]:
        for function in functions(path):
            length = 1 + (function.end_lineno or 0) - function.lineno
            if length > 60:
                yield f"{function.name} has {length} lines"

    hold(rule, PRODUCT)


def test_most_functions_are_very_short():
    lengths = [lines_of(function) for path in PRODUCT for function in functions(path)]
    assert statistics.median(lengths) <= 10
    assert statistics.quantiles(lengths, n=10)[-1] <= 30


def test_constructors_take_few_arguments_by_name():
    def rule(path: Path) -> Iterator[str]:
        for function in functions(path):
            if function.name == "__init__":
                positional = [a.arg for a in function.args.args if a.arg != "self"]
                names = positional + [a.arg for a in function.args.kwonlyargs]
                if len(names) > 8:
                    yield f"line {function.lineno} has {len(names)} arguments"
                if len(positional) > 2:
                    yield f"line {function.lineno}: keyword-only after the second"

    hold(rule, PRODUCT)


def test_no_flag_switches_an_equation():
    def rule(path: Path) -> Iterator[str]:
        for function in functions(path):
            arguments = function.args
            for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if each.arg.startswith("use_"):
                    yield f"{function.name} takes {each.arg}"

    hold(rule, PRODUCT)


def test_public_functions_are_typed():
    def rule(path: Path) -> Iterator[str]:
        for function in functions(path):
            if not function.name.startswith("_") and function.returns is None:
                yield f"{function.name} does not say what it returns"

    hold(rule, PRODUCT)


def test_a_module_opens_with_its_purpose():
    def rule(path: Path) -> Iterator[str]:
        module = nodes(path)[0]
        assert isinstance(module, ast.Module)
        if (path.name != "__init__.py" or module.body) and not ast.get_docstring(module):
            yield "no docstring at the top"

    hold(rule, PRODUCT)


def test_only_the_command_line_prints():
    def rule(path: Path) -> Iterator[str]:
        script: set[ast.AST] = set()
        if path == PACKAGE / "reference.py":  # whose `__main__` part prints the documents' example
            mains = (node for node in nodes(path)[0].body if isinstance(node, ast.If))
            script = {inside for main in mains for inside in ast.walk(main)}
        for call, name in calls(path):
            if name == "print" and call not in script:
                yield f"line {call.lineno} prints"

    cli = PACKAGE / "cli"
    hold(rule, [path for path in PRODUCT if not path.is_relative_to(cli)])


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


def test_every_text_file_says_its_encoding():
    def rule(path: Path) -> Iterator[str]:
        for call, name in calls(path):
            if opens_text(call, name):
                positional = name.endswith("read_text") and call.args
                if "encoding" not in keywords(call) and not positional:
                    yield f"line {call.lineno}: {name} has no encoding"

    hold(rule, EVERYTHING)


def test_nothing_unsafe_is_loaded_or_run():
    def rule(path: Path) -> Iterator[str]:
        for node in nodes(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                unsafe = names & {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
                if unsafe and "tests" not in path.parts:
                    yield f"line {node.lineno} imports {unsafe}"
        for call, name in calls(path):
            if name in ("exec", "eval"):
                yield f"line {call.lineno} calls {name}"
            safe = keywords(call).get("weights_only")
            if name == "torch.load" and not (isinstance(safe, ast.Constant) and safe.value is True):
                yield f"line {call.lineno}: torch.load without weights_only=True"

    hold(rule, EVERYTHING)
