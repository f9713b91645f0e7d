"""Language models: documents of a row are blind to each other; scores are sums divided once."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from everyhead.data.documents import n_bytes
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.data.token_rows import TokenRows, edges
from everyhead.errors import UserError
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.training.losses import next_token_loss
from everyhead.training.metrics import read_rows
from everyhead.training.recipe import parse_recipe
from everyhead.training.run import make_trainer, prepare
from tests.training.small_jobs import TOOLS, text, text_files, values

TEXTS = ["to be or not", "that is the question, whether it was", "nobler"]


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train([text(0)], kind="byte-level", vocab_size=280)


def decoder(family: str, size: int):
    torch.manual_seed(1)
    numbers = {"vocab_size": size, "d_model": 16, "n_heads": 2, "n_layers": 2, "max_len": 64}
    if family == "gpt2":
        return GPT2(GPT2Config(**numbers)).double().eval()
    return Llama(LlamaConfig(**numbers, n_kv_heads=1, d_ff=32)).double().eval()


def sharp(model):
    """Weights so large that every piece matters to every other."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.5)
    return model


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_row_of_documents_scores_as_each_document_alone(family, whole, tokenizer):
    """Against a plain loop: each document by itself, its logits from the plain forward."""
    model = sharp(decoder(family, tokenizer.vocab_size))
    rows = TokenRows(TEXTS, tokenizer, length=60, whole=whole)
    batches = rows.batches(8)
    assert whole == (batches[0].documents is not None)
    with torch.no_grad():
        found = sum(float(next_token_loss(model, batch, 0.0).nll) for batch in batches)
    first, last = edges(tokenizer)
    expected, n = 0.0, 0
    for each in TEXTS:
        ids = torch.tensor([[first, *tokenizer.encode(each, special=False), last]])
        logits = model(ids[:, :-1])[0].detach()
        expected += float(F.cross_entropy(logits, ids[0, 1:], reduction="sum"))
        n += ids.shape[1] - 1
    assert found == pytest.approx(expected, rel=1e-6)
    assert sum(batch.n_target for batch in batches) == n == rows.n_labels


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_changing_another_document_changes_nothing_and_without_the_rule_it_would(family, tokenizer):
    model = sharp(decoder(family, tokenizer.vocab_size))
    batch = TokenRows(TEXTS, tokenizer, length=60).batches(8)[0]
    inner = batch.documents == 1
    other = batch._replace(ids=batch.ids.masked_fill(batch.documents == 0, 99))
    packed = [model.hidden(b.ids, documents=b.documents)[inner] for b in (batch, other)]
    assert torch.equal(packed[0], packed[1])
    blended = [model.hidden(b.ids)[inner] for b in (batch, other)]
    assert not torch.allclose(blended[0], blended[1], atol=1e-3)


def test_gradients_reach_only_what_a_document_sees(tokenizer):
    model = sharp(decoder("gpt2", tokenizer.vocab_size))
    batch = TokenRows(TEXTS, tokenizer, length=60).batches(8)[0]
    x = model.token_embed(batch.ids).detach().requires_grad_()
    handle = model.token_embed.register_forward_hook(lambda *_: x)
    hidden = model.hidden(batch.ids, documents=batch.documents)
    handle.remove()
    hidden[batch.documents == 2].sum().backward()
    assert not x.grad[batch.documents != 2].any() and x.grad[batch.documents == 2].any()


def made(job: str, folder: Path, **train):
    given = values(job, folder)
    given["train"] = given["train"] | train
    return prepare(parse_recipe(given, "a test"), None, TOOLS)


def test_bits_per_byte_is_the_sum_in_bits_by_the_bytes_of_text(tmp_path: Path):
    prepared = made("pretrain-gpt2", tmp_path)
    model = prepared.job("cpu").model.eval()
    scores = prepared.evaluate(model, "test")
    tokenizer, (first, last) = prepared.tokenizer, edges(prepared.tokenizer)
    total = n = 0
    for document in prepared.splits.test:
        ids = [first, *tokenizer.encode(document.text, special=False), last]
        n += len(ids) - 1
    assert scores["tokens"] == n and scores["bytes"] == n_bytes(prepared.splits.test)
    total = scores["loss"] * n / math.log(2)
    assert scores["bits_per_byte"] == pytest.approx(total / scores["bytes"])
    assert scores["perplexity"] == pytest.approx(math.exp(scores["loss"]))
    uniform = math.log(tokenizer.vocab_size)
    assert scores["loss"] == pytest.approx(uniform, rel=0.1), "before the first step"


def test_held_out_text_is_not_trained_on(tmp_path: Path):
    prepared = made("pretrain-gpt2", tmp_path)
    sets = [{line for d in part for line in d.text.split("\n") if line} for part in prepared.splits]
    assert all(sets) and not (sets[1] & sets[2])
    assert max(len(sets[0] & held) for held in sets[1:]) <= 1  # a line may be drawn twice
    seen = prepared.job("cpu").stream
    text_seen = prepared.tokenizer.decode(seen.take().ids.flatten().tolist())
    assert text_seen.strip()


