"""A run resumed is the run; whatever instant it was stopped at, something whole is on disk."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from everyhead.errors import UserError
from everyhead.files import PARTIAL
from everyhead.tensors import read_safetensors
from everyhead.training import checkpoints
from everyhead.training.checkpoints import FOLDER, complete_checkpoints, load_checkpoint
from everyhead.training.metrics import read_rows
from everyhead.training.optimizers import optimizer_tensors
from tests.training import tiny


def stop_after(trainer, steps: int, *, save: bool = True) -> None:
    """Train up to this step, as a process that is then gone."""
    while trainer.state.step < steps:
        trainer._step()
        trainer._after_step()
    if save:
        trainer._checkpoint()


def outcome(trainer):
    """All that a run leaves behind."""
    return (
        tiny.weights(trainer.model),
        optimizer_tensors(trainer.model, trainer.optimizer),
        read_rows(trainer.run),
        trainer.state,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """20 steps without a stop."""
    trainer = tiny.trainer(tmp_path_factory.mktemp("straight"))
    trainer.fit()
    return outcome(trainer)


@pytest.mark.parametrize("stop", [1, 6, 7, 10, 13, 19])
def test_20_steps_are_10_and_a_resume_and_10_bit_equal(straight, tmp_path: Path, stop: int):
    """Defects: losses differ after a resume in mid-epoch; a restart replays epoch 0's order.

    An epoch has 7 batches, so 7 ends one and the others stand in the middle of one; dropout draws
    from the random state.
    """
    stop_after(tiny.trainer(tmp_path), stop)
    torch.manual_seed(99)  # another process draws other numbers
    resumed = tiny.trainer(tmp_path)
    resumed.resume()
    assert resumed.state.step == stop and tuple(resumed.stream.position) == divmod(stop, 7)
    resumed.fit()
    weights, optimizer, rows, state = outcome(resumed)
    assert tiny.same(weights, straight[0]) and tiny.same(optimizer, straight[1])
    assert rows == straight[2] and state == straight[3]


def test_a_stop_between_checkpoints_goes_back_to_the_last_one(straight, tmp_path: Path):
    stop_after(tiny.trainer(tmp_path), 12, save=False)  # the checkpoint is of step 7
    assert [row["step"] for row in read_rows(tmp_path)] == [3, 5, 6, 9, 10, 12]
    resumed = tiny.trainer(tmp_path)
    resumed.resume()
    assert [row["step"] for row in read_rows(tmp_path)] == [3, 5, 6]
    resumed.fit()
    assert tiny.same(tiny.weights(resumed.model), straight[0])
    assert read_rows(tmp_path) == straight[2]


def test_a_stop_before_the_first_checkpoint_begins_again(straight, tmp_path: Path):
    stop_after(tiny.trainer(tmp_path), 6, save=False)
    resumed = tiny.trainer(tmp_path)
    resumed.resume()
    assert resumed.state.step == 0 and read_rows(tmp_path) == []
    resumed.fit()
    assert tiny.same(tiny.weights(resumed.model), straight[0])
    assert read_rows(tmp_path) == straight[2]


def test_resuming_many_times_is_still_the_run(straight, tmp_path: Path):
    for stop in (2, 5, 6, 11, 18):
        trainer = tiny.trainer(tmp_path)
        trainer.resume()
        stop_after(trainer, stop)
    last = tiny.trainer(tmp_path)
    last.resume()
    last.fit()
    assert tiny.same(tiny.weights(last.model), straight[0])
    assert read_rows(tmp_path) == straight[2]


def test_a_finished_run_resumed_does_nothing(straight, tmp_path: Path):
    tiny.trainer(tmp_path).fit()
    told = tiny.Told()
    again = tiny.trainer(tmp_path, listener=told)
    again.resume()
    assert again.fit() == straight[3]
    assert not told.rows and not told.folders and not told.estimates
    assert read_rows(tmp_path) == straight[2]


def test_what_a_checkpoint_is_made_of(tmp_path: Path):
    """Never a pickle: safetensors and JSON, weights under the model's own names."""
    trainer = tiny.trainer(tmp_path)
    stop_after(trainer, 2)
    (folder,) = complete_checkpoints(tmp_path)
    files = {"weights.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"}
    assert folder.name == "step-2" and {p.name for p in folder.iterdir()} == files
    for path in folder.iterdir():
        content = path.read_bytes()
        assert not content.startswith((b"\x80", b"PK"))  # pickle's and torch.save's first bytes
    weights = read_safetensors(folder / "weights.safetensors")
    assert tiny.same(weights, tiny.weights(trainer.model))
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    assert state["step"] == 2 and state["facts"].keys() == {
        "threads",
        "compiled",
        "precision",
        "data",
    }


