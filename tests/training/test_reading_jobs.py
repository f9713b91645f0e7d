"""Classifying, tagging and answering: they learn, and resume bit for bit."""

import warnings
from pathlib import Path

import pytest
import torch

from everyhead.data.conll import read_conll
from everyhead.errors import UserError
from everyhead.models.tasks import SequenceClassifier, SpanReader, TokenClassifier
from everyhead.training.recipe import load_recipe
from everyhead.training.run import make_trainer, prepare
from everyhead.weights.folder import load
from tests.training.reading import LINES, TOOLS, body, fitted, recipe_of, written


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    return body(tmp_path_factory.mktemp("start") / "bert")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    return written(tmp_path_factory.mktemp("data"))


JOBS = {
    "classify": ("accuracy", SequenceClassifier),
    "tag": ("f1", TokenClassifier),
    "answer": ("f1", SpanReader),
}


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job_learns_and_its_weights_come_back(job, start, files, tmp_path):
    steps = {"answer": 160}.get(job, 60)
    recipe = recipe_of(job, start, files, max_steps=steps, evaluate_every=steps, save_every=steps)
    prepared, trainer = fitted(recipe, tmp_path)
    metric, kind = JOBS[job]
    trainer.model.eval()
    scores = prepared.evaluate(trainer.model, "test")
    assert scores[metric] > 0.95 and scores["majority"] < 0.8
    assert any(line.startswith("Model: ") for line in prepared.introduction())
    model, _ = load(tmp_path)
    assert isinstance(model, kind)
    again = prepare(recipe, tmp_path, TOOLS).evaluate(model, "test")
    assert again == pytest.approx(scores)
    with pytest.raises(UserError, match="no split 'dev'"):
        prepared.evaluate(model, "dev")


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_twenty_steps_are_ten_a_resume_and_ten(job, start, files, tmp_path):
    more = {"evaluate_every": 10, "save_every": 10, "max_steps": 20, "schedule": "cosine"}
    recipe = recipe_of(job, start, files, **more)
    _, straight = fitted(recipe, tmp_path / "straight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = make_trainer(prepare(recipe, None, TOOLS), tmp_path / "halved")
        prepare(recipe, None, TOOLS).write(tmp_path / "halved")
        for _ in range(10):
            first.model.train()
            first._step()
            first._after_step()
        second = make_trainer(prepare(recipe, tmp_path / "halved", TOOLS), tmp_path / "halved")
    second.resume()
    assert second.state.step == 10
    second.fit()
    for (name, a), b in zip(
        straight.model.named_parameters(), second.model.parameters(), strict=True
    ):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "name",
    [
        "classify-questions",
        "classify-spam",
        "classify-reviews",
        "tag-tweets",
        "answer-squad",
    ],
)
def test_built_in_recipes_are_read(name, files):
    assert load_recipe(name).name == name
    job = load_recipe(name).job
    own = load_recipe(name, files=[files[job]])
    assert own.data.files == [str(files[job].resolve())]


def test_files_for_each_set(start, files, tmp_path):
    held_out = tmp_path / "test.tsv"
    held_out.write_text("anna likes paris\tparis\nBob left  rome\trome\n", encoding="utf-8")
    recipe = recipe_of("classify", start, files)
    data = recipe.data.model_copy(update={"files": [str(files["classify"]), str(held_out)]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(recipe.model_copy(update={"data": data}), None, TOOLS)
    texts = prepared.splits.train.texts + prepared.splits.validation.texts
    assert prepared.splits.test.size == 2 and len(texts) == len(LINES) - 2
    assert "anna likes paris" not in texts and "bob left rome" not in texts
    assert len(read_conll(files["tag"])) == len(LINES)


def test_nothing_to_learn_from_is_said(start, files):
    recipe = recipe_of("answer", start, files)
    bare = recipe.model_copy(update={"data": recipe.data.model_copy(update={"files": []})})
    with pytest.raises(UserError, match="--data FILE"):
        prepare(bare, None, TOOLS)
    smooth = recipe_of("answer", start, files, label_smoothing=0.1)
    with warnings.catch_warnings(), pytest.raises(UserError, match="label_smoothing=0"):
        warnings.simplefilter("ignore")
        make_trainer(prepare(smooth, None, TOOLS), Path("nowhere")).fit()