@pytest.mark.slow
def test_two_criteria_learn_to_fill_and_to_tell(tmp_path: Path):
    """Defect: one criterion that ignores label 0 for both, so telling stays at one half.

    Each document counts with words of its own, so a stranger is told at a glance.
    """
    folder = tmp_path / "data"
    folder.mkdir()
    words = [[f"{a}{b}" for b in "aeiou"] for a in ("bar", "kel", "mid", "nog", "tus", "wip")]
    for n, own in enumerate(words):
        lines = (" ".join(own[(i + k) % 5] for k in range(4)) for i in range(120))
        (folder / f"{n}.txt").write_bytes("\n".join(lines).encode())
    given = values("pretrain-bert", tmp_path / "unused")
    given["data"]["files"] = [str(path) for path in sorted(folder.iterdir())]
    given["model"] |= {"d_model": 32, "n_layers": 2, "dropout": 0.0, "attention_dropout": 0.0}
    steps = {"max_steps": 340, "batch_sentences": 16, "evaluate_every": 340, "peak": 3e-3}
    steps |= {"save_every": 500, "warmup": 20, "log_every": 100, "low": 3e-3}
    given["train"] = given["train"] | steps
    prepared = prepare(parse_recipe(given, "a test"), None, TOOLS)
    (tmp_path / "run").mkdir()
    trainer = make_trainer(prepared, tmp_path / "run", save=lambda model: None)
    trainer.fit()
    first, *_, last = (row for row in read_rows(tmp_path / "run") if row["kind"] == "train")
    assert first["nsp"] > 0.6 and last["nsp"] < 0.35, "half and half is 0.69"
    assert last["mlm"] < 2.2, "one of five is 1.61, one of all is 4.79"
    (held_out,) = (row for row in read_rows(tmp_path / "run") if row["kind"] == "validation")
    assert held_out["nsp_accuracy"] > 0.75


@pytest.mark.parametrize(
    ("job", "changes", "words"),
    [
        ("pretrain-gpt2", {"model": {"family": "bert"}}, "No family 'bert'"),
        ("pretrain-gpt2", {"model": {"preset": "smal"}}, "did you mean small"),
        ("pretrain-gpt2", {"model": {"n_kv_heads": 1}}, "n_kv_heads is not a number of gpt2"),
        ("pretrain-gpt2", {"data": {"corpus": "milton", "files": []}}, "there are shakespeare"),
        ("pretrain-gpt2", {"data": {"files": []}}, "names no text"),
        ("pretrain-gpt2", {"data": {"files": ["none.txt"]}}, "no file none.txt"),
        ("pretrain-gpt2", {"tokenizer": {"vocab_size": 20}}, "vocab_size is 20"),
        ("pretrain-bert", {"tokenizer": {"vocab_size": 20}}, "vocab_size is 20"),
        ("pretrain-bert", {"model": {"max_len": 3}}, "model.max_len"),
        ("tune", {"model": {"start": "nowhere/folder"}}, "nowhere/folder"),
    ],
)
def test_what_does_not_fit_is_a_sentence_before_anything_is_written(job, changes, words, tmp_path):
    given = values(job, tmp_path)
    for section, keys in changes.items():
        given[section] = given[section] | keys
    with pytest.raises(UserError, match=words):
        prepare(parse_recipe(given, "a test"), None, TOOLS)


def test_an_input_may_have_several_targets_and_no_pair_counts_twice(tmp_path: Path):
    given = values("tune-pairs", tmp_path)
    file = Path(given["data"]["files"][0])
    more = ["polish\tverb", "Polish\tnationality", "hello\tbonjour", "hello\tsalut"]
    lines = file.read_text(encoding="utf-8").split("\n")
    file.write_text("\n".join([*lines, *more, *more]), encoding="utf-8")
    prepared = prepare(parse_recipe(given, "a test"), None, TOOLS)
    rows = [set(zip(part.texts, part.labels, strict=True)) for part in prepared.splits]
    every = set.union(*rows)
    assert {tuple(line.split("\t")) for line in more} <= every
    assert sum(map(len, rows)) == len(every) == len({*lines, *more})
    assert prepared.report["pairs"]["duplicate"] == len(lines) + 8 - len(every)
    assert any("left out" in line for line in prepared.introduction())
    for part in rows:  # an input, whatever its capitals, is in one set
        others = [text.casefold() for other in rows if other is not part for text, _ in other]
        assert not {text.casefold() for text, _ in part} & set(others)


def test_tuning_needs_a_decoder_and_rows_that_it_can_read(tmp_path: Path):
    given = values("tune", tmp_path)
    long = given | {"model": given["model"] | {"length": 65}}
    with pytest.raises(UserError, match="65 is more than the 64"):
        prepare(parse_recipe(long, "a test"), None, TOOLS)
    many = given | {"train": given["train"] | {"freeze_layers": 9}}
    prepared = prepare(parse_recipe(many, "a test"), None, TOOLS)
    with pytest.raises(UserError, match="freeze at most 3"):
        prepared.job("cpu")
    bert = made("pretrain-bert", tmp_path / "bert")
    bert.save(bert.job("cpu").model, tmp_path / "folder")
    wrong = given | {"model": given["model"] | {"start": str(tmp_path / "folder")}}
    with pytest.raises(UserError, match="no language model that goes on with a text"):
        prepare(parse_recipe(wrong, "a test"), None, TOOLS)


def test_each_line_may_be_a_document(tmp_path: Path):
    (file,) = text_files(tmp_path, 1)
    given = values("pretrain-gpt2", tmp_path / "other")
    given["data"] = {"files": [file], "documents": "line"}
    prepared = prepare(parse_recipe(given, "a test"), None, TOOLS)
    assert sum(n for n, _ in prepared.report["documents_and_bytes"].values()) == 25
    batch = prepared.job("cpu").stream.take()
    assert batch.documents is not None
