"""One file, several behind an index, and PyTorch's .bin, which never runs what it holds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.tensors import write_tensors
from everyhead.weights import load_model, save_model
from everyhead.weights.files import read_tensors

from .small import config, logits, random_model

INDEX = "model.safetensors.index.json"


class Malicious:
    """Leaves a trace where it is unpickled carelessly."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.trace,)


def split(folder: Path) -> dict[str, str]:
    """Turn the folder's one file into two behind an index; returns the index."""
    tensors = read_tensors(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    places = {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        write_tensors(folder / file, {name: tensors[name] for name in part})
        places |= dict.fromkeys(part, file)
    write_index(folder, places)
    return places


def write_index(folder: Path, places: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(random_model(config()), tmp_path)
    return tmp_path


def test_several_files_are_read_as_one(saved: Path) -> None:
    before = logits(load_model(saved))
    split(saved)
    assert torch.equal(logits(load_model(saved)), before)


def test_an_index_that_does_not_fit_is_named(saved: Path) -> None:
    places = split(saved)
    (saved / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(UserError, match=r"no file .*00002-of"):
        load_model(saved)
    write_index(saved, {"a": "model-00001-of-00002.safetensors"})
    with pytest.raises(UserError, match="promises a"):
        load_model(saved)
    for outside in ("../model.safetensors", "/etc/passwd", "a\\b"):
        write_index(saved, places | {"a": outside})
        with pytest.raises(UserError, match="not a file of the same folder"):
            load_model(saved)
    for broken in (None, [], {"a": 1}):
        write_index(saved, broken)
        with pytest.raises(UserError, match="weight_map"):
            load_model(saved)


def test_a_bin_file_of_tensors_is_read(saved: Path) -> None:
    before = logits(load_model(saved))
    torch.save(read_tensors(saved), saved / "pytorch_model.bin")
    (saved / "model.safetensors").unlink()
    assert torch.equal(logits(load_model(saved)), before)


def test_a_malicious_pickle_leaves_no_trace(saved: Path) -> None:
    trace = saved / "trace"
    (saved / "model.safetensors").unlink()
    for content in (Malicious(trace), {"model.shared.weight": Malicious(trace)}):
        torch.save(content, saved / "pytorch_model.bin")
        with pytest.raises(UserError, match="runs no code") as caught:
            load_model(saved)
        assert not trace.exists()
        assert "weights_only" not in str(caught.value)  # no advice to load it another way
    make, arguments = Malicious(trace).__reduce__()
    make(*arguments)  # what a careless loader would have done
    assert trace.exists()


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"model": {"w": torch.zeros(2)}}, {1: 2}])
def test_a_bin_file_of_something_else_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="no table of named tensors"):
        read_tensors(tmp_path)


def test_a_truncated_bin_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(100)}, path)
    for size in (0, 10, path.stat().st_size - 50):
        path.write_bytes(path.read_bytes()[:size] if size else b"")
        with pytest.raises(UserError, match="broken"):
            read_tensors(tmp_path)


def test_what_was_read_outlives_its_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"a": torch.arange(5.0)})
    read: dict[str, Tensor] = read_tensors(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 200)
    assert read["a"].tolist() == [0, 1, 2, 3, 4]
