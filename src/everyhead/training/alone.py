"""One training at a time in a run's folder.

Two would write the same rows twice and sweep up each other's half-written checkpoints. The system
holds the lock and lets it go when the process ends, however it ends, so none outlives a kill.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from everyhead.errors import UserError

FILE = ".training"  # on Windows, where a folder itself cannot be locked; gone when training ends


@contextmanager
def alone(run: Path) -> Iterator[None]:
    """Hold the folder; where its file system knows no locks, nothing is held.

    Raises:
        UserError: another training holds it.
    """
    windows = sys.platform == "win32"
    handle = os.open(run / FILE, os.O_RDWR | os.O_CREAT) if windows else os.open(run, os.O_RDONLY)
    try:
        if not _locked(handle):
            raise UserError(
                f"Another training is at work in {run}: wait until it ends, stop it with Ctrl-C "
                "where it runs, or give another --run."
            )
        yield
    finally:
        os.close(handle)  # ends the lock
        with suppress(OSError):  # of another training it cannot go
            (run / FILE).unlink()


def _locked(handle: int) -> bool:
    """Is it ours now? Windows answers that another has it with PermissionError."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True  # some network file systems have no locks
    return True
