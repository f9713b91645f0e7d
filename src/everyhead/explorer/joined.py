"""The page's ES modules as one script: `import` does not work in a file that is opened from disk.

Modules are laid one after the other, each after those it imports; `import` lines and the word
`export` go. So no two modules may give their outermost names twice, which is checked here.
"""

import re
from functools import cache
from importlib.resources import files

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_NAME = re.compile(r"^(?:async )?(?:function\*?|class|const|let) (\w+)", re.MULTILINE)
ENTRY = "main.js"


def read(name: str) -> str:
    """A file of the page, from the package's data."""
    return (files("everyhead.explorer") / "static" / name).read_text(encoding="utf-8")


@cache
def script(entry: str = ENTRY) -> str:
    """Every module that `entry` needs, in order, as one.

    Raises:
        ValueError: modules import in a circle, or share an outermost name.
    """
    order: list[str] = []
    _visit(entry, order, ())
    parts, owners = [], dict[str, str]()
    for name in order:
        text = _IMPORT.sub("", read(name))
        text = re.sub(r"^export (default )?", "", text, flags=re.MULTILINE)
        if re.search(r"^(import|export)\b", text, re.MULTILINE):
            raise ValueError(f"{name} has an import or export that cannot be joined")
        for found in _NAME.findall(text):
            if owners.setdefault(found, name) != name:
                raise ValueError(f"{owners[found]} and {name} both have {found}")
        parts.append(text.strip("\n"))
    return "\n".join(parts) + "\n"


def _visit(name: str, order: list[str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import in a circle: {' → '.join((*above, name))}")
    if name not in order:
        for needed in _IMPORT.findall(read(name)):
            _visit(needed, order, (*above, name))
        order.append(name)
