"""kill -9 at random moments, ten times: the resumed run ends as the one that was never killed."""

import multiprocessing
import random
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from everyhead.files import PARTIAL
from everyhead.training.recipe import parse_recipe
from everyhead.training.sections import Recipe
from tests.training.killed_run import train

KILLS, STEPS = 10, 120
# One process imports torch (and what its optimizers import on first use), once; each run is forked
# from it. Windows starts each anew.
METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
PROCESSES = multiprocessing.get_context(METHOD)
PROCESSES.set_forkserver_preload(
    ["everyhead.training.run", "everyhead.weights.folder", "torch._dynamo"]
)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A model of a few thousand weights on made-up pairs; something is written at most steps."""
    rng = random.Random(0)
    words = {"one": "eins", "two": "zwei", "six": "sechs", "ten": "zehn", "and": "und"}
    rows = [[rng.choice(list(words)) for _ in range(rng.randint(3, 9))] for _ in range(400)]
    lines = ["\t".join((" ".join(row), " ".join(words[w] for w in row))) for row in rows]
    (tmp_path / "pairs.tsv").write_bytes("\n".join(lines).encode("utf-8"))
    train = {"max_steps": STEPS, "batch_tokens": 90, "warmup": 10, "log_every": 2}
    often = {"evaluate_every": 7, "save_every": 3, "precision": "fp32", "best": "loss"}
    values = {
        "name": "killed",
        "data": {"pairs": str(tmp_path / "pairs.tsv"), "block": 5},
        "tokenizer": {"vocab_size": 290, "min_count": 1},
        "model": {"preset": "tiny", "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 24},
        "train": train | often,
    }
    return parse_recipe(values, "the test's recipe")


def start(run: Path, recipe: Recipe) -> tuple[BaseProcess, Connection]:
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=train, args=(run, recipe, sender))
    process.start()
    sender.close()
    return process, receiver


def finish(run: Path, recipe: Recipe) -> None:
    process, receiver = start(run, recipe)
    try:
        while receiver.recv() < STEPS:
            pass
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()


def kill_somewhere(run: Path, recipe: Recipe, rng: random.Random) -> int:
    """Let some steps pass and a moment more; returns the last step that was heard of."""
    process, receiver = start(run, recipe)
    step = 0
    try:
        for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 8])):
            step = receiver.recv()
        time.sleep(rng.uniform(0, 0.03))
    finally:
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL, "it had come to an end by itself"
    return step


def contents(run: Path) -> dict[str, bytes]:
    """Every file of the run by name; what killed writers left hidden is left out."""
    return {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and PARTIAL not in str(path)
    }


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_ten_kills_at_random_moments_end_as_the_run_that_was_not_killed(tmp_path, recipe: Recipe):
    """Byte for byte: weights, optimizer, random states, counts and metrics."""
    finish(tmp_path / "whole", recipe)
    rng = random.Random(20)
    heard = [kill_somewhere(tmp_path / "killed", recipe, rng) for _ in range(KILLS)]
    finish(tmp_path / "killed", recipe)
    assert max(heard) > 10, "the kills came before anything could be lost"
    whole, killed = contents(tmp_path / "whole"), contents(tmp_path / "killed")
    assert f"checkpoints/step-{STEPS}/weights.safetensors" in whole
    assert {"model.safetensors", "config.json", "metrics.jsonl", "recipe.toml"} <= whole.keys()
    assert killed.keys() == whole.keys()
    assert [name for name in whole if killed[name] != whole[name]] == []
