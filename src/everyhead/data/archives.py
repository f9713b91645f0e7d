"""Unpacking a downloaded archive (.whl, .zip, .tar.gz, .tgz) so that nothing can climb out of it.

Only wanted members are written, and only plain files; a member whose path leads out of the folder
refuses the whole archive, wanted or not, and what comes out is counted against a limit.
"""

import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

from everyhead.errors import UserError

CHUNK = 1 << 20


class Member(NamedTuple):
    """A plain file in an archive."""

    name: str
    reader: Callable[[], IO[bytes] | None]


def unpack(
    archive: Path, folder: Path, *, target: Callable[[str], str | None], largest: int
) -> list[str]:
    """Write wanted members below `folder`; returns their paths there.

    Args:
        target: a member's name → the path it gets, None if it is not wanted.
        largest: bytes that may come out.

    Raises:
        UserError: the archive is broken, has a member whose path leaves the folder or that is a
            wanted link, names one twice, or holds more than the limit.
    """
    try:
        with _opened(archive) as members:
            wanted = _wanted(members, target)
            room = largest
            for path, member in wanted.items():
                room = _write(member, folder / path, room)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, RuntimeError) as error:
        raise UserError(f"{archive.name} is broken or cut off ({error}); fetch again.") from error
    return list(wanted)


def _wanted(members: list[Member], target: Callable[[str], str | None]) -> dict[str, Member]:
    found: dict[str, Member] = {}
    taken: set[str] = set()
    for member in members:
        path = target(member.name)
        if path is not None:
            if path.casefold() in taken:
                raise UserError(f"The archive names {member.name!r} twice; nothing was kept.")
            taken.add(path.casefold())
            found[path] = member
    return found


def check_path(name: str, *, link: bool = False) -> None:
    """Raises UserError: a member's path that leads out of the folder, or that is a link."""
    path = PurePosixPath(name)
    odd = "\\" in name or ":" in name or "\0" in name or path.is_absolute() or ".." in path.parts
    if odd or link:
        raise UserError(f"The archive's member {name!r} leads out of it; nothing was kept.")


@contextmanager
def _opened(archive: Path) -> Iterator[list[Member]]:
    """Its plain files, after each member's path was looked at; links and devices are refused."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            infos = packed.infolist()
            for info in infos:
                check_path(info.orig_filename, link=stat.S_ISLNK(info.external_attr >> 16))
            files = [info for info in infos if not info.is_dir()]
            yield [Member(info.filename, partial(packed.open, info)) for info in files]
    else:
        with tarfile.open(archive, encoding="utf-8") as rolled:
            entries = rolled.getmembers()
            for entry in entries:
                check_path(entry.name, link=not (entry.isfile() or entry.isdir()))
            kept = [entry for entry in entries if entry.isfile()]
            yield [Member(entry.name, partial(rolled.extractfile, entry)) for entry in kept]


def _write(member: Member, target: Path, room: int) -> int:
    """Write one member, counting what really comes out of it; returns the room left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    packed = member.reader()
    if packed is None:
        raise UserError(f"The archive's member {member.name!r} is no file; nothing was kept.")
    with packed, open(target, "xb") as file:
        while chunk := packed.read(CHUNK):
            room -= len(chunk)
            if room < 0:
                raise UserError(
                    f"The archive holds more than it should: {member.name!r} passes the limit; "
                    "nothing was kept."
                )
            file.write(chunk)
    return room
