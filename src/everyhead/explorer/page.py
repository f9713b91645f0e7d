"""One self-contained HTML file of one scene or several: nothing is loaded, nothing else may run.

The policy in the page allows its one script and one style sheet by their hashes, no connection,
no form, no frame. Data lie in blocks that are no scripts, as JSON in ASCII with `<` escaped, and
base64; the script puts every token into the page as a text node.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
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
    part_numbers,
)
from everyhead.explorer.scene import Scene
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


def write(scenes: Scene | Sequence[Scene], path: str | Path) -> Path:
    """Write the page; an older one at `path` stays whole until the new one is.

    Raises:
        UserError: the file cannot be written.
    """
    text = html([scenes] if isinstance(scenes, Scene) else scenes)
    atomic_write_bytes(path, text.encode("utf-8"))
    return Path(path)


def html(scenes: Sequence[Scene], *, connect: str = "'none'", served: bool = False) -> str:
    """The page as text. `connect`: where the script may send requests (the served page)."""
    blobs = Blobs()
    page = {"version": 1, "served": served, "scenes": packed(scenes, blobs)}
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


def packed(scenes: Sequence[Scene], blobs: Blobs) -> list[dict[str, Any]]:
    """The scenes as the page's script reads them, their matrices in `blobs`."""
    groups = [group for scene in scenes for group in scene.groups]
    levels = COARSE if sum(map(cells, groups)) > MANY_CELLS else FINE
    with_parts = sum(map(part_numbers, groups)) <= MANY_PARTS
    return [
        {
            "title": scene.title,
            "model": scene.model,
            "texts": scene.texts,
            "notes": scene.notes,
            "output": scene.output,
            "walk": None if scene.walk is None else scene.walk(),
            "groups": [
                pack_group(group, blobs, levels=levels, with_parts=with_parts)
                for group in scene.groups
            ],
        }
        for scene in scenes
    ]


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
