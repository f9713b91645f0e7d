"""Laws 1, 3, 9 and 10 for models that read a text both ways, and for the heads of tasks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from everyhead.inspection.changes import HeadOff
from everyhead.inspection.trace import record
from everyhead.layers import probe
from everyhead.models.bert import PRESETS, Bert, BertConfig
from everyhead.models.longformer import Longformer, LongformerConfig
from everyhead.models.prepare import prepare
from everyhead.models.tasks import (
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanReader,
    SpanReaderConfig,
    TokenClassifier,
    TokenClassifierConfig,
)
from tests.laws.test_looking_changes_nothing import Watcher
from tests.laws.test_padding_never_changes_an_answer import way
from tests.laws.text_decoders import PAD, batch, texts

__all__ = ["way"]
NEAR = {"rtol": 1e-5, "atol": 1e-5}
SIZES: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "max_len": 40}
BODY = BertConfig(vocab_size=23, pad_id=PAD, **SIZES)
LONG = LongformerConfig(vocab_size=23, pad_id=PAD, windows=(2, 6), global_first=True, **SIZES)
TASK: dict[str, Any] = {"family": "bert", "body": BODY}
ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: Bert(BODY),
    "bert-tiny": lambda: Bert(BertConfig(vocab_size=23, pad_id=PAD, **PRESETS["tiny"])),
    "classifier": lambda: SequenceClassifier(SequenceClassifierConfig(**TASK, labels=("a", "b"))),
    "tagger": lambda: TokenClassifier(TokenClassifierConfig(**TASK, labels=("a", "b"))),
    "reader": lambda: SpanReader(SpanReaderConfig(**TASK)),
    "longformer": lambda: Longformer(LONG),
    "longformer-without-globals": lambda: Longformer(
        LONG.model_copy(update={"global_first": False})
    ),
    "long-classifier": lambda: SequenceClassifier(
        SequenceClassifierConfig(family="longformer", body=LONG, labels=("a", "b"))
    ),
}
sweep = pytest.mark.parametrize("family", ENCODERS)


def build(name: str, *, dtype: torch.dtype = torch.float32) -> Any:
    """In eval, no bias at zero and no gain at one; attention sharp, so that a key more is seen."""
    torch.manual_seed(0)
    model = ENCODERS[name]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(12) if p.dim() > 1 else p.add_(0.3 * torch.randn_like(p))
    return model.to(dtype)


def body(model: Any) -> Any:
    return getattr(model, "body", model)


def outputs(model: Any, ids: Tensor, real: Tensor | None = None) -> list[Tensor]:
    """What the model says of each row: (1, …), of real tokens alone where it says of tokens."""
    found = model(ids, real)
    if found.dim() == 2:
        return list(found[:, None])
    keep = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    return [found[i, keep[i]] for i in range(len(ids))]


# ------------------------------------------------------------------ law 1: a matrix, law 9: looking


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@sweep
@torch.no_grad()
def test_every_attention_is_a_matrix(family: str, dtype: torch.dtype, near: float) -> None:
    model = build(family, dtype=dtype)
    ids, real = batch(left=True)
    with record(body(model)) as trace:
        model(ids, real)
    assert len(trace.places()) == body(model).config.n_layers
    for name in trace.places():
        parts, mask = trace[name].parts, trace[name].mask
        weights = trace[name].weights()
        mixed = trace[name].output()
        fast = body(model).get_submodule(trace[name].path).attend(parts, mask)
        torch.testing.assert_close(mixed, fast, rtol=near, atol=near)
        sums = weights.sum(-1)
        assert bool(((sums - 1).abs() < 1e-5).logical_or(sums == 0).all())


@sweep
def test_with_an_observer_outputs_and_gradients_are_bit_equal(family: str) -> None:
    results = []
    for watcher in (None, Watcher()):
        model = build(family)
        if watcher is not None:
            probe.attach(watcher)
        try:
            found = model(*batch())
        finally:
            if watcher is not None:
                probe.detach(watcher)
        found.square().sum().backward()
        results.append((found, [p.grad for p in model.parameters() if p.grad is not None]))
    (plain, grads), (seen, wanted) = results
    assert torch.equal(plain, seen)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@sweep
@torch.no_grad()
def test_a_head_that_is_off_gives_zeros(family: str) -> None:
    model, (text, *_) = build(family), texts()
    plain = model(text)
    with record(body(model), [HeadOff("encoder.1.self_attn", [0, 1, 2, 3][:2])]):
        changed = model(text)
    assert not torch.allclose(plain, changed, atol=1e-4)
    assert torch.equal(model(text), plain)


# -------------------------------------------------------------------------------- law 3: padding


@pytest.mark.parametrize("extra", [0, 9])
@pytest.mark.parametrize("left", [False, True])
@sweep
@torch.no_grad()
def test_a_batch_is_its_texts_one_by_one(family: str, left: bool, extra: int, way: str) -> None:
    model = build(family)
    together = outputs(model, *batch(left=left, extra=extra))
    for found, text in zip(together, texts(), strict=True):
        torch.testing.assert_close(found, outputs(model, text)[0], **NEAR)


@pytest.mark.parametrize("left", [False, True])
@sweep
def test_gradients_are_the_sum_of_the_texts_gradients(family: str, left: bool, way: str) -> None:
    model = build(family, dtype=torch.float64)
    sum(x.square().sum() for x in outputs(model, *batch(left=left, extra=2))).backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for text in texts():
        outputs(model, text)[0].square().sum().backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(together[name], p.grad, rtol=1e-9, atol=1e-8, msg=name)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("left", [False, True])
@sweep
def test_junk_in_the_row_of_padding_reaches_nothing(
    family: str, left: bool, junk: float, way: str
) -> None:
    results = []
    for value in (junk, 0.0):
        model = build(family)
        tied = family.startswith(("bert", "longformer"))  # there the row is an output's too
        with torch.no_grad():
            body(model).token_embed.weight[PAD] = value
        found = outputs(model, *batch(left=left, extra=1))
        found = [x[..., :PAD] if tied else x for x in found]
        sum(x.square().sum() for x in found).backward()
        grads = [p.grad for name, p in model.named_parameters() if p.grad is not None]
        results.append((found, [] if tied else grads))
    (found, grads), (expected, wanted) = results
    assert all(
        torch.equal(a, b) and a.isfinite().all() for a, b in zip(found, expected, strict=True)
    )
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@sweep
def test_rows_without_tokens_are_finite_forwards_and_backwards(family: str, way: str) -> None:
    for empty in ([2], [0, 1, 2, 3]):
        model = build(family)
        ids, real = batch()
        real[empty] = False
        found = model(ids, real)
        assert found.isfinite().all()
        found.square().sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# ------------------------------------------------------------------------------- law 10: prepared


@sweep
@torch.no_grad()
def test_prepared_is_plain(family: str) -> None:
    model = build(family)
    ids, real = batch(left=True)
    for a, b in zip(outputs(model, ids, real), outputs(prepare(model), ids, real), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
