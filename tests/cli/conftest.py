"""The program as a function, a small file of pairs, and one tiny run of it for all."""

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest
import torch

from everyhead.cli.app import main
from everyhead.weights.folder import load, save_model

NOUNS = {"cat": "猫", "dog": "狗", "book": "书", "tree": "树", "moon": "月亮", "bread": "面包"}
VERBS = {"see": "看见", "buy": "买", "like": "喜欢", "want": "想要", "draw": "画"}
KINDS = {"red": "红", "big": "大", "old": "旧", "new": "新", "small": "小"}
SMALL = [
    *("model.preset=tiny", "model.d_model=32", "model.n_heads=2", "model.n_layers=2"),
    *("model.d_ff=32", "model.max_len=64", "train.max_steps=6", "train.batch_sentences=8"),
    *("train.log_every=2", "train.evaluate_every=6", "train.save_every=6", "evaluate.beam=2"),
]


def changes(*more: str) -> list[str]:
    """A recipe so small that it trains in a second."""
    return [word for change in (*SMALL, *more) for word in ("--set", change)]


class Result(NamedTuple):
    """What the program answered."""

    code: int
    out: str
    err: str


@contextmanager
def streams(stdin: bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Standard streams of bytes, as a pipe has them."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="ascii")),
        patch.object(sys, "stdout", io.TextIOWrapper(out, encoding="ascii")),
        patch.object(sys, "stderr", io.TextIOWrapper(err, encoding="ascii")),
    ):
        yield out, err
        sys.stdout.flush()
        sys.stderr.flush()


def everyhead(*arguments: object, stdin: bytes = b"") -> Result:
    """The program inside this process, with streams of ASCII, as in a poor locale."""
    with streams(stdin) as (out, err):
        code = main([str(each) for each in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [each.getvalue().decode("utf-8") for each in (out, err)]
    return Result(code, *texts)


def refused(*arguments: object, stdin: bytes = b"") -> str:
    """The one sentence that the program refuses with."""
    code, out, err = everyhead(*arguments, stdin=stdin)
    *before, last = err.splitlines()
    assert (code, out) == (2, ""), err
    assert last.startswith("everyhead: ") and "Traceback" not in err
    assert not [line for line in before if line.startswith("everyhead: ")]
    return last.removeprefix("everyhead: ")


def everything_in(folder: Path) -> dict[str, bytes]:
    """The folder's files and what is in them."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rows() -> list[tuple[str, str]]:
    """150 pairs, in an order that blocks may be cut from."""
    found = [
        (f"I {v} the {k} {n}.", f"我{VERBS[v]}{KINDS[k]}{NOUNS[n]}。")
        for v in VERBS
        for k in KINDS
        for n in NOUNS
    ]
    return [found[i * 37 % len(found)] for i in range(len(found))]


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pairs") / "my.tsv"
    path.write_bytes("".join(f"{a}\t{b}\n" for a, b in rows()).encode("utf-8"))
    return path


@pytest.fixture(scope="session")
def trained(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run of six steps, and what training said."""
    run = tmp_path_factory.mktemp("runs") / "mine"
    return run, everyhead("train", "--pairs", pairs, "--run", run, *changes())


@pytest.fixture(scope="session")
def run(trained: tuple[Path, Result]) -> Path:
    """For reading alone."""
    return trained[0]


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to break."""
    return Path(shutil.copytree(run, tmp_path / "copy"))


@pytest.fixture(scope="session")
def lively(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run with weights so large that every sentence is translated differently."""
    folder = Path(shutil.copytree(run, tmp_path_factory.mktemp("runs") / "lively"))
    model, tokenizer = load(folder)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2 and "embed" in name:  # six steps from a small start
                p.mul_(10**0.5)
            elif p.dim() == 2:
                p.copy_(0.6 * torch.randn_like(p))
    save_model(model, folder, tokenizer=tokenizer)
    return folder
