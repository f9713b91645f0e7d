"""Performer, Reformer and Transformer-XL in the job that goes on with a text, and their recipes."""

from pathlib import Path

import pytest
import torch

from everyhead.models.performer import Performer
from everyhead.models.reformer import Reformer
from everyhead.models.transformer_xl import TransformerXL
from everyhead.training.metrics import read_rows
from everyhead.training.recipe import built_in_recipes, load_recipe, parse_recipe
from everyhead.training.run import make_trainer, prepare, write_beginnings
from everyhead.weights.folder import load
from tests.training.small_jobs import TOOLS, values

MODELS = {
    "performer": (Performer, {"n_features": 8, "d_ff": 32}),
    "reformer": (Reformer, {"n_layers": 2, "d_ff": 32}),
    "transformer-xl": (TransformerXL, {"memory_len": 8, "segment_len": 8, "d_ff": 32}),
}
RECIPES = {
    "performer": "pretrain-performer",
    "reformer": "pretrain-reformer",
    "transformer-xl": "pretrain-xl",
}
BUFFERS = {"performer": "projection", "reformer": "rotations"}  # drawn once, kept for ever
WHOLE = ("performer", "transformer-xl")  # which keep the documents of a row apart


def prepared(family: str, folder: Path):
    given = values("pretrain-gpt2", folder)
    given["model"] |= {"family": family, "dropout": 0.1, "d_model": 32, **MODELS[family][1]}
    given["train"] = given["train"] | {"max_steps": 40, "evaluate_every": 40, "save_every": 20}
    return prepare(parse_recipe(given, "a test"), None, TOOLS)


@pytest.mark.parametrize("family", MODELS)
def test_it_learns_is_saved_and_scored(family: str, tmp_path: Path) -> None:
    made = prepared(family, tmp_path / "data")
    (tmp_path / "run").mkdir()
    kept = []
    make_trainer(made, tmp_path / "run", save=kept.append).fit()
    (held_out,) = (row for row in read_rows(tmp_path / "run") if row["kind"] == "validation")
    model = kept[-1].eval()
    assert type(model) is MODELS[family][0]
    assert held_out["loss"] < 4.0, "log 280 is 5.6"
    documents = made.job("cpu").validation[0].documents
    assert (documents is not None) == (family in WHOLE), "rows are full"
    made.save(model, tmp_path / "folder")
    again, tokenizer = load(tmp_path / "folder")
    ids = torch.tensor([tokenizer.encode("to be or not")])
    assert torch.equal(again(ids), model(ids))
    assert made.evaluate(again, "test") == made.evaluate(model, "test")


@pytest.mark.parametrize("family", MODELS)
def test_a_run_resumed_is_the_run(family: str, tmp_path: Path) -> None:
    """The projections and rotations too come back from the checkpoint, to the bit."""
    ends = []
    for name in ("straight", "stopped"):
        made, run = prepared(family, tmp_path / "data"), tmp_path / name
        run.mkdir()
        made.write(run)
        write_beginnings(run, made)
        trainer = make_trainer(made, run)
        if name == "stopped":
            while trainer.state.step < 20:
                trainer._step()
                trainer._after_step()
            torch.manual_seed(99)
            again = prepare(load_recipe(str(run / "recipe.toml")), run, TOOLS)
            trainer = make_trainer(again, run)
            trainer.resume()
            assert trainer.state.step == 20
        trainer.fit()
        ends.append(trainer.model.state_dict())
    assert ends[0].keys() == ends[1].keys()
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    drawn = [name for name in ends[0] if BUFFERS.get(family, "none") in name]
    assert bool(drawn) == (family in BUFFERS)


@pytest.mark.parametrize("family", MODELS)
def test_its_recipe_fits_the_job(family: str) -> None:
    assert RECIPES[family] in built_in_recipes()
    recipe = load_recipe(RECIPES[family])
    config = recipe.model.config((family,), vocab_size=recipe.tokenizer.vocab_size)
    with torch.device("meta"):
        model = MODELS[family][0](config)
    assert 500_000 < sum(p.numel() for p in model.parameters()) < 2_000_000
    assert recipe.train.max_steps and recipe.model.max_len == 256
