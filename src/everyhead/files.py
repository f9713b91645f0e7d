"""Writing without half-written files: write beside, fsync, then put in place with one rename.

A process may be killed at any instant. What stood on disk before then still stands, or what was
meant to replace it stands complete; never a mixture. What a killed process leaves behind are
hidden names that end in `.partial` or `.previous`, which `remove_partial` sweeps up.
"""

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from everyhead.errors import UserError

PARTIAL, PREVIOUS = ".partial", ".previous"


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what is written there replaces `path` at the end.

    On any exception the temporary file is removed and `path` stays as it was.

    Raises:
        UserError: the disk is full, the folder is read-only, or the like.
    """
    path = Path(path)
    with _os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        try:
            yield temporary
            sync_file(temporary)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def atomic_write_bytes(path: Path | str, content: bytes) -> None:
    """Replace the file at `path` with `content`, or leave it as it was."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def atomic_write_text(path: Path | str, text: str) -> None:
    """Replace the file at `path` with `text` as UTF-8; a newline stays a newline everywhere."""
    atomic_write_bytes(path, text.encode("utf-8"))


def atomic_write_json(path: Path | str, value: Any) -> None:
    """Replace the file at `path` with `value` as indented JSON in UTF-8."""
    atomic_write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """`value` as indented JSON, keys in the order given, NaN refused, ending in a newline."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(path: Path | str) -> dict[str, Any]:
    """The JSON object in the file.

    Raises:
        UserError: there is no such file, it is not UTF-8, not JSON, or not an object.
    """
    path = Path(path)
    try:
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror}; check the path.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is broken or cut off: it is no JSON ({error}). Copy it again."
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object {{…}}, not a {type(value).__name__}.")
    return value


def write_set(folder: Path | str, writer: Callable[[Path], None]) -> None:
    """Let `writer` fill a fresh temporary folder, then make it `folder` with one rename.

    `folder` is either absent or complete at every instant. A `folder` that exists is replaced:
    it steps aside, the new one takes its name, then the old one is removed. Should the process be
    killed between these renames, `remove_partial` gives the old one its name back.

    Args:
        folder: where the finished set shall stand; its parents are made.
        writer: called once with the temporary folder; plain (not atomic) writes suffice in it.

    Raises:
        UserError: the disk is full, the folder is read-only, or the like.
    """
    folder = Path(folder)
    with _os_errors(folder), _filled_beside(folder, writer) as temporary:
        old = _beside(folder, PREVIOUS)
        with suppress(FileNotFoundError):
            os.rename(folder, old)
        try:
            os.rename(temporary, folder)
        except OSError:
            if old.exists():
                os.rename(old, folder)
            raise
        sync_folder(folder.parent)
        _remove(old)


def update_set(folder: Path | str, writer: Callable[[Path], None]) -> None:
    """Like `write_set`, but keep what else lies in `folder`: each written file is replaced alone.

    Everything is written and fsynced before the first file is replaced, so a full disk or a
    failing writer changes nothing. An absent `folder` appears with one rename.

    Raises:
        UserError: the disk is full, the folder is read-only, or the like.
    """
    folder = Path(folder)
    if not folder.exists():
        write_set(folder, writer)
        return
    with _os_errors(folder), _filled_beside(folder / "update", writer) as temporary:
        for file in _files_in(temporary):
            target = folder / file.relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)
            sync_folder(target.parent)


def remove_partial(folder: Path | str) -> None:
    """Sweep up what killed writers left directly in `folder`; call it where no other writes.

    A set that had stepped aside for one that never came gets its name back.
    """
    for old in sorted(Path(folder).glob(f".*{PREVIOUS}")):
        name = old.name[1 : -len(PREVIOUS)].rpartition(".")[0]
        if not (old.parent / name).exists():
            os.rename(old, old.parent / name)
    for ending in (PARTIAL, PREVIOUS):
        for leftover in Path(folder).glob(f".*{ending}"):
            _remove(leftover)


def sync_file(path: Path) -> None:
    """Wait until the file's content is on the disk."""
    with open(path, "r+b") as file:  # Windows syncs only what is open for writing
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the folder's names are on the disk, where the system can (Windows cannot)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _beside(path: Path, ending: str = PARTIAL) -> Path:
    """A fresh hidden name in the same folder, so that the rename stays on one file system."""
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{ending}"


@contextmanager
def _filled_beside(folder: Path, writer: Callable[[Path], None]) -> Iterator[Path]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(folder)
    temporary.mkdir()
    try:
        writer(temporary)
        for file in _files_in(temporary):
            sync_file(file)
        for inner in [temporary, *(path for path in temporary.rglob("*") if path.is_dir())]:
            sync_folder(inner)
        yield temporary
    finally:
        _remove(temporary)


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _remove(path: Path) -> None:
    """Remove a leftover; one that cannot go now (open on Windows) is swept up another time."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
        return
    with suppress(OSError):
        path.unlink(missing_ok=True)


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(
            f"Could not write {path}: {reason}. What stood there before is unchanged; "
            "check the path, the rights and the free space, then try again."
        ) from error
