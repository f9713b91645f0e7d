"""One self-contained HTML file of one scene or several: nothing is loaded, nothing else may run.

The policy in the page allows its one script and one style sheet by their hashes, no connection,
no form, no frame. Data lie in blocks that are no scripts, as JSON in ASCII with `<` escaped, and
base64; the script puts every token into the page as a text node.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everyhead.explorer import joined
from everyhead.explorer.packing import (
    COARSE,
    FINE,
    MANY_CELLS,
    MANY_PARTS,
    Blobs,
    cells,
    pack_group,
    pack_lazily,
    part_numbers,
)
from everyhead.explorer.scene import Group, Scene
from everyhead.files import atomic_write_bytes

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>everyhead</title>
<style>{style}</style>
</head>
<body>
<div id="app"><noscript><p>This page needs JavaScript; it loads nothing from the network.</p>
</noscript></div>
<div id="announcer" class="heard" role="status" aria-live="polite"></div>
<script type="application/json" id="page">{page}</script>
{blobs}
<script type="module">{script}</script>
</body>
</html>
"""


def write(
    scenes: Scene | Sequence[Scene], path: str | Path, *, state: Mapping[str, Any] | None = None
) -> Path:
    """Write the page; an older one at `path` stays whole until the new one is.

    state: what it shows first, as in its address after `#`: {"view": "head", "layer": 3}.

    Raises:
        UserError: the file cannot be written.
    """
    text = html([scenes] if isinstance(scenes, Scene) else scenes, state=state)
    atomic_write_bytes(path, text.encode("utf-8"))
    return Path(path)


def html(scenes: Sequence[Scene], *, state: Mapping[str, Any] | None = None) -> str:
    """The saved page as text."""
    blobs = Blobs()
    page = {"version": 1, "state": dict(state or {}), "scenes": packed(scenes, blobs)}
    return filled(page, blobs)


def filled(page: Mapping[str, Any], blobs: Blobs, *, connect: str = "'none'") -> str:
    """The page around its data. `connect`: where the script may send requests."""
    script, style = joined.script(), joined.read("style.css")
    stored = "\n".join(
        f'<script type="text/plain" id="blob-{i}">{text}</script>'
        for i, text in enumerate(blobs.texts)
    )
    return PAGE.format(
        policy=policy(script, style, connect),
        style=style,
        page=json_text(page),
        blobs=stored,
        script=script,
    )


def packed(
    scenes: Sequence[Scene], blobs: Blobs, *, most_cells: int | None = None
) -> list[dict[str, Any]]:
    """The scenes as the page's script reads them, their matrices in `blobs`.

    most_cells: a scene with more cells leaves its heads to be asked for (the served page).
    """
    groups = [group for scene in scenes for group in scene.groups]
    levels = COARSE if sum(map(cells, groups)) > MANY_CELLS else FINE
    with_parts = sum(map(part_numbers, groups)) <= MANY_PARTS

    def pack(group: Group, *, lazily: bool) -> dict[str, Any]:
        if lazily:
            return pack_lazily(group, blobs)
        return pack_group(group, blobs, levels=levels, with_parts=with_parts)

    found = []
    for scene in scenes:
        lazily = most_cells is not None and sum(map(cells, scene.groups)) > most_cells
        entry = {
            "title": scene.title,
            "model": scene.model,
            "texts": scene.texts,
            "notes": scene.notes,
            "output": scene.output,
            "walk": scene.walk,
            "groups": [pack(group, lazily=lazily) for group in scene.groups],
        }
        found.append(entry)
    return found


def json_text(value: Any) -> str:
    """JSON in ASCII that no HTML parser mistakes: `<`, `>` and `&` are escaped too.

    Raises:
        ValueError: NaN or an infinity, which JSON does not know.
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy(script: str, style: str, connect: str = "'none'") -> str:
    """The content security policy: this script, this style, pictures that the page itself makes."""
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
