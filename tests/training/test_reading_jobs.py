"""Classifying, tagging and answering: they learn, resume bit for bit, freeze what they say."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from everyhead.data.conll import read_conll
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.tasks import (
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanReader,
    TokenClassifier,
)
from everyhead.training.job import Tools
from everyhead.training.recipe import load_recipe, parse_recipe
from everyhead.training.run import make_trainer, prepare
from everyhead.training.sections import FineTuneRecipe
from everyhead.training.tuning import tuned
from everyhead.weights.as_task import load_as
from everyhead.weights.folder import load, save

TOOLS = Tools(load, save, load_as)
NAMES, PLACES = ("anna", "bob", "carl", "dora"), ("paris", "rome", "oslo", "bonn")
VERBS = ("lives in", "went to", "likes", "left", "saw", "sold")
LINES = [f"{name} {verb} {place}" for name in NAMES for verb in VERBS for place in PLACES]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """A small random BERT to go on from."""
    folder = tmp_path_factory.mktemp("start") / "bert"
    tokenizer = TextTokenizer.train([*LINES, "who where ? ."], kind="wordpiece", vocab_size=300)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=32,
        n_heads=2,
        n_layers=2,
        d_ff=48,
        max_len=40,
        dropout=0.0,
        attention_dropout=0.0,
        pad_id=tokenizer.pad_id,
    )
    model = Bert(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(4)
    save(model.eval(), tokenizer, folder)
    return folder


def questions(lines) -> dict:
    """Who, and where; of every fifth nothing is known."""
    paragraphs = []
    for i, line in enumerate(lines):
        name, place = line.split()[0], line.split()[-1]
        qas = [
            {
                "id": f"{i}-{word}",
                "question": f"{word} ?",
                "answers": [{"text": x, "answer_start": line.index(x)}],
            }
            for word, x in (("who", name), ("where", place))
        ]
        if i % 5 == 0:
            qas.append({"id": f"{i}-no", "question": ". .", "answers": [], "is_impossible": True})
        paragraphs.append({"context": line, "qas": qas})
    return {"data": [{"paragraphs": paragraphs}]}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    made = {
        "classify": "".join(f"{line}\t{line.split()[-1]}\n" for line in LINES),
        "tag": "\n\n".join(
            "\n".join(
                f"{word}\t{'B-name' if word in NAMES else 'B-place' if word in PLACES else 'O'}"
                for word in line.split()
            )
            for line in LINES
        ),
        "answer": json.dumps(questions(LINES)),
    }
    paths = {}
    for (name, text), ending in zip(made.items(), ("tsv", "conll", "json"), strict=True):
        paths[name] = folder / f"{name}.{ending}"
        paths[name].write_text(text, encoding="utf-8")
    return paths


def recipe_of(job, start, files, **train):
    values = {
        "name": job,
        "job": job,
        "data": {"files": [str(files[job])], "validation_share": 0.2, "test_share": 0.2},
        "model": {"start": str(start), "max_len": 40},
        "train": {
            "max_steps": 40,
            "batch_sentences": 16,
            "peak": 5e-3,
            "warmup": 4,
            "log_every": 10,
            "evaluate_every": 20,
            "save_every": 20,
            "precision": "fp32",
            **train,
        },
    }
    return parse_recipe(values, "test")


def fitted(recipe, run):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(recipe, None, TOOLS)
        trainer = make_trainer(prepared, run)
    prepared.write(run)
    trainer.fit()
    return prepared, trainer


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


# ------------------------------------------------------------------------------------ what is tuned


def test_freezing_and_rates_by_layer():
    body = BertConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=3, d_ff=8, max_len=4)
    model = SequenceClassifier(
        SequenceClassifierConfig(family="bert", body=body, labels=("a", "b"))
    )
    recipe = FineTuneRecipe(freeze_layers=1, layer_decay=0.5, head_rate=3.0)
    factors = tuned(model, recipe, new=("classifier.",))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {
        name
        for name, _ in model.named_parameters()
        if name.startswith("body.encoder.blocks.0.") or "embed" in name
    }
    assert factors["body.encoder.blocks.2."] == 1 and factors["body.encoder.blocks.1."] == 0.5
    assert factors["body.token_embed.weight"] == 0.125 and factors["classifier."] == 3
    with pytest.raises(UserError, match="3 layers"):
        tuned(model, FineTuneRecipe(freeze_layers=4))
    decoder = GPT2(GPT2Config(vocab_size=9, d_model=8, n_heads=2, n_layers=2, max_len=4))
    tuned(decoder, FineTuneRecipe(freeze_embeddings=True))
    still = {name for name, p in decoder.named_parameters() if not p.requires_grad}
    assert still and all("embed" in name for name in still)
