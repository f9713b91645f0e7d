"""Law 3: left, right, any amount; a batch of one or of many; whatever the hidden places hold."""

import pytest
import torch
from torch import Tensor, nn

from tests.laws.families import FAMILIES, Sides, batch, build, sentences

NEAR = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=["packed", "traced"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Packed rows, or the rectangle that a traced graph keeps."""
    if request.param == "traced":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    return request.param


def singles(model: nn.Module) -> list[Tensor]:
    """Each pair alone and without any padding: (t, V)."""
    return [model(source, target)[0] for source, target in sentences(model)]


@pytest.mark.parametrize("extra", [0, 9])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_batch_is_its_sentences_one_by_one(family: str, left: bool, extra: int, way: str) -> None:
    model = build(family)
    sides = batch(model, left=left, extra=extra)
    logits = model(*sides)
    for i, alone in enumerate(singles(model)):
        torch.testing.assert_close(logits[i, sides.target_mask[i]], alone, **NEAR)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_one_side_may_be_padded_left_and_the_other_right(family: str, way: str) -> None:
    model = build(family)
    right, left = batch(model), batch(model, left=True, extra=3)
    logits = model(left.source, right.target, left.source_mask, right.target_mask)
    expected = model(*right)
    real = right.target_mask
    torch.testing.assert_close(logits[real], expected[real], **NEAR)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_the_sum_of_the_sentences_gradients(
    family: str, left: bool, way: str
) -> None:
    model = build(family, dtype=torch.float64)
    sides = batch(model, left=left, extra=2)
    model.hidden(*sides)[sides.target_mask].square().sum().backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for source, target in sentences(model):
        model.hidden(source, target).square().sum().backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(together[name], p.grad, rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_ids_under_the_mask_do_not_matter(family: str, way: str) -> None:
    """A sentence may contain the padding's id, and padding any id: the mask alone decides."""
    model = build(family)
    sides = batch(model)
    other = Sides(
        torch.where(sides.source_mask, sides.source, 3),
        torch.where(sides.target_mask, sides.target, 5),
        sides.source_mask,
        sides.target_mask,
    )
    real = sides.target_mask
    torch.testing.assert_close(model(*other)[real], model(*sides)[real], rtol=0, atol=1e-6)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_junk_in_the_row_of_padding_reaches_no_output_and_no_gradient(
    family: str, left: bool, junk: float, way: str
) -> None:
    results = []
    for value in (junk, 0.0):
        model = build(family)
        with torch.no_grad():
            model.source_embed.weight[model.config.source_pad_id] = value
            model.target_embed.weight[model.config.pad_id] = value
        sides = batch(model, left=left, extra=1)
        hidden = model.hidden(*sides)[sides.target_mask]
        hidden.square().sum().backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        results.append((hidden.detach(), grads))
    (out, grads), (expected, wanted) = results
    assert out.isfinite().all() and torch.equal(out, expected)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_sentences_without_tokens_are_finite_forwards_and_backwards(family: str, way: str) -> None:
    for empty_source, empty_target in (
        ([2], []),
        ([], [1]),
        ([0, 1, 2, 3], []),
        ([0], [0, 1, 2, 3]),
    ):
        model = build(family)
        sides = batch(model)
        sides.source_mask[empty_source] = False
        sides.target_mask[empty_target] = False
        hidden = model.hidden(*sides)
        assert hidden.isfinite().all()
        (hidden[sides.target_mask].square().sum() + 0 * hidden.sum()).backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_the_hidden_states_alone_are_the_real_rows_of_the_padded_ones(
    family: str, way: str
) -> None:
    model = build(family)
    for left in (False, True):
        sides = batch(model, left=left)
        rows = model.real_hidden(*sides)
        hidden = model.hidden(*sides)
        torch.testing.assert_close(rows, hidden[sides.target_mask], rtol=0, atol=1e-6)
    whole = model.real_hidden(sides.source, sides.target, sides.source_mask)
    assert whole.shape == (sides.target.numel(), 32)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_mask_that_hides_nothing_is_no_mask(family: str, way: str) -> None:
    model = build(family)
    source, target = sentences(model)[0]
    everything = (
        torch.ones_like(source, dtype=torch.bool),
        torch.ones_like(target, dtype=torch.bool),
    )
    torch.testing.assert_close(model(source, target, *everything), model(source, target), **NEAR)


@pytest.mark.parametrize("family", FAMILIES)
def test_training_and_evaluation_are_the_same_without_dropout(family: str, way: str) -> None:
    """A nested-tensor fast path in eval is where others went wrong."""
    model = build(family)
    for module in model.modules():
        for name in ("dropout", "p"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    sides = batch(model)
    train = model.train()(*sides)
    with torch.no_grad():
        evaluate = model.eval()(*sides)
    assert torch.equal(train, evaluate)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_two_evaluations_are_bit_equal(family: str, way: str) -> None:
    model = build(family)
    assert torch.equal(model(*batch(model)), model(*batch(model)))
