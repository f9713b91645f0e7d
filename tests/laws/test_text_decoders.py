"""Laws 3, 4, 5, 9 and 10 for every decoder that reads no memory."""

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import probe
from everyhead.layers.attention import Parts, weights
from everyhead.layers.masks import Mask
from everyhead.models.prepare import prepare
from tests.laws.test_looking_changes_nothing import Watcher
from tests.laws.test_padding_never_changes_an_answer import way
from tests.laws.text_decoders import (
    LENGTHS,
    PAD,
    RECURRENT,
    REVERSIBLE,
    SUMS,
    TEXT_DECODERS,
    WITH_ATTENTION,
    batch,
    build,
    texts,
)

__all__ = ["way"]
NEAR = {"rtol": 1e-5, "atol": 1e-5}
LENGTH = 10
sweep = pytest.mark.parametrize("family", TEXT_DECODERS)


def rows(n: int, length: int = LENGTH) -> Tensor:
    return torch.randint(0, PAD, (n, length), generator=torch.Generator().manual_seed(3))


# ---------------------------------------------------------------------------- law 3: padding


@pytest.mark.parametrize("extra", [0, 9])
@pytest.mark.parametrize("left", [False, True])
@sweep
@torch.no_grad()
def test_a_batch_is_its_texts_one_by_one(family: str, left: bool, extra: int, way: str) -> None:
    model = build(family)
    ids, real = batch(left=left, extra=extra)
    logits = model(ids, real)
    assert logits.isfinite().all()
    for i, text in enumerate(texts()):
        torch.testing.assert_close(logits[i, real[i]], model(text)[0], **NEAR)


@pytest.mark.parametrize("left", [False, True])
@sweep
def test_gradients_are_the_sum_of_the_texts_gradients(family: str, left: bool, way: str) -> None:
    model = build(family, dtype=torch.float64)
    ids, real = batch(left=left, extra=2)
    model.hidden(ids, real)[real].square().sum().backward()
    together = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for text in texts():
        model.hidden(text).square().sum().backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(together[name], p.grad, rtol=1e-10, atol=1e-9, msg=name)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("left", [False, True])
@sweep
def test_junk_in_the_row_of_padding_reaches_no_output_and_no_gradient(
    family: str, left: bool, junk: float, way: str
) -> None:
    results = []
    for value in (junk, 0.0):
        model = build(family)
        with torch.no_grad():
            model.token_embed.weight[PAD] = value
        ids, real = batch(left=left, extra=1)
        hidden = model.hidden(ids, real)[real]
        hidden.square().sum().backward()
        results.append((hidden.detach(), [p.grad for p in model.parameters()]))
    (out, grads), (expected, wanted) = results
    assert out.isfinite().all() and torch.equal(out, expected)
    for a, b in zip(grads, wanted, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


@pytest.mark.parametrize("empty", [[2], [0, 1, 2, 3]])
@sweep
def test_rows_without_tokens_are_finite_forwards_and_backwards(
    family: str, empty: list[int], way: str
) -> None:
    model = build(family)
    ids, real = batch()
    real[empty] = False
    hidden = model.hidden(ids, real)
    assert hidden.isfinite().all()
    (hidden[real].square().sum() + 0 * hidden.sum()).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@sweep
@torch.no_grad()
def test_real_rows_masks_and_ids_under_them(family: str, way: str) -> None:
    model = build(family)
    for left in (False, True):
        ids, real = batch(left=left, extra=1)
        hidden = model.hidden(ids, real)
        assert torch.equal(model.real_hidden(ids, real), hidden[real])
        other = model(torch.where(real, ids, 5), real)[real]
        torch.testing.assert_close(other, model(ids, real)[real], rtol=0, atol=1e-6)
    assert model.real_hidden(ids).shape == (ids.numel(), 32)
    text = texts()[0]
    everything = torch.ones_like(text, dtype=torch.bool)
    torch.testing.assert_close(model(text, everything), model(text), **NEAR)


# ---------------------------------------------------------------------------- law 4: the future


@pytest.mark.parametrize("left", [None, False, True])
@sweep
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(family: str, left: bool | None, way: str) -> None:
    model = build(family)
    ids, real = (rows(3), None) if left is None else batch(left=left, extra=1)
    seen = torch.ones_like(ids, dtype=torch.bool) if real is None else real
    before = model(ids, real)
    for t in range(ids.shape[1] - 1):
        changed = ids.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % PAD
        after = model(changed, real)
        assert torch.equal(
            after[:, : t + 1][seen[:, : t + 1]], before[:, : t + 1][seen[:, : t + 1]]
        )
        new = seen[:, t + 1]
        assert not new.any() or not torch.equal(after[new, t + 1], before[new, t + 1])


@sweep
def test_no_gradient_flows_from_an_output_to_a_later_token(family: str) -> None:
    model = build(family)
    ids = torch.arange(1, 10)[None]  # each id once, so that rows of the table are places
    for t in (0, 3, 7):
        model.zero_grad()
        model.hidden(ids)[0, t].square().sum().backward()
        touched = model.token_embed.weight.grad.abs().sum(1) > 0
        assert touched.nonzero()[:, 0].tolist() == list(range(1, t + 2))


@sweep
@torch.no_grad()
def test_texts_of_a_batch_do_not_see_one_another(family: str, way: str) -> None:
    model = build(family)
    ids, real = batch()
    changed = ids.clone()
    changed[1:] = (changed[1:] + 7) % PAD
    assert torch.equal(model(changed, real)[0], model(ids, real)[0])


# ---------------------------------------------------------------------------- law 5: the cache


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, LENGTH])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
@sweep
@torch.no_grad()
def test_in_chunks_is_at_once(family: str, chunk: int, left: bool, prepared: bool) -> None:
    """Left padding may fill whole chunks of a row."""
    model = build(family)
    real = torch.ones(4, LENGTH, dtype=torch.bool)
    if left:
        real = torch.arange(LENGTH) >= LENGTH - torch.tensor(LENGTHS)[:, None]
    ids = rows(4)
    cached = prepare(model) if prepared else model
    cache = cached.cache(LENGTH, rows=4)
    steps = [
        cached.hidden(x, r if left else None, cache=cache)
        for x, r in zip(ids.split(chunk, 1), real.split(chunk, 1), strict=True)
    ]
    found, wanted = torch.cat(steps, 1), model.hidden(ids, real)
    assert found.isfinite().all() and cache.length == LENGTH
    torch.testing.assert_close(found[real], wanted[real], **NEAR)


