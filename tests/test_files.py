"""What is on disk stands whole before, during and after a write, however the write ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from everyhead import files
from everyhead.errors import UserError
from everyhead.files import (
    atomic_path,
    atomic_write_json,
    atomic_write_text,
    read_json,
    remove_partial,
    update_set,
    write_set,
)


def tree(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in found}


def writing(**content: str):
    def write(folder: Path) -> None:
        for name, text in content.items():
            (folder / name).write_bytes(text.encode("utf-8"))

    return write


def failing(folder: Path) -> None:
    writing(a="half")(folder)
    raise KeyboardInterrupt


def test_text_is_utf_8_with_plain_newlines(tmp_path: Path) -> None:
    atomic_write_text(tmp_path / "new" / "a.txt", "é\r\n\n雨")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "é\r\n\n雨".encode()


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"b": [1, None], "a": "雨"}
    atomic_write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json") == value
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic_write_json(tmp_path / "a.json", float("nan"))
    assert tree(tmp_path).keys() == {"a.json"}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_json_that_is_broken_or_no_object_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json"):
        read_json(tmp_path / "a.json")
    with pytest.raises(UserError, match=r"b\.json"):
        read_json(tmp_path / "b.json")


def test_a_write_that_fails_leaves_the_file_and_no_rest(tmp_path: Path) -> None:
    atomic_write_text(tmp_path / "a", "old")
    with pytest.raises(KeyboardInterrupt), atomic_path(tmp_path / "a") as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise KeyboardInterrupt
    assert tree(tmp_path) == {"a": "old"}


def test_a_set_appears_whole_and_replaces_whole(tmp_path: Path) -> None:
    write_set(tmp_path / "runs" / "one", writing(a="1", b="2"))
    write_set(tmp_path / "runs" / "one", writing(b="3"))
    assert tree(tmp_path) == {"runs/one/b": "3"}


def test_a_set_that_fails_leaves_the_old_one_and_no_rest(tmp_path: Path) -> None:
    for fails in (write_set, update_set):
        with pytest.raises(KeyboardInterrupt):
            fails(tmp_path / "one", failing)
        assert tree(tmp_path) == {}
    write_set(tmp_path / "one", writing(a="old"))
    for fails in (write_set, update_set):
        with pytest.raises(KeyboardInterrupt):
            fails(tmp_path / "one", failing)
        assert tree(tmp_path) == {"one/a": "old"}


def test_an_update_keeps_other_files(tmp_path: Path) -> None:
    update_set(tmp_path / "one", writing(a="1", b="2"))
    update_set(tmp_path / "one", writing(b="3", c="4"))
    assert tree(tmp_path / "one") == {"a": "1", "b": "3", "c": "4"}
    assert tree(tmp_path).keys() == {"one/a", "one/b", "one/c"}


def test_what_a_killed_update_leaves_lies_in_the_folder_and_is_swept_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update_set(tmp_path / "one", writing(a="1"))
    monkeypatch.setattr(files, "_remove", lambda path: None)
    with pytest.raises(KeyboardInterrupt):
        update_set(tmp_path / "one", failing)
    monkeypatch.undo()
    assert len(tree(tmp_path / "one")) == 2
    remove_partial(tmp_path / "one")
    assert tree(tmp_path) == {"one/a": "1"}


@pytest.mark.parametrize("write", ["atomic_write_text(p, 'new')", "write_set(p, fill)"])
def test_a_full_disk_is_a_sentence_and_changes_nothing(
    write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    atomic_write_text(tmp_path / "a", "old")
    write_set(tmp_path / "one", writing(a="old"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"No space left on device.*try again"):
        if write.startswith("atomic"):
            atomic_write_text(tmp_path / "a", "new")
        else:
            write_set(tmp_path / "one", writing(a="new"))
    assert tree(tmp_path) == {"a": "old", "one/a": "old"}


def test_a_rename_that_fails_gives_the_old_set_its_name_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_set(tmp_path / "one", writing(a="old"))
    rename = os.rename

    def fails_once(source: Path, target: Path) -> None:
        if Path(source).name.endswith(files.PARTIAL):
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails_once)
    with pytest.raises(UserError, match="Permission denied"):
        write_set(tmp_path / "one", writing(a="new"))
    assert tree(tmp_path) == {"one/a": "old"}


KILLED = """
import os, sys
from pathlib import Path
from everyhead import files

parent, moment = Path(sys.argv[1]), int(sys.argv[2])
left = [moment]

def dying(real):
    def call(*arguments):
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return real(*arguments)
    return call

os.rename, os.replace, os.fsync = dying(os.rename), dying(os.replace), dying(os.fsync)

def write(folder):
    (folder / "a").write_text("new", encoding="utf-8")
    (folder / "b").write_text("new", encoding="utf-8")

files.write_set(parent / "one", write)
os._exit(0)
"""


def test_killed_at_any_moment_a_set_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    seen = []
    for moment in range(20):
        parent = tmp_path / str(moment)
        write_set(parent / "one", writing(a="old", b="old"))
        command = [sys.executable, "-c", KILLED, str(parent), str(moment)]
        ended = subprocess.run(command, check=False)
        remove_partial(parent)
        left = tree(parent)
        assert left.keys() == {"one/a", "one/b"}
        assert len(set(left.values())) == 1
        seen.append(left["one/a"])
        if ended.returncode == 0:
            break
    assert ended.returncode == 0
    assert seen == sorted(seen, reverse=True)  # old, …, old, new, …, new
    assert {"old", "new"} == set(seen)


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
def test_files_and_folders_take_the_ordinary_rights(tmp_path: Path) -> None:
    write_set(tmp_path / "one", writing(a="1"))
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a").touch()
    for name in (".", "a"):
        ordinary = (tmp_path / "plain" / name).stat().st_mode
        assert (tmp_path / "one" / name).stat().st_mode == ordinary
