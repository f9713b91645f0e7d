"""Writing TOML: plain keys and one level of sections, which is all that a recipe has.

Python reads TOML but does not write it. What is written here, `tomllib` reads back equal.
"""

from collections.abc import Mapping
from typing import Any

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CONTROLS = [*range(32), 127]
_TABLE = {chr(code): f"\\u{code:04x}" for code in _CONTROLS} | _ESCAPES


def toml_text(values: Mapping[str, Any]) -> str:
    """Values (bool, int, float, str, lists of them) and then the sections, which are mappings."""
    lines = [f"{k} = {_value(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for section, keys in values.items():
        if isinstance(keys, Mapping):
            lines += ["", f"[{section}]", *(f"{k} = {_value(v)}" for k, v in keys.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(_TABLE.get(c, c) for c in value) + '"'
    return repr(value)
