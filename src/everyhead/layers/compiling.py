"""From csrc/ to a library of this processor, in a folder that is the user's own.

The compiler is `cc`, or what CC names; it is asked once, and the library stays in the cache folder.
What lies there is run, so that nobody else may be able to put a file, or a folder, in its place.
"""

import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

HEADERS = ("products.h", "attention.h", "logits.h")
SOURCES = (
    "rows.c",
    "step.c",
    "packed_attention.c",
    "dropout.c",
    "cross_entropy.c",
    "continuations.c",
)
PLAIN = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
# The first that the compiler takes: with threads; with one alone; for any processor of the kind.
CHOICES = (("-march=native", "-fopenmp"), ("-march=native",), ())
LONGEST = 120  # seconds that a compiler may take


def library_file() -> Path | None:
    """Where the library of these sources, this compiler and this processor lies or will lie.

    Raises:
        ValueError: CC has a quotation mark that does not end.
    """
    folder = cache_folder()
    if folder is None:
        return None
    key = hashlib.sha256(repr((_texts(), PLAIN, CHOICES, _compiler(), _processor())).encode())
    return folder / f"step-{key.hexdigest()[:32]}.so"


def compile_into(place: Path) -> bool:
    """Make the library at `place`, whole or not at all.

    Raises:
        OSError: the folder cannot be written to, or the compiler does not end.
    """
    compiler = _compiler()
    program = shutil.which(compiler[0])
    if program is None:
        return False
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        for name, text in _texts().items():
            Path(scratch, name).write_text(text, encoding="utf-8")
        made = Path(scratch, place.name)
        for flags in CHOICES:
            command = [program, *compiler[1:], *PLAIN, *flags, "-o", str(made), *SOURCES, "-lm"]
            if _succeeds(command, scratch):
                os.replace(made, place)
                return True
    return False


def _succeeds(command: list[str], folder: str) -> bool:
    quiet: Any = {"stdin": subprocess.DEVNULL, "capture_output": True}  # a pipe is not for it
    try:
        return subprocess.run(command, cwd=folder, timeout=LONGEST, **quiet).returncode == 0
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} does not end") from error


def cache_folder() -> Path | None:
    """The folder of compiled programs, made where it is missing; None: there is no safe one.

    Safe: the user's own, with no folder above it that others can exchange, where files may run.

    Raises:
        RuntimeError: the user has no home folder.
    """
    told = Path(os.environ.get("XDG_CACHE_HOME", ""))
    home = told if told.is_absolute() else Path.home() / ".cache"
    folder = home / "everyhead" / "compiled"
    try:
        for missing in [each for each in (folder, *folder.parents) if not each.exists()][::-1]:
            missing.mkdir(mode=0o700, exist_ok=True)
        folder = folder.resolve()
        safe = folder.stat().st_uid == os.getuid() and all(
            _is_kept(each.stat()) for each in (folder, *folder.parents)
        )
        runs = not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)
    except OSError:
        return None
    return folder if safe and runs else None


def _is_kept(told: os.stat_result) -> bool:
    """A folder in which only its owner, the user or root, can exchange what is not theirs."""
    if told.st_uid not in (0, os.getuid()):
        return False
    if told.st_mode & stat.S_ISVTX:  # as /tmp: everybody may add, each may remove only their own
        return True
    if told.st_mode & stat.S_IWOTH:
        return False
    return not told.st_mode & stat.S_IWGRP or _is_private_group(told.st_gid)


def _is_private_group(group: int) -> bool:
    """The group of the user's own name, which many systems give to every user (umask 002)."""
    import grp  # neither is there on Windows
    import pwd

    try:
        members, user = grp.getgrgid(group), pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return members.gr_name == user and set(members.gr_mem) <= {user}


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _texts() -> dict[str, str]:
    csrc = files("everyhead.layers") / "csrc"
    return {name: (csrc / name).read_text(encoding="utf-8") for name in HEADERS + SOURCES}


def _processor() -> str:
    """What decides which instructions there are."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    told = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
    return repr((platform.machine(), platform.processor(), sys.platform, told))
