"""Importance beside Hugging Face's eager attention with its own autograd, and loops in float64."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from everyhead.inspection.importance import (
    gradient_weights,
    gradients,
    head_effects,
    head_importance,
    relevance,
    weight_gradients,
)
from everyhead.inspection.trace import record

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 40}
IDS = torch.tensor([[3, 7, 9, 11, 2, 5], [4, 8, 1, 6, 0, 0]])
REAL = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def bert(attention: str) -> BertModel:
    torch.manual_seed(0)
    config = BertConfig(num_attention_heads=4, attn_implementation=attention, **SHAPE)
    config.initializer_range = 0.3
    return BertModel(config).double().eval()


def llama(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        num_attention_heads=4, num_key_value_heads=2, attn_implementation=attention, **SHAPE
    )
    config.initializer_range = 0.3
    return LlamaForCausalLM(config).double().eval()


def loss_of(model: nn.Module, **more: object) -> Tensor:
    out = model(IDS, attention_mask=REAL, **more)
    first = out[0]  # states or logits
    direction = torch.linspace(-1, 1, first.shape[-1], dtype=first.dtype)
    return ((first @ direction).pow(2) * REAL).sum() / REAL.sum(), out


def eager(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that eager attention returns, and autograd's gradient of the loss by them."""
    loss, out = loss_of(model, output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
    loss.backward()
    return [a.detach() for a in out.attentions], [a.grad for a in out.attentions]


# Eager Llama takes its softmax in float32, whatever the model's dtype.
@pytest.mark.parametrize(("make", "near"), [(bert, 1e-9), (llama, 1e-3)])
def test_gradients_of_weights_are_those_of_eager_attention(make, near: float) -> None:
    expected, derivatives = eager(make("eager"))
    model = make("sdpa")
    trace = gradients(model, lambda: loss_of(model)[0])
    places = [trace[name] for name in trace.places()]
    assert len(places) == 2
    real = REAL[:, None, :, None].bool()  # a padded query is nobody's business
    for place, a, da in zip(places, expected, derivatives, strict=True):
        seen = (a > 0) & real
        got = weight_gradients(place)
        tolerance = {"atol": near * float(da.abs().max()), "rtol": near}
        assert da.abs().max() > 1e-3
        torch.testing.assert_close(got * seen, da * seen, **tolerance)
        product = a * da
        got = gradient_weights(place)
        torch.testing.assert_close(got * real, product * real, **tolerance)
        positive = product.clamp_min(0).mean(1)
        torch.testing.assert_close(
            relevance(place) * real[:, 0], positive * real[:, 0], **tolerance
        )
        one = gradient_weights(place, 1, 2)
        torch.testing.assert_close(one, got[:, 1:2, 2:3], **tolerance)
        with pytest.raises(ValueError, match=f"no 9 among the 4 heads of {place.name}"):
            weight_gradients(place, [9])
        some = gradient_weights(place, [1, 3], slice(1, 3))
        torch.testing.assert_close(some, got[:, [1, 3], 1:3])
        naive = np.zeros((2, 4))
        for b, h in np.ndindex(2, 4):
            for t, s in np.ndindex(6, 6):
                naive[b, h] += float(a[b, h, t, s]) * float(da[b, h, t, s])
        np.testing.assert_allclose(head_importance(place), np.abs(naive), atol=near)


def test_only_the_outputs_gradient_is_kept() -> None:
    model = bert("sdpa")
    trace = gradients(model, lambda: loss_of(model)[0])
    place = trace["encoder.0.self_attn"]
    assert place.gradient is not None and place.gradient.shape == (2, 4, 6, 8)


def test_parameters_keep_their_own_gradients() -> None:
    model = bert("sdpa")
    first, second, *_ = model.parameters()
    first.grad, mark = torch.ones_like(first), torch.ones_like(first)
    second.requires_grad_(False)
    gradients(model, lambda: loss_of(model)[0])
    assert torch.equal(first.grad, mark) and second.grad is None and not second.requires_grad
    assert all(p.grad is None for p in list(model.parameters())[1:])


@pytest.mark.parametrize("make", [bert, llama])
def test_effects_are_the_loss_without_the_head_less_the_loss(make) -> None:
    model = make("sdpa")
    effects = head_effects(model, lambda: loss_of(model)[0])
    assert list(effects) == record_names(model)
    outs = [m for name, m in model.named_modules() if name.endswith(("o_proj", "output.dense"))]
    outs = [m for m in outs if m.in_features == 32]  # what reads the joined heads
    whole = float(loss_of(model)[0].detach())
    for place, linear in zip(effects, outs, strict=True):
        for head in range(4):
            kept = linear.weight.detach().clone()
            with torch.no_grad():
                linear.weight[:, 8 * head : 8 * head + 8] = 0  # the head's columns of W^O
                without = float(loss_of(model)[0])
                linear.weight.copy_(kept)
            assert effects[place][head] == pytest.approx(without - whole, abs=1e-10)
            assert abs(without - whole) > 1e-6


def record_names(model: nn.Module) -> list[str]:
    with record(model) as trace:
        return trace.places()


def test_chosen_places_alone() -> None:
    model = bert("sdpa")
    effects = head_effects(model, lambda: loss_of(model)[0], ["encoder.1.self_attn"])
    assert list(effects) == ["encoder.1.self_attn"] and len(effects["encoder.1.self_attn"]) == 4
    with pytest.raises(LookupError, match=r"encoder\.7"):
        head_effects(model, lambda: loss_of(model)[0], ["encoder.7.self_attn"])


def test_what_cannot_be_differentiated_is_a_sentence() -> None:
    model = bert("sdpa")
    with torch.no_grad(), record(model) as trace:
        model(IDS)
    with pytest.raises(LookupError, match=r"nothing was differentiated at encoder\.0"):
        weight_gradients(trace["encoder.0.self_attn"])
    with pytest.raises(ValueError, match="one number"):
        gradients(model, lambda: model(IDS)[0])
    with pytest.raises(ValueError, match="no gradient"):
        gradients(model, lambda: loss_of(model)[0].detach())
    with pytest.raises(ValueError, match="nan"):
        head_effects(model, lambda: loss_of(model)[0] * float("nan"))


def test_of_two_passes_in_one_loss_the_gradient_is_that_of_the_parts_kept() -> None:
    model = bert("sdpa")

    def loss(ids: Tensor) -> Tensor:
        return model(ids).last_hidden_state.pow(2)[..., ::2].sum()

    trace = gradients(model, lambda: loss(IDS[:1]) + 3 * loss(IDS[1:]))
    alone = gradients(model, lambda: 3 * loss(IDS[1:]))
    for name in trace.places():
        torch.testing.assert_close(trace[name].parts.q, alone[name].parts.q, rtol=0, atol=0)
        torch.testing.assert_close(trace[name].gradient, alone[name].gradient)
        torch.testing.assert_close(weight_gradients(trace[name]), weight_gradients(alone[name]))


def test_the_gradient_of_cached_steps_is_a_sentence_not_one_row_for_all() -> None:
    model = llama("sdpa")

    def loss() -> Tensor:
        cache, total = None, torch.zeros((), dtype=torch.float64)
        for t in range(4):
            out = model(IDS[:, t : t + 1], past_key_values=cache, use_cache=True)
            cache, total = out.past_key_values, total + out.logits.pow(2).sum()
        return total

    place = gradients(model, loss)["decoder.1.self_attn"]
    assert place.shape[2] == 4
    for read in (weight_gradients, gradient_weights, relevance, head_importance):
        with pytest.raises(LookupError, match=r"the last of several steps, 1 of 4 rows"):
            read(place)
