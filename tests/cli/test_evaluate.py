"""everyhead evaluate: sacreBLEU's figures on pairs that were not trained on."""

import json
import math
from pathlib import Path

import pytest
import sacrebleu
import torch

from everyhead.cli import evaluate
from everyhead.training.jobs.translate import read_splits
from everyhead.training.run import run_recipe
from everyhead.weights.folder import load, save_model
from tests.cli.conftest import everyhead, refused, rows


def test_json_has_the_promised_keys_and_the_figures_of_sacrebleu(lively: Path):
    code, out, err = everyhead("evaluate", lively, "--split", "test", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    scores = json.loads(out)
    assert {"bleu", "chrf", "loss", "perplexity", "bleu_signature"} <= scores.keys()
    splits = read_splits(run_recipe(lively).data)[0]
    assert scores["split"] == "test" and scores["sentences"] == splits.test.size
    text = "\n".join(splits.test.source).encode("utf-8")
    found = everyhead("translate", lively, stdin=text).out.split("\n")[:-1]
    bleu = sacrebleu.corpus_bleu(found, [splits.test.target], tokenize="zh").score
    chrf = sacrebleu.corpus_chrf(found, [splits.test.target]).score
    assert (scores["bleu"], scores["chrf"]) == (round(bleu, 2), round(chrf, 2))
    assert "tok:zh" in scores["bleu_signature"] and "seed:12345" in scores["bleu_signature"]
    assert scores["bleu_low"] <= scores["bleu_high"]
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))


def test_the_loss_is_the_mean_over_real_tokens_whatever_the_batch(lively: Path):
    model, tokenizer = load(lively)
    splits = read_splits(run_recipe(lively).data)[0]
    total, n_tokens = 0.0, 0
    for source, target in splits.test.rows():
        ids = torch.tensor([[*tokenizer.source.encode(source), 0]])
        labels = [*tokenizer.target.encode(target), 0]
        with torch.no_grad():
            logits = model(ids, torch.tensor([[model.config.pad_id, *labels[:-1]]]))[0]
        total -= logits.log_softmax(-1)[range(len(labels)), labels].double().sum().item()
        n_tokens += len(labels)
    scores = json.loads(everyhead("evaluate", lively, "--json").out)
    assert scores["tokens"] == n_tokens
    assert scores["loss"] == pytest.approx(total / n_tokens, rel=1e-5)


def test_the_table_says_the_same_for_people(lively: Path):
    scores = json.loads(everyhead("evaluate", lively, "--json", "--beam", 1).out)
    code, out, err = everyhead("evaluate", lively, "--beam", 1)
    assert (code, err) == (0, "")
    assert f"BLEU        {scores['bleu']:.2f}  (95 % " in out
    assert f"chrF        {scores['chrf']:.2f}\n" in out and "beam 1; nrefs:1" in out


def test_other_pairs_are_scored_as_they_are_but_for_blank_ones(lively: Path, tmp_path: Path):
    file = tmp_path / "a.tsv"
    file.write_bytes("".join(f"{a}\t{b}\n" for a, b in [*rows()[:3], rows()[0], ("", "")]).encode())
    _, out, err = everyhead("evaluate", lively, "--pairs", file, "--json")
    scores = json.loads(out)
    assert scores["sentences"] == 4 and scores["split"] == str(file)
    assert f"1 of 5 pairs of {file} lack a side" in err
    file.write_bytes(b"\n\n")
    assert "no pair to score" in refused("evaluate", lively, "--pairs", file)
    assert "no file" in refused("evaluate", lively, "--pairs", tmp_path / "none.tsv")


def test_one_pair_has_no_interval(lively: Path, tmp_path: Path):
    file = tmp_path / "a.tsv"
    file.write_bytes("\t".join(rows()[0]).encode("utf-8"))
    assert "bleu_low" not in json.loads(
        everyhead("evaluate", lively, "--pairs", file, "--json").out
    )
    assert "95 %" not in everyhead("evaluate", lively, "--pairs", file).out


def test_pairs_that_are_too_long_are_counted_and_all_too_long_refused(lively: Path, tmp_path: Path):
    file, long = tmp_path / "a.tsv", "red cat " * 100
    file.write_bytes(f"{rows()[0][0]}\t{rows()[0][1]}\n{long}\t红猫\n".encode())
    code, out, err = everyhead("evaluate", lively, "--pairs", file, "--json")
    assert code == 0 and json.loads(out)["sentences"] == 2
    assert err.startswith("everyhead: 1 pairs are longer than the 64 pieces")
    file.write_bytes(f"{long}\t红猫\n".encode())
    assert "split them into sentences" in refused("evaluate", lively, "--pairs", file)


def test_splits_by_name_and_options_that_make_no_sense(lively: Path):
    for split in ("validation", "train"):
        out = everyhead("evaluate", lively, "--split", split, "--beam", 1, "--json").out
        assert json.loads(out)["split"] == split
    assert "test, validation, train" in refused("evaluate", lively, "--split", "tset")
    assert "beam is 0" in refused("evaluate", lively, "--beam", 0)


def test_a_misspelt_split_is_refused_beside_pairs_too(lively: Path, pairs: Path):
    words = refused("evaluate", lively, "--split", "tset", "--pairs", pairs)
    assert "There is no split 'tset'" in words


def test_pairs_that_changed_since_the_training_are_said(copy: Path, tmp_path: Path):
    assert everyhead("evaluate", copy, "--json").err == ""
    other = tmp_path / "other.tsv"
    other.write_bytes("".join(f"{a}\t{b}\n" for a, b in reversed(rows())).encode("utf-8"))
    recipe = (copy / "recipe.toml").read_text(encoding="utf-8")
    old = next(line for line in recipe.splitlines() if line.startswith("pairs = "))
    changed = recipe.replace(old, f"pairs = {json.dumps(str(other))}")
    (copy / "recipe.toml").write_bytes(changed.encode("utf-8"))
    code, _, err = everyhead("evaluate", copy, "--json")
    assert code == 0 and "the pairs have changed since" in err


def test_json_has_no_number_that_json_has_not(copy: Path):
    model, tokenizer = load(copy)
    with torch.no_grad():  # a loss whose exponential overflows
        model.target_embed.weight.mul_(1e4)
    save_model(model, copy, tokenizer=tokenizer)
    out = everyhead("evaluate", copy, "--json").out
    scores = json.loads(out, parse_constant=lambda name: pytest.fail(name))
    assert scores["loss"] > 1000 and scores["perplexity"] is None
    assert "perplexity  not finite" in everyhead("evaluate", copy).out


def test_a_big_set_is_scored_without_an_interval(lively: Path, monkeypatch):
    monkeypatch.setattr(evaluate, "MOST_RESAMPLED", 2)
    assert "bleu_low" not in json.loads(everyhead("evaluate", lively, "--json").out)
