"""train, evaluate and predict of the reading jobs, as they are typed."""

import json
import warnings
from pathlib import Path

import pytest
import torch

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.generation.read_texts import answer_from, classify, tag
from everyhead.models.bert import Bert, BertConfig
from everyhead.weights.folder import load, save
from tests.cli.conftest import Result, everyhead, refused

NAMES, PLACES = ("anna", "bob", "carl", "dora"), ("paris", "rome", "oslo", "bonn")
VERBS = ("lives in", "went to", "likes", "left", "saw", "sold")
LINES = [f"{name} {verb} {place}" for name in NAMES for verb in VERBS for place in PLACES]
SETTINGS = (
    "train.max_steps=60",
    "train.batch_sentences=16",
    "train.peak=5e-3",
    "train.warmup=4",
    "train.evaluate_every=60",
    "train.save_every=60",
    "train.precision=fp32",
    "model.max_len=40",
    "train.freeze_embeddings=false",
    "train.log_every=20",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, tuple[Path, Result]]:
    """A tiny run of each job, and what training said."""
    folder = tmp_path_factory.mktemp("reading")
    words = TextTokenizer.train([*LINES, "who where ? . ,"], kind="wordpiece", vocab_size=300)
    torch.manual_seed(0)
    model = Bert(
        BertConfig(
            vocab_size=words.vocab_size,
            d_model=32,
            n_heads=2,
            n_layers=2,
            d_ff=48,
            max_len=40,
            dropout=0.0,
            attention_dropout=0.0,
            pad_id=words.pad_id,
        )
    )
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(4)
    save(model.eval(), words, folder / "start")
    kinds = {**dict.fromkeys(NAMES, "B-name"), **dict.fromkeys(PLACES, "B-place")}
    tagged = ["\n".join(f"{w}\t{kinds.get(w, 'O')}" for w in line.split()) for line in LINES]
    squad = [
        {
            "context": line,
            "qas": [
                {
                    "id": f"{i}",
                    "question": "where ?",
                    "answers": [
                        {"text": line.split()[-1], "answer_start": line.index(line.split()[-1])}
                    ],
                }
            ],
        }
        for i, line in enumerate(LINES)
    ]
    data = {
        "classify-questions": "".join(f"{line}\t{line.split()[-1]}\n" for line in LINES),
        "tag-tweets": "\n\n".join(tagged),
        "answer-squad": json.dumps({"data": [{"paragraphs": squad}]}),
    }
    made = {}
    for recipe, text in data.items():
        file = folder / (recipe + (".tsv" if recipe.startswith("classify") else ".txt"))
        file.write_text(text, encoding="utf-8")
        settings = (*SETTINGS, f"model.start={folder / 'start'}")
        given = [word for each in settings for word in ("--set", each)]
        run = folder / recipe
        made[recipe] = run, everyhead("train", recipe, "--data", file, "--run", run, *given)
    return made


@pytest.mark.slow
def test_train_and_evaluate(runs):
    for recipe, (run, told) in runs.items():
        assert told.code == 0 and f"everyhead predict {run}" in told.err, told.err
        assert told.err.count("starts at random") == 1
        code, out, err = everyhead("evaluate", run, "--json")
        assert (code, err) == (0, "")
        scores = json.loads(out)
        metric = "accuracy" if recipe.startswith("classify") else "f1"
        assert scores[metric] > 0.9 and scores["split"] == "test"
        assert "%" in everyhead("evaluate", run).out


@pytest.mark.slow
def test_predict(runs):
    run = runs["classify-questions"][0]
    lines = b"carl saw rome\n\nanna left oslo\n"
    assert everyhead("predict", run, stdin=lines) == (0, "rome\n\noslo\n", "")
    out = everyhead("predict", run, "carl saw rome", "--top", 2).out
    assert out.startswith("rome ") and out.count("\t") == 1
    told = json.loads(everyhead("predict", run, "carl saw rome", "--json").out)
    assert told["label"] == "rome" and 0.25 < told["probability"] <= 1
    run = runs["tag-tweets"][0]
    out = everyhead("predict", run, "Dora went to Bonn", "carl left oslo").out
    assert out == "name: Dora\tplace: Bonn\nname: carl\tplace: oslo\n"
    told = json.loads(everyhead("predict", run, "Dora went to Bonn", "--json").out)
    assert told["entities"][1] == {"kind": "place", "text": "Bonn", "start": 13, "end": 17}
    run = runs["answer-squad"][0]
    assert everyhead("predict", run, "where ?", "bob sold paris").out == "paris\n"
    told = json.loads(everyhead("predict", run, "where ?", "bob sold paris", "--json").out)
    assert (told["answer"], told["start"], told["end"]) == ("paris", 9, 14)


@pytest.mark.slow
def test_in_python_alone_or_together(runs):
    model, words = load(runs["classify-questions"][0])
    texts = [LINES[5], LINES[50], "bob"]
    together = classify(model, words, texts)
    for text, row in zip(texts, together, strict=True):
        (alone,) = classify(model, words, [text])
        assert [x.name for x in alone] == [x.name for x in row]
        assert sum(x.probability for x in row) == pytest.approx(1)
    with pytest.raises(UserError, match="does not tag"):
        tag(model, words, texts)
    with pytest.raises(UserError, match="SpanReader"):
        answer_from(model, words, [("a", "b")])
    assert classify(model, words, []) == []


@pytest.mark.slow
def test_mistakes_are_sentences(runs, tmp_path):
    run = runs["answer-squad"][0]
    assert "question and text" in refused("predict", run, "only one")
    assert "1 columns where 2 are needed" in refused("predict", run, stdin=b"one column\n")
    assert "one answer" in refused("predict", run, "a", "b", "--top", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bad = tmp_path / "bad.tsv"
        bad.write_text("a\tb\tc\n", encoding="utf-8")
        given = ("--data", bad, "--run", tmp_path / "run")
        assert "3 columns" in refused("train", "classify-questions", *given)
        start = ("--set", "model.start=nowhere/x")
        good = tmp_path / "good.tsv"
        good.write_text("".join(f"{x}\t{x.split()[-1]}\n" for x in LINES), encoding="utf-8")
        given = ("--data", good, "--run", tmp_path / "run")
        assert "nowhere/x" in refused("train", "classify-questions", *given, *start)
    assert not (tmp_path / "run").exists()
