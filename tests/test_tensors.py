"""Tensors written and read: any dtype, shared memory, the same bytes each time."""

import errno
import os
import stat
import sys
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from everyhead import tensors as module
from everyhead.errors import UserError
from everyhead.files import write_set
from everyhead.tensors import read_safetensors, write_tensors

TENSORS = {
    "float": torch.randn(3, 4),
    "half": torch.randn(2).bfloat16(),
    "count": torch.tensor(7),
    "state": torch.arange(9, dtype=torch.uint8),
    "flags": torch.tensor([True, False]),
    "empty": torch.zeros(0, 3),
    "infinite": torch.tensor([float("-inf"), float("nan")]),
}


def test_tensors_come_back_bit_equal(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS)
    again = read_safetensors(tmp_path / "a")
    assert again.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name].nan_to_num(5), tensor.nan_to_num(5))


def test_same_tensors_same_bytes_in_any_order(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a", TENSORS)
    write_tensors(tmp_path / "b", dict(reversed(TENSORS.items())))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_views_and_tensors_of_one_memory_are_written_each(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4).requires_grad_()
    views = {"all": base, "again": base, "row": base[1], "across": base.T, "one": base[2, 3]}
    write_tensors(tmp_path / "a", views)
    again = read_safetensors(tmp_path / "a")
    assert all(torch.equal(again[name], view.detach()) for name, view in views.items())


@pytest.mark.skipif(sys.platform != "linux", reason="names are text on this system")
def test_a_folder_whose_name_is_not_utf8_is_read_and_written(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    write_tensors(folder / "a", TENSORS)
    write_tensors(tmp_path / "a", TENSORS)
    assert (folder / "a").read_bytes() == (tmp_path / "a").read_bytes()
    write_tensors(tmp_path / "b", read_safetensors(folder / "a"))
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    (folder / "a").write_bytes(b"\xff" * 99)
    with pytest.raises(UserError, match="broken or cut off"):
        read_safetensors(folder / "a")


def test_a_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(UserError, match="no file"):
        read_safetensors(path)
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for content in (b"", whole[:7], whole[:50], whole[:-1], whole + b"x", b"\xff" * 99):
        path.write_bytes(content)
        with pytest.raises(UserError, match="broken or cut off"):
            read_safetensors(path)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
def test_who_may_read_a_file_of_tensors_is_as_for_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    for _ in range(2):  # anew, and in the place of an older one
        write_tensors(tmp_path / "a", TENSORS)
        rights = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("plain", "a")]
        assert rights[0] == rights[1]


def test_a_full_disk_is_one_sentence_and_the_older_set_stands(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "set"
    write_set(folder, lambda beside: write_tensors(beside / "a", TENSORS))
    before = (folder / "a").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left (os error 28)")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(OSError) as found:
        write_tensors(tmp_path / "b", TENSORS)
    assert found.value.errno == errno.ENOSPC
    with pytest.raises(UserError, match=r"Could not write .*set: .*free space"):
        write_set(folder, lambda beside: write_tensors(beside / "a", {}))
    assert (folder / "a").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
