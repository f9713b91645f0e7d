"""Recipes: files and overrides, mistakes as sentences, and writing them out again."""

import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyhead.errors import UserError
from everyhead.training.jobs.translate_recipe import TranslateRecipe
from everyhead.training.recipe import (
    built_in_recipes,
    known_keys,
    load_recipe,
    override,
    parse_recipe,
    recipe_text,
)
from everyhead.training.toml import toml_text


def write(folder: Path, text: str) -> str:
    path = folder / "my.toml"
    path.write_bytes(text.encode("utf-8"))
    return str(path)


@pytest.mark.parametrize("name", sorted(built_in_recipes()))
def test_built_in_recipes_parse_and_say_what_they_are_about(name: str):
    recipe = load_recipe(name)
    assert recipe.name == name and built_in_recipes()[name] == recipe.about != ""


@pytest.mark.parametrize("name", sorted(built_in_recipes()))
def test_what_is_written_is_read_back_equal(name: str, tmp_path: Path):
    recipe = load_recipe(name, ["train.batch_tokens=4096", "train.clip=0.6"])
    assert load_recipe(write(tmp_path, recipe_text(recipe))) == recipe


def test_every_number_is_written_with_defaults_too(tmp_path: Path):
    recipe = TranslateRecipe(name="x", train={"clip": 0, "eps": 1e-12, "max_steps": 7})
    text = recipe_text(recipe)
    assert load_recipe(write(tmp_path, text)) == recipe
    for key in ("clip = 0.0", "eps = 1e-12", "max_steps = 7", "label_smoothing = 0.1"):
        assert f"\n{key}\n" in text


@given(st.text(), st.lists(st.text(), max_size=2))
def test_any_text_goes_round(text: str, lines: list[str]):
    values = {"a": text, "b": {"c": lines}}
    assert tomllib.loads(toml_text(values)) == values


@given(st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_any_number_goes_round(number: float, count: int, yes: bool):
    values: dict[str, Any] = {"a": number, "b": count, "c": yes, "d": (number, count)}
    assert tomllib.loads(toml_text(values)) == values | {"d": [number, count]}


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path):
    assert load_recipe(write(tmp_path, "\ufeffname = 'x'\r\n[train]\r\nmax_steps = 3\r\n"))


# ---------------------------------------------------------------- overrides


def test_overrides_are_typed():
    changes = [
        "train.max_steps=5000",
        "model.n_layers = 4",
        "train.peak=3e-4",
        "train.compile=true",
        "train.betas=[0.8, 0.9]",
        "train.schedule=inverse_square_root",
        'data.pairs="a b.tsv"',
        "tokenizer.vocab_size=500",
        "name=mine",
    ]
    r = load_recipe("translate-en-zh", changes)
    assert (r.train.max_steps, r.model.n_layers, r.train.peak) == (5000, 4, 3e-4)
    assert r.train.compile is True and r.train.betas == (0.8, 0.9)
    assert r.train.schedule == "inverse_square_root" and r.data.pairs == "a b.tsv"
    assert r.tokenizer.vocab_size == 500 and r.name == "mine"


def test_the_last_override_counts():
    assert load_recipe("translate-en-zh", ["train.seed=2", "train.seed=3"]).train.seed == 3


def test_a_path_without_quotes_is_text():
    values: dict[str, Any] = {}
    override(values, "data.pairs=C:\\my data\\pairs.tsv")
    assert values == {"data": {"pairs": "C:\\my data\\pairs.tsv"}}


def test_an_override_takes_the_place_of_what_excludes_it():
    r = load_recipe("translate-en-zh", ["train.batch_tokens=2048"])
    assert r.train.batch_tokens == 2048 and r.train.batch_sentences is None
    r = load_recipe("translate-en-zh", ["data.source=a.txt", "data.target=b.txt"])
    assert (r.data.corpus, r.data.source, r.data.target) == (None, "a.txt", "b.txt")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.max_steps", r"section\.key=value.*got 'train\.max_steps'"),
        ("name.x=1", "'name' is a value itself"),
        ("train.max_steps=many", r"train\.max_steps: .*integer.*'many'"),
        ("train.max_steps=0", r"train\.max_steps: .*greater than or equal to 1.*got 0"),
        ("train.max_steps=1.5", r"train\.max_steps: .*got 1\.5"),
        ("train.max_steps=true", r"train\.max_steps: true is a switch"),
        ("model.dropout=false", r"model\.dropout: false is a switch"),
        ("train.label_smoothing=1", r"train\.label_smoothing: .*less than 1"),
        ("train.betas=[0.9, 1.0]", r"train\.betas\.1: .*less than 1"),
        ("train.peak=inf", r"train\.peak: .*finite"),
        ("train.optimizer=sgd", r"train\.optimizer: .*'adam' or 'adamw'.*'sgd'"),
        ("train.precision=fp16", r"train\.precision: .*'auto', 'fp32' or 'bf16'"),
        ("model.dropout=1", r"model\.dropout: .*less than 1"),
        ("train=5", "train: .*got 5"),
    ],
)
def test_a_wrong_override_is_a_sentence(change: str, words: str):
    with pytest.raises(UserError, match=words):
        load_recipe("translate-en-zh", [change])


# ---------------------------------------------------------------- mistakes