def stepwise(model: nn.Module, ids: Tensor, real: Tensor | None, first: int) -> list[Tensor]:
    """A prompt of `first` places, then one by one; the mask is given for the prompt alone."""
    cache = model.cache(ids.shape[1])
    mask = None if real is None else real[:, :first]
    found = [model.hidden(ids[:, :first], mask, cache=cache)]
    return found + [model.hidden(x, cache=cache) for x in ids[:, first:].split(1, 1)]


@pytest.mark.parametrize("prepared", [False, True])
@sweep
@torch.no_grad()
def test_a_left_padded_prompt_goes_on_as_each_row_alone(family: str, prepared: bool) -> None:
    model = build(family)
    prompts, real = batch(left=True, extra=2)
    ids = torch.cat([prompts, rows(4, 5)], 1)
    decoder = prepare(model) if prepared else model
    together = torch.cat(stepwise(decoder, ids, real, prompts.shape[1])[1:], 1)
    for i, text in enumerate(texts()):
        alone = model.hidden(torch.cat([text, ids[i : i + 1, -5:]], 1))
        torch.testing.assert_close(together[i : i + 1], alone[:, -5:], **NEAR)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("prepared", [False, True])
@sweep
@torch.no_grad()
def test_rows_reordered_repeated_and_dropped_go_on_as_those_they_came_from(
    family: str, left: bool, prepared: bool
) -> None:
    model = build(family)
    prompts, real = batch(left=True) if left else (rows(4, 7), None)
    decoder = prepare(model) if prepared else model
    cache = decoder.cache(20)
    decoder.hidden(prompts, real, cache=cache)
    history = prompts
    seen = torch.ones_like(prompts, dtype=torch.bool) if real is None else real
    for order in ([0, 1, 2, 3], [1, 1, 0, 3, 3, 2], [5, 0, 0], [2]):
        index = torch.tensor(order)
        cache.reorder(index)
        fresh = rows(len(order), 2) if len(order) != 3 else rows(3, 1)
        history = torch.cat([history[index], fresh], 1)
        seen = torch.cat([seen[index], torch.ones_like(fresh, dtype=torch.bool)], 1)
        steps = [decoder.hidden(x, cache=cache) for x in fresh.split(1, 1)]
        wanted = model.hidden(history, seen)[:, -fresh.shape[1] :]
        torch.testing.assert_close(torch.cat(steps, 1), wanted, **NEAR)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("family", [name for name in TEXT_DECODERS if name not in SUMS])
