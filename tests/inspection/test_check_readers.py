"""`check` on Bert and the heads of tasks: the laws hold, and a planted fault is found."""

import pytest
import torch

from everyhead.cli.checked import check
from everyhead.models.bert import PRESETS, Bert, BertConfig
from everyhead.models.gpt2 import GPT2Config
from everyhead.models.llama import LlamaConfig
from everyhead.models.longformer import Longformer, LongformerConfig
from everyhead.models.tasks import (
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanReader,
    SpanReaderConfig,
    TokenClassifier,
    TokenClassifierConfig,
)

SMALL = {"vocab_size": 60, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_len": 24}
BODY = BertConfig(**SMALL, d_ff=48)
LONG = LongformerConfig(**SMALL, d_ff=48, windows=2, global_first=True)
NAMES = ("a", "b", "c")


def classifier(family, body, pooling=None):
    config = SequenceClassifierConfig(family=family, body=body, labels=NAMES, pooling=pooling)
    return SequenceClassifier(config)


MODELS = {
    "tiny": lambda: Bert(BertConfig(**{**PRESETS["tiny"], "vocab_size": 60, "max_len": 24})),
    "body": lambda: Bert(BODY.model_copy(update={"gap_head": False, "next_sentence_head": False})),
    "pooler": lambda: classifier("bert", BODY),
    "first": lambda: classifier("bert", BODY, "first"),
    "mean": lambda: classifier("bert", BODY, "mean"),
    "last": lambda: classifier("bert", BODY, "last"),
    "gpt2": lambda: classifier("gpt2", GPT2Config(**SMALL)),
    "llama": lambda: classifier("llama", LlamaConfig(**SMALL, d_ff=48)),
    "longformer": lambda: Longformer(LONG),
    "long texts": lambda: classifier("longformer", LONG),
    "tags": lambda: TokenClassifier(TokenClassifierConfig(family="bert", body=BODY, labels=NAMES)),
    "spans": lambda: SpanReader(SpanReaderConfig(family="bert", body=BODY)),
}


def build(name):
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_laws_hold(name):
    found = {finding.law: finding for finding in check(build(name))}
    assert not [each for each in found.values() if each.verdict == "fail"]
    held = {law for law, finding in found.items() if finding.verdict == "pass"}
    wanted = {"repeat", "batch", "padding-right", "padding-left", "under-padding", "nan-padding"}
    assert wanted | {"empty-row", "save-load"} <= held
    assert ("future" in held) == (name in ("gpt2", "llama"))
    assert ("ties" in held) == (name in ("tiny", "gpt2", "llama", "longformer"))


class CountsPadding(Bert):
    """Positions that count the padding."""

    def _embed(self, ids, mask, segments, packing):
        if mask is not None and packing is not None:
            packing.positions = packing.index % packing.length
        return super()._embed(ids, mask, segments, packing)


class PoolsTheFirstPlace(SequenceClassifier):
    def pooled(self, hidden, mask=None):
        return super().pooled(hidden, None)


def test_planted_faults_are_found():
    torch.manual_seed(0)
    one = CountsPadding(BODY)
    two = PoolsTheFirstPlace(
        SequenceClassifierConfig(family="bert", body=BODY, labels=NAMES, pooling="first")
    )
    for model in (one, two):
        (finding,) = check(model, laws=["padding-left"])
        assert finding.verdict == "fail"
        (finding,) = check(model, laws=["padding-right"])
        assert finding.verdict == "pass"


def test_a_prepared_copy_says_what_it_cannot():
    from everyhead.models.prepare import prepare

    (finding,) = check(prepare(build("pooler")), laws=["save-load"])
    assert finding.verdict == "not applicable" and "prepared" in finding.sentence