WRONG_KEYS = [
    ("train.max_step", "train.max_steps"),
    ("train.maxsteps", "train.max_steps"),
    ("train.steps", "train.max_steps"),
    ("train.lr", "train.peak"),
    ("train.learning_rate", "train.peak"),
    ("train.batch_size", "train.batch_sentences"),
    ("train.warm_up", "train.warmup"),
    ("model.n_head", "model.n_heads"),
    ("model.layers", "model.n_layers"),
    ("model.max_steps", "train.max_steps"),
    ("trian.max_steps", "train.max_steps"),
    ("max_steps", "train.max_steps"),
    ("tokeniser.vocab_size", "tokenizer.vocab_size"),
    ("tokenizer.vocabsize", "tokenizer.vocab_size"),
    ("data.pair", "data.pairs"),
    ("nmae", "name"),
]


@pytest.mark.parametrize(("wrong", "right"), WRONG_KEYS)
def test_a_wrong_key_in_an_override_names_the_nearest_right_one(wrong: str, right: str):
    with pytest.raises(UserError, match=f"no key {wrong}; did you mean {right}\\?"):
        load_recipe("translate-en-zh", [f"{wrong}=1"])


@pytest.mark.parametrize(("wrong", "right"), WRONG_KEYS)
def test_a_wrong_key_in_a_file_names_the_nearest_right_one(wrong: str, right: str, tmp_path: Path):
    section, _, key = wrong.rpartition(".")
    header = f"[{section}]\n" if section else ""
    path = write(tmp_path, f'name = "x"\n{header}{key} = 1\n')
    with pytest.raises(UserError, match=f"my.toml: there is no key {wrong}; did you mean {right}"):
        load_recipe(path)


def test_an_empty_wrong_section_names_the_nearest_section(tmp_path: Path):
    with pytest.raises(UserError, match="no section trian; did you mean train"):
        load_recipe(write(tmp_path, 'name = "x"\n[trian]\n'))


def test_all_mistakes_are_told_at_once(tmp_path: Path):
    with pytest.raises(UserError, match=r"name is missing; train\.seed: .*; .*train\.pea;"):
        load_recipe(write(tmp_path, "[train]\npea = 1\nseed = -1\n"))


def test_a_batch_has_one_size(tmp_path: Path):
    text = 'name = "x"\n[train]\nbatch_tokens = 10\nbatch_sentences = 2\n'
    with pytest.raises(UserError, match="train: give either batch_tokens or batch_sentences"):
        load_recipe(write(tmp_path, text))


def test_broken_toml_names_file_and_line(tmp_path: Path):
    with pytest.raises(UserError, match=r"my\.toml is not valid TOML: .*line 2"):
        load_recipe(write(tmp_path, 'name = "x"\n[train\n'))


def test_a_file_that_is_no_text_is_a_sentence(tmp_path: Path):
    (tmp_path / "my.toml").write_bytes(b"name = '\xff\xfe'\n")
    with pytest.raises(UserError, match=r"Could not read the recipe .*my\.toml as UTF-8"):
        load_recipe(str(tmp_path / "my.toml"))


def test_a_missing_file_is_a_sentence(tmp_path: Path):
    with pytest.raises(UserError, match=r"no recipe file .*other\.toml; check the path"):
        load_recipe(str(tmp_path / "other.toml"))


def test_a_missing_built_in_names_the_nearest():
    with pytest.raises(UserError, match="'translate-en-zj'; did you mean translate-en-zh"):
        load_recipe("translate-en-zj")


def test_known_keys_name_every_key_once():
    keys = known_keys(TranslateRecipe)
    assert len(keys) == len(set(keys)) and {"name", "train.seed", "data.corpus"} <= set(keys)
    assert all(set(key) <= set(string.ascii_lowercase + "_.") for key in keys)


def test_a_recipe_from_values_is_immutable():
    recipe = parse_recipe({"name": "x"}, "values")
    with pytest.raises(ValueError, match="frozen"):
        recipe.train.seed = 3


# ---------------------------------------------------------------- the model's numbers


def test_a_preset_and_what_differs_from_it():
    recipe = load_recipe("translate-en-zh", ["model.preset=tiny", "model.n_decoder_layers=1"])
    config = recipe.model.config(50, 40)
    assert (config.vocab_size, config.source_vocab_size, config.d_model) == (50, 40, 64)
    assert (config.n_encoder_layers, config.n_decoder_layers) == (2, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("model.preset=smal", "No preset 'smal'; did you mean small"),
        ("model.n_heads=7", "d_model 256 does not divide into 7 heads"),
        ("model.norm=both", r"model\.norm: .*'post' or 'pre'"),
        ("model.activation=tanh", r"model\.activation: .*'relu'"),
    ],
)
def test_numbers_that_do_not_fit_together_are_a_sentence(change: str, words: str):
    with pytest.raises(UserError, match=words):
        load_recipe("translate-en-zh", [change]).model.config(50, None)


@pytest.mark.parametrize("change", ["model.d_model=0", "model.n_heads=0", "model.n_layers=-1"])
def test_sizes_below_one_are_a_sentence(change: str):
    with pytest.raises(
        UserError, match=rf"{change.partition('=')[0]}: .*greater than or equal to 1"
    ):
        load_recipe("translate-en-zh", [change])


def test_a_second_change_behind_a_line_break_is_refused_and_not_passed_over():
    with pytest.raises(UserError, match=r"one section\.key=value at a time"):
        load_recipe("translate-en-zh", ["train.max_steps=5\ntrain.seed=3"])
    assert load_recipe("translate-en-zh", ["about=a\nb"]).about == "a\nb"
