"""everyhead evaluate --attention: what another attention costs, beside what the model has."""

import json
from pathlib import Path

import pytest
import torch

from everyhead.cli.methods import method
from everyhead.layers.exact import Exact
from everyhead.layers.favor import RandomFeatures
from everyhead.layers.lsh_method import Lsh
from everyhead.layers.sliding import Window
from everyhead.training.jobs.translate import read_splits
from everyhead.training.run import run_recipe
from everyhead.weights.folder import load
from tests.cli.conftest import everyhead, refused


@pytest.fixture(scope="module")
def language_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder that saw a few lines."""
    folder = tmp_path_factory.mktemp("language")
    lines = [
        f"The {a} saw a {b} by the {c}." for a in "abcdefg" for b in "hijklmno" for c in "pqrstuv"
    ]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    small = ("model.d_model=32", "model.n_heads=2", "model.n_layers=1", "model.max_len=32",
             "train.max_steps=4", "train.evaluate_every=4", "train.save_every=4",
             "train.batch_tokens=256", "tokenizer.vocab_size=300", "data.documents=line",
             "data.split=document")  # fmt: skip
    changes = [word for change in small for word in ("--set", change)]
    data = ("--data", folder / "text.txt", "--run", folder / "run")
    code, _, err = everyhead("train", "pretrain-gpt2", *data, *changes)
    assert code == 0, err
    return folder / "run"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("window:512", Window(512)),
        ("window:512+4", Window(512, first=4)),
        ("features:256", RandomFeatures(256)),
        ("lsh:32", Lsh(32)),
        ("exact", Exact()),
    ],
)
def test_each_spelling_is_a_method(text: str, wanted: object) -> None:
    assert method(text) == wanted


SPELLINGS = [
    *("window", "window:", "window:a", "window:5+", "window:5+1+2", "window:-3", "window:٥"),
    *("features:", "exact:1", "windows:5", "", "lsh:2+3", "window:0", "lsh:3", "features:0"),
    *("window:9999999999", "window:8+99999999999999999999"),
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_wrong_spelling_is_one_sentence_before_anything_is_read(text: str) -> None:
    told = refused("evaluate", "no/such/run", "--attention", text)
    assert told.startswith(f"--attention {text}") or "is no method; give window:512" in told


def test_a_language_models_scores_stand_side_by_side(language_run: Path) -> None:
    code, out, err = everyhead("evaluate", language_run, "--attention", "window:2+1", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    plain = json.loads(everyhead("evaluate", language_run, "--json").out)
    changed = found.pop("with_attention")
    assert found.pop("attention") == "window:2+1" and found == plain
    assert changed["loss"] != plain["loss"] and changed["tokens"] == plain["tokens"]
    wide = json.loads(
        everyhead("evaluate", language_run, "--attention", "window:99", "--json").out
    )["with_attention"]
    assert wide["loss"] == pytest.approx(plain["loss"], rel=1e-6)
    out = everyhead("evaluate", language_run, "--attention", "window:2+1").out
    head, loss, *_ = out.splitlines()
    assert head.split() == ["exact", "window:2+1"]
    assert loss.split()[1:] == [f"{plain['loss']:.4f}", f"{changed['loss']:.4f}"]


@pytest.mark.parametrize("text", ["features:16", "lsh:2", "exact"])
def test_every_method_can_be_asked_for(language_run: Path, text: str) -> None:
    found = json.loads(everyhead("evaluate", language_run, "--attention", text, "--json").out)
    same = found["loss"] == found["with_attention"]["loss"]
    assert same == (text == "exact")


def test_of_a_translation_the_losses_are_compared(lively: Path) -> None:
    code, out, err = everyhead("evaluate", lively, "--attention", "window:2", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    model, tokenizer = load(lively, attention=Window(2))
    total, n = 0.0, 0
    for source, target in read_splits(run_recipe(lively).data)[0].test.rows():
        ids = torch.tensor([[*tokenizer.source.encode(source), 0]])
        labels = [*tokenizer.target.encode(target), 0]
        with torch.no_grad():
            logits = model(ids, torch.tensor([[model.config.pad_id, *labels[:-1]]]))[0]
        total -= logits.log_softmax(-1)[range(len(labels)), labels].double().sum().item()
        n += len(labels)
    assert found["with_attention"]["loss"] == pytest.approx(total / n, rel=1e-5)
    assert found["loss"] != found["with_attention"]["loss"] and "bleu" not in found
    told = refused("evaluate", lively, "--attention", "window:2", "--beam", 2)
    assert "leave out --beam" in told


def test_what_a_model_cannot_be_computed_by_is_one_sentence(tmp_path: Path) -> None:
    from everyhead.cli.methods import swapped
    from everyhead.errors import UserError
    from everyhead.models.performer import Performer, PerformerConfig

    model = Performer(PerformerConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=1, max_len=8))
    with pytest.raises(UserError, match="does not go with this model: Window takes the place"):
        swapped(model, "window:4")


def test_hashing_and_exact_are_scored_on_the_same_rows(language_run: Path) -> None:
    """LSH cannot keep the documents of a row apart, so both read them one at a time."""
    out = everyhead("evaluate", language_run, "--attention", "lsh:2", "--json").out
    plain = json.loads(everyhead("evaluate", language_run, "--json").out)
    found = json.loads(out)
    assert found["tokens"] == found["with_attention"]["tokens"]
    assert found["loss"] != pytest.approx(plain["loss"], abs=1e-9)  # other rows, other contexts