def test_a_compiled_model_is_saved_under_the_plain_names(tmp_path: Path, monkeypatch):
    """Defect: `_orig_mod.` in a checkpoint of a compiled model."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f: compiled.append(f) or (lambda *a: f(*a)))
    trainer = tiny.trainer(tmp_path, compile=True)
    assert compiled == [trainer.model.real_hidden]
    stop_after(trainer, 1)
    (folder,) = complete_checkpoints(tmp_path)
    for name in ("weights", "optimizer"):
        keys = read_safetensors(folder / f"{name}.safetensors")
        assert keys and not [key for key in keys if "_orig_mod" in key]
    plain = tiny.trainer(tmp_path)
    plain.resume()
    assert tiny.same(tiny.weights(plain.model), tiny.weights(trainer.model))


# ---------------------------------------------------------------- whole or not at all


def test_the_older_checkpoint_goes_only_after_the_newer_one_is_whole(tmp_path: Path, monkeypatch):
    """Defect: `unexpected EOF` after a kill while saving over the only file."""
    trainer = tiny.trainer(tmp_path)
    stop_after(trainer, 3)
    before = {p: p.read_bytes() for p in (tmp_path / FOLDER / "step-3").iterdir()}
    stop_after(trainer, 5, save=False)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "random_states", full)  # the weights are written already
    with pytest.raises(UserError, match="No space left on device"):
        trainer._checkpoint()
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-3"]
    assert {p: p.read_bytes() for p in (tmp_path / FOLDER / "step-3").iterdir()} == before
    monkeypatch.undo()
    removed = []
    real = shutil.rmtree

    def watched(path, **options):
        if not Path(path).name.startswith("."):
            removed.append((Path(path).name, [p.name for p in complete_checkpoints(tmp_path)]))
        real(path, **options)

    monkeypatch.setattr(checkpoints.shutil, "rmtree", watched)
    trainer._checkpoint()
    assert removed == [("step-3", ["step-3", "step-5"])]
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-5"]


def test_the_highest_of_several_is_taken(straight, tmp_path: Path):
    """A kill after a newer one came and before the older one went; 10 is more than 9."""
    trainer = tiny.trainer(tmp_path)
    stop_after(trainer, 9)
    shutil.copytree(tmp_path / FOLDER / "step-9", tmp_path / "kept")
    stop_after(trainer, 10)
    shutil.move(tmp_path / "kept", tmp_path / FOLDER / "step-9")
    resumed = tiny.trainer(tmp_path)
    resumed.resume()
    assert resumed.state.step == 10
    resumed.fit()
    assert tiny.same(tiny.weights(resumed.model), straight[0])
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-20"]


def test_what_a_killed_writer_left_is_ignored_and_swept_up(straight, tmp_path: Path):
    stop_after(tiny.trainer(tmp_path), 3)
    half = tmp_path / FOLDER / f".step-5.0123abcd{PARTIAL}"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    file = tmp_path / f".metrics.jsonl.0123abcd{PARTIAL}"
    file.write_bytes(b"half")
    assert [p.name for p in complete_checkpoints(tmp_path)] == ["step-3"]
    resumed = tiny.trainer(tmp_path)
    resumed.resume()
    assert not half.exists() and not file.exists()
    resumed.fit()
    assert tiny.same(tiny.weights(resumed.model), straight[0])


def test_a_checkpoint_is_written_once_a_step(tmp_path: Path):
    """A second writing would move the only one aside for an instant."""
    told = tiny.Told()
    trainer = tiny.trainer(tmp_path, listener=told)
    stop_after(trainer, 7)
    trainer._checkpoint()
    assert [p.name for p in told.folders] == ["step-7"]


# ---------------------------------------------------------------- what does not fit


def refused(tmp_path: Path, words: str, **changes) -> None:
    with pytest.raises(UserError, match=words):
        tiny.trainer(tmp_path, **changes).resume()


def test_another_model_is_a_sentence(tmp_path: Path, monkeypatch):
    stop_after(tiny.trainer(tmp_path), 2)
    for change in ({"d_model": 32}, {"n_encoder_layers": 2}, {"tie_output": False}):
        config = tiny.CONFIG.model_copy(update=change)
        with monkeypatch.context() as patch:
            patch.setattr(tiny, "CONFIG", config)
            refused(tmp_path, "step-2 does not fit the model of the recipe")


def test_other_pairs_or_other_batches_are_a_sentence(tmp_path: Path):
    stop_after(tiny.trainer(tmp_path), 2)
    words = "not those that .* began with"
    refused(tmp_path, words, ids=tiny.pairs(25))
    refused(tmp_path, words, ids=tiny.pairs(seed=3))
    refused(tmp_path, words, batch_sentences=5)


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]
)
@pytest.mark.parametrize("keep", [0, 30, -1])
def test_a_truncated_file_is_a_sentence_that_names_it(tmp_path: Path, name: str, keep: int):
    stop_after(tiny.trainer(tmp_path), 2)
    path = tmp_path / FOLDER / "step-2" / name
    content = path.read_bytes()
    path.write_bytes(content[: keep if keep >= 0 else len(content) - 5])
    refused(tmp_path, f"{name} is broken or cut off")


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"]
)
def test_a_missing_file_is_a_sentence_that_names_it(tmp_path: Path, name: str):
    stop_after(tiny.trainer(tmp_path), 2)
    (tmp_path / FOLDER / "step-2" / name).unlink()
    refused(tmp_path, name)


def test_a_state_of_another_version_is_a_sentence(tmp_path: Path):
    stop_after(tiny.trainer(tmp_path), 2)
    path = tmp_path / FOLDER / "step-2" / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(state | {"moon": 1}), encoding="utf-8")
    refused(tmp_path, "another version of everyhead .*moon")


def test_loading_where_nothing_is_saved_says_so(tmp_path: Path):
    trainer = tiny.trainer(tmp_path)
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        load_checkpoint(tmp_path, trainer.model, trainer.optimizer)


def test_a_resumed_run_keeps_the_precision_that_it_began_with(tmp_path: Path, monkeypatch):
    stop_after(tiny.trainer(tmp_path, precision="bf16"), 2)
    resumed = tiny.trainer(tmp_path, precision="auto")
    resumed.precision = "fp32"  # this machine's own choice
    resumed.resume()
    assert resumed.precision == "bf16"
    chosen = tiny.trainer(tmp_path, precision="fp32")
    chosen.resume()
    assert chosen.precision == "fp32"
