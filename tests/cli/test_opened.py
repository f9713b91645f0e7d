"""A folder that is broken, or no run at all: one sentence, from every verb that opens one."""

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import everyhead, everything_in, refused

VERBS = (["translate"], ["evaluate"], ["look"])


def opening(verb: list[str], folder: Path) -> str:
    sentence = [] if verb[0] == "evaluate" else ["I see the cat."]
    return refused(*verb, folder, *sentence)


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_no_run_is_told_apart(verb: list[str], tmp_path: Path, pairs: Path):
    # `look` opens what others trained, too
    kind = "model folder" if verb == ["look"] else "run or model folder"
    assert opening(verb, tmp_path / "none").startswith(f"There is no {kind} {tmp_path}")
    assert "is a file; give the folder of a run" in opening(verb, pairs)
    assert "neither a recipe.toml nor a config.json" in opening(verb, tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", 20_000, "model.safetensors is broken or cut off"),
        ("model.safetensors", 0, "model.safetensors is broken or cut off"),
        ("model.safetensors", None, "There are no weights in"),
        ("config.json", 100, "config.json is broken or cut off"),
        ("config.json", None, "no weights to use yet"),
        ("tokenizer.json", 1000, "tokenizer.json is not a whole tokenizer file"),
        ("tokenizer.json", None, "There is no tokenizer"),
        ("recipe.toml", b"[train\n", "recipe.toml is not valid TOML"),
    ],
)
def test_a_cut_or_missing_file_is_named(
    name: str, content: int | bytes | None, words: str, copy: Path
):
    if content is None:
        (copy / name).unlink()
    elif isinstance(content, bytes):
        (copy / name).write_bytes(content)
    else:
        (copy / name).write_bytes((copy / name).read_bytes()[:content])
    before = everything_in(copy)
    assert words in refused("translate", copy, "I see the cat.")
    assert everything_in(copy) == before


def test_a_run_without_weights_says_how_to_go_on(copy: Path):
    (copy / "config.json").unlink()
    (copy / "model.safetensors").unlink()
    words = refused("translate", copy, "I see the cat.")
    assert words.endswith(f"everyhead train {copy}/recipe.toml --run {copy} --resume")


@pytest.mark.parametrize("size", [300, 315])
def test_another_runs_tokenizer_is_noticed(size: int, copy: Path, tmp_path: Path):
    from everyhead.data.pair_tokenizer import PairTokenizer

    texts = [f"word{i % 7} thing{i % 5}" for i in range(99)]
    PairTokenizer.train(texts, texts, vocab_size=size, min_count=1).save(copy)
    before = everything_in(copy)
    assert "do not belong together" in refused("translate", copy, "I see the cat.")
    assert everything_in(copy) == before


def test_another_tokenizer_of_the_same_size_is_noticed(copy: Path):
    values = json.loads((copy / "tokenizer.json").read_bytes())
    vocabulary = values["model"]["vocab"]
    first, second = [piece for piece, number in vocabulary.items() if number > 260][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (copy / "tokenizer.json").write_bytes(json.dumps(values).encode("utf-8"))
    assert "not the one the model was saved with" in refused("translate", copy, "I see the cat.")


def test_a_model_folder_without_a_recipe_translates_and_looks_but_has_no_held_out_pairs(
    lively: Path, tmp_path: Path
):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(lively / name, folder / name)
    assert everyhead("translate", folder, "I see the cat.", "--max-len", 5).code == 0
    assert "has no held-out pairs: give some with --pairs" in refused("evaluate", folder)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "wrong",
    [
        ["--threads", 0],
        ["--threads", 1025],
        ["--threads", 10**30],
        ["--device", "gpu"],
        ["--device", "cuda:99"],
    ],
)
def test_threads_and_device_are_checked_by_every_verb(verb: list[str], wrong: list, run: Path):
    assert wrong[0] in opening([*verb, *map(str, wrong)], run)