@torch.no_grad()
def test_a_cropped_cache_goes_on_from_there_and_has_an_end(family: str, prepared: bool) -> None:
    model = build(family)
    ids, real = batch(left=True, extra=1)
    decoder = prepare(model) if prepared else model
    cache, wanted = decoder.cache(8), model.hidden(ids, real)
    decoder.hidden((ids + 3) % PAD, ~real, cache=cache)
    cache.crop(0)
    decoder.hidden(ids[:, :6], real[:, :6], cache=cache)
    decoder.hidden(ids[:, :2], cache=cache)
    cache.crop(6)
    steps = [decoder.hidden(ids[:, t : t + 1], real[:, t : t + 1], cache=cache) for t in (6, 7)]
    last = real[:, 6:]
    torch.testing.assert_close(torch.cat(steps, 1)[last], wanted[:, 6:][last], **NEAR)
    with pytest.raises(ValueError, match="holds 8 positions and 9 are needed"):
        decoder.hidden(ids[:, :1], cache=cache)


# ---------------------------------------------------------------------------- laws 9 and 10


@pytest.mark.parametrize("training", [False, True])
@sweep
def test_with_an_observer_outputs_and_gradients_are_bit_equal(family: str, training: bool) -> None:
    """But for rounding in the gradients of what is run backwards: looked at, it is not."""
    results, backwards = [], family in REVERSIBLE
    dtype = torch.float64 if backwards else torch.float32
    for watcher in (None, Watcher()):
        model = build(family, dtype=dtype).train(training)
        torch.manual_seed(5)
        if watcher is not None:
            probe.attach(watcher)
        try:
            hidden = model.hidden(*batch(left=True))
        finally:
            if watcher is not None:
                probe.detach(watcher)
        hidden.square().sum().backward()
        results.append((hidden, [p.grad for p in model.parameters() if p.grad is not None]))
        assert watcher is None or watcher.count == (2 if family in WITH_ATTENTION else 0)
    (plain, grads), (seen, wanted) = results
    assert torch.equal(plain, seen)
    for a, b in zip(grads, wanted, strict=True):
        if backwards:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        else:
            assert torch.equal(a, b)


class Matrices:
    """Keeps each attention's matrix."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        self.seen.append(weights(parts, mask))
        return attend(parts, mask)


@pytest.mark.parametrize("family", [n for n in TEXT_DECODERS if n.startswith(("gpt2", "llama"))])
@torch.no_grad()
def test_who_looks_at_the_steps_of_a_padded_batch_sees_the_same_matrices(family: str) -> None:
    """The short way of a step, and the bias made once for it, are left when somebody looks."""
    model = build(family)
    ids, real = batch(left=True)
    found = []
    for each in (model, prepare(model)):
        watcher, quiet = Matrices(), stepwise(each, ids, real, 4)
        probe.attach(watcher)
        try:
            seen = stepwise(each, ids, real, 4)
        finally:
            probe.detach(watcher)
        torch.testing.assert_close(torch.cat(seen, 1), torch.cat(quiet, 1), **NEAR)
        found.append(watcher.seen)
    assert len(found[0]) == len(found[1]) == 2 * (1 + ids.shape[1] - 4)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **NEAR)


@pytest.mark.parametrize("left", [False, True])
@sweep
@torch.no_grad()
def test_prepared_is_plain(family: str, left: bool) -> None:
    model = build(family)
    ids, real = batch(left=left)
    torch.testing.assert_close(prepare(model)(ids, real)[real], model(ids, real)[real], **NEAR)


@sweep
@torch.no_grad()
def test_prepared_in_bf16_is_near(family: str) -> None:
    torch.manual_seed(0)
    model = TEXT_DECODERS[family]().eval()  # at the scale of its start
    prepared = prepare(model, torch.bfloat16)
    ids = rows(3)
    wanted = model(ids)
    steps = [prepared.head(x) for x in stepwise(prepared, ids, None, 4)]
    for found in (prepared(ids), torch.cat(steps, 1)):
        assert float((found.float() - wanted).norm() / wanted.norm()) < 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in TEXT_DECODERS if name not in RECURRENT])
def test_torch_compile_traces_a_forward_in_one_graph(family: str) -> None:
    torch._dynamo.reset()  # graphs of other families count against the same limit
    model = build(family)
    ids, real = batch(left=True)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, real)[real], model(ids, real)[real], **NEAR)
