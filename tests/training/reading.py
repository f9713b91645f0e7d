"""Small texts to classify, tag and answer, a body to go on from, and the recipe over both."""

import json
import warnings
from pathlib import Path

import torch

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.models.bert import Bert, BertConfig
from everyhead.training.job import Tools
from everyhead.training.recipe import parse_recipe
from everyhead.training.run import make_trainer, prepare
from everyhead.weights.as_task import load_as
from everyhead.weights.folder import load, save

TOOLS = Tools(load, save, load_as)
NAMES, PLACES = ("anna", "bob", "carl", "dora"), ("paris", "rome", "oslo", "bonn")
VERBS = ("lives in", "went to", "likes", "left", "saw", "sold")
LINES = [f"{name} {verb} {place}" for name in NAMES for verb in VERBS for place in PLACES]


def body(folder: Path, **more) -> Path:
    """A small random BERT to go on from."""
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
        **more,
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


def written(folder: Path) -> dict[str, Path]:
    """A file of each job."""
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
