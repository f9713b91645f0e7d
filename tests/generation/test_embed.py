"""Sentence vectors beside sentence-transformers', and in any company."""

import json
import warnings

import numpy as np
import pytest
import torch

from everyhead.data.corpora import load_corpus
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.generation.embed import embed
from everyhead.generation.reading import groups_by_length
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.prepare import prepare
from everyhead.models.sentences import SentenceRule, sentence_vectors
from everyhead.weights.fetch import fetch
from everyhead.weights.folder import load, save
from everyhead.weights.sentences import sentence_rule


@pytest.fixture(scope="module")
def minilm():
    return load(fetch("minilm").folder)


def folder(tmp_path, pooling=None, modules=("Transformer", "Pooling", "Normalize"), **texts):
    """What sentence-transformers writes beside a model."""
    listed = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}", "type": f"sentence_transformers.{kind}"}
        for i, kind in enumerate(modules)
    ]
    (tmp_path / "1_Pooling").mkdir()
    files = {
        "modules.json": listed,
        "1_Pooling/config.json": pooling or {"pooling_mode_mean_tokens": True},
        "sentence_bert_config.json": texts,
    }
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_thousand_sentences_as_sentence_transformers_have_them(minilm):
    from sentence_transformers import SentenceTransformer

    pairs = load_corpus("hsk-en-zh").pairs
    lines = pairs.source[:700] + pairs.target[:290]
    lines += ["", " ", "?!", "a\tb  c ", "naïve café ÀÉ", "📚", "We walk home. " * 90, "x" * 300]
    lines += ["[MASK] typed", "e\u0301 and é"]
    assert len(lines) == 1000
    place = fetch("minilm").folder
    with pytest.warns(UserWarning, match=r"1 of 1,000 lines are longer than 256 tokens"):
        found = embed(*minilm, lines, rule=sentence_rule("minilm"))
    told = SentenceTransformer(str(place), device="cpu").encode(lines)
    assert found.shape == told.shape == (1000, 384)
    assert np.abs(found.numpy() - told).max() <= 1e-5


@pytest.mark.parametrize("mode", ["mean", "mean_sqrt_len_tokens"])
def test_what_sentence_transformers_write_now_is_read(mode, tmp_path):
    """Where texts are cut stands in the tokenizer's file alone, and a pooling has a longer name."""
    from sentence_transformers import SentenceTransformer, models

    torch.manual_seed(0)
    tokenizer = TextTokenizer.train(load_corpus("hsk-en-zh").pairs.source, kind="wordpiece")
    config = BertConfig(
        vocab_size=tokenizer.vocab_size, d_model=16, n_heads=2, n_layers=1, d_ff=16, max_len=64,
        gap_head=False, next_sentence_head=False,
    )  # fmt: skip
    save(Bert(config), tokenizer, tmp_path / "bert")
    body = models.Transformer(str(tmp_path / "bert"))
    theirs = SentenceTransformer(modules=[body, models.Pooling(16, mode)], device="cpu")
    theirs.max_seq_length = 7
    theirs.save(str(tmp_path / "theirs"))
    lines = ["We walk home.", "", "We walk home, and then we walk to the school again."]
    with pytest.warns(UserWarning, match="1 of 3 lines are longer than 7 tokens"):
        found = embed(*load(tmp_path / "theirs"), lines, rule=sentence_rule(tmp_path / "theirs"))
    assert np.abs(found.numpy() - theirs.encode(lines)).max() <= 1e-5


def test_company_order_and_preparing_change_nothing(minilm):
    model, tokenizer = minilm
    lines = ["a b c d e f g", "a", "", "two words", "a b c d e f g"]
    found = embed(model, tokenizer, lines)
    alone = torch.cat([embed(model, tokenizer, [line]) for line in lines])
    assert torch.allclose(found, alone, atol=1e-5)
    assert torch.allclose(embed(prepare(model), tokenizer, lines), found, atol=1e-5)
    assert torch.allclose(embed(model, tokenizer, lines, batch_tokens=1), found, atol=1e-5)
    assert torch.allclose(found.norm(dim=1), torch.ones(5), atol=1e-5)


@pytest.mark.parametrize(
    "mode", ["mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"]
)
@pytest.mark.parametrize("left", [False, True])
def test_pooling_against_loops(mode, left):
    torch.manual_seed(0)
    rows = [torch.randn(n, 6) for n in (5, 1, 3)]
    hidden, mask = torch.full((3, 7, 6), 1e6), torch.zeros(3, 7, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(7 - len(row), 7) if left else slice(0, len(row))
        hidden[i, place], mask[i, place] = row, True
    oracle = {
        "mean": lambda h: sum(h) / len(h),
        "cls": lambda h: h[0],
        "max": lambda h: torch.stack([max(column) for column in h.T]),
        "mean_sqrt_len": lambda h: sum(h) / len(h) ** 0.5,
        "weightedmean": lambda h: (
            sum((i + 1) * x for i, x in enumerate(h)) / sum(range(1, len(h) + 1))
        ),
        "lasttoken": lambda h: h[-1],
    }[mode]
    found = sentence_vectors(hidden, mask, SentenceRule(pooling=mode, normalise=False))
    assert torch.allclose(found, torch.stack([oracle(row) for row in rows]), atol=1e-5)


def test_rule_of_a_folder(tmp_path):
    place = folder(
        tmp_path,
        {"pooling_mode_cls_token": True},
        ("Transformer", "Pooling"),
        max_seq_length=9,
        do_lower_case=True,
    )
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (place / "config_sentence_transformers.json").write_text(json.dumps(prompts), encoding="utf-8")
    assert sentence_rule(place) == SentenceRule("cls", False, 9, True, "query: ")
    assert sentence_rule(tmp_path / "1_Pooling") == SentenceRule()


@pytest.mark.parametrize(
    "pooling, modules, word",
    [
        (None, ("Transformer", "Pooling", "Dense"), "Dense"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, None, "at a time"),
        ({"pooling_mode": "attention"}, None, "attention"),
        ({}, ("Transformer", "Pooling"), "Pooling|pooling"),
    ],
)
def test_rules_that_everyhead_lacks_are_named(pooling, modules, word, tmp_path):
    place = folder(
        tmp_path,
        pooling or {"x": 1} if pooling == {} else pooling,
        modules or ("Transformer", "Pooling"),
    )
    with pytest.raises(UserError, match=word):
        sentence_rule(place)


def test_a_broken_list_of_modules(tmp_path):
    folder(tmp_path)
    (tmp_path / "modules.json").write_text("{}", encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (tmp_path / "modules.json").write_text('[{"no": 1}]', encoding="utf-8")
        with pytest.raises(UserError, match="no list of modules"):
            sentence_rule(tmp_path)


def test_models_without_states_say_so():
    from everyhead.models.transformer import Transformer, TransformerConfig

    model = Transformer(
        TransformerConfig(
            vocab_size=9, d_model=8, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, d_ff=8
        )
    )
    with pytest.raises(UserError, match="minilm"):
        embed(model, None, ["a"])


def test_groups_hold_every_row_once_within_the_budget():
    lengths = [5, 1, 9, 30, 2, 9, 9, 1]
    groups = list(groups_by_length(lengths, 18))
    assert sorted(i for group in groups for i in group) == list(range(8))
    for group in groups:
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= 18
