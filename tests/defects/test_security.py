"""Defects of loading: code in a file, archives that climb out, services open to everybody."""

import ast
import inspect
import re
import tomllib
from pathlib import Path

import pytest
import torch

from everyhead.cli.look import look
from everyhead.weights import load_model, save_model
from tests.weights.small import config, logits, random_model

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = sorted((ROOT / "src" / "everyhead").rglob("*.py"))
# Unpacking, listening and fetching need rules of their own: each has one place, with its tests.
GUARDED = {
    **dict.fromkeys(("socketserver", "http", "urllib.request"), ""),
    **dict.fromkeys(("requests", "httpx"), ""),
    "tarfile": "data/archives.py",
    "zipfile": "data/archives.py",
    "subprocess": "data/downloads.py layers/compiling.py",  # pip; the C compiler
    "huggingface_hub": "weights/fetch.py",
    "socket": "cli/serving.py",
    "uvicorn": "cli/serving.py",
    "starlette": "explorer/server.py",
}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_pytorch_is_new_enough_that_its_safe_unpickler_is_safe() -> None:
    """Before 2.10 a crafted .pth corrupted memory even with weights_only=True."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (torch_,) = (each for each in project["dependencies"] if re.match(r"torch\b", each))
    least = re.fullmatch(r"torch>=(\d+)\.(\d+)", torch_)
    assert least and (int(least[1]), int(least[2])) >= (2, 10)
    assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)


def test_a_pickle_beside_safetensors_is_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = random_model(config())
    save_model(model, tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    assert torch.equal(logits(load_model(tmp_path)), logits(model))


def test_archives_services_and_programs_have_a_place_each() -> None:
    """tests/data/test_packages.py, tests/weights/test_fetch.py and tests/explorer hold the rest."""
    for path in PRODUCT:
        for name in {name for each in imported(path) for name in (each, each.split(".")[0])}:
            places = [f"/everyhead/{place}" for place in GUARDED.get(name, "").split()]
            free = name not in GUARDED
            assert free or any(place in path.as_posix() for place in places), (path, name)
    assert len(PRODUCT) > 50


def test_nothing_listens_to_everybody_unless_asked_to() -> None:
    """What is listened at is 127.0.0.1; another address only by a flag, which warns."""
    named = [path for path in PRODUCT if "0.0.0.0" in path.read_text(encoding="utf-8")]
    assert [path.name for path in named] == ["serving.py"]
    assert inspect.signature(look).parameters["address"].default == "127.0.0.1"
