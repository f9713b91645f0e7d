"""Several threads and odd caches: a trace holds what its own thread ran, nothing of another's."""

import threading

import pytest
import torch
import transformers as hf
from torch import Tensor

from everyhead.inspection.changes import HeadOff, TokenHidden
from everyhead.inspection.importance import gradients
from everyhead.inspection.trace import record
from tests.inspection.foreign import inputs, make


@torch.no_grad()
def test_states_and_logits_are_those_of_the_own_thread():
    model, given = make("gpt2"), inputs("gpt2")
    wanted = model(**given, output_hidden_states=True)
    other = {"input_ids": given["input_ids"].flip(1)[:, :5]}
    with record(model) as trace:
        model(**given)
        thread = threading.Thread(target=lambda: model(**other))
        thread.start()
        thread.join()
    assert torch.equal(trace.residual("decoder.0"), wanted.hidden_states[1])
    torch.testing.assert_close(trace.logits("decoder.1"), wanted.logits)


@torch.no_grad()
def test_two_threads_that_record_one_model_while_it_generates_leave_it_as_it_was():
    model, prompt = make("gpt2"), inputs("gpt2")
    model.generation_config.pad_token_id = 0
    both_open, one_closed = threading.Barrier(2), threading.Event()
    found: dict[str, Tensor] = {}
    shapes: dict[str, tuple[int, ...]] = {}

    def run(name: str, n_new: int) -> None:
        with torch.no_grad(), record(model) as trace:
            both_open.wait(30)
            if name == "late":
                one_closed.wait(30)
            found[name] = model.generate(
                **prompt, max_new_tokens=n_new, num_beams=2, do_sample=False
            )
        shapes[name] = trace["decoder.1.self_attn"].shape
        one_closed.set()

    threads = [threading.Thread(target=run, args=each) for each in (("early", 3), ("late", 6))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "generate" not in vars(model)
    for name, n_new in (("early", 3), ("late", 6)):
        assert shapes[name][:1] == (2,)
        assert shapes[name][2] == found[name].shape[1] - 1 == 9 + n_new - 1


@torch.no_grad()
def test_a_generate_of_the_users_own_is_put_back():
    model = make("gpt2")

    def mine(*args: object, **kwargs: object) -> str:
        return "mine"

    model.generate = mine
    with record(model):
        assert model.generate() == "mine"
    assert vars(model)["generate"] is mine


@torch.no_grad()
def test_each_row_has_its_own_mask_under_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask

    from everyhead.inspection.hugging_face import ByFunction

    real = torch.tensor([[True] * 6, [False, False, True, True, True, True]])

    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & real[b, j]

    block = create_block_mask(rule, 2, None, 6, 6, device="cpu", BLOCK_SIZE=2)
    i, j = torch.arange(6)[:, None], torch.arange(6)[None]
    seen = ByFunction(block.mask_mod, 2, 3).visible(i, j, 0)
    wanted = torch.ones(6, 6).tril().bool()[None] & real[:, None]  # (B, T, S)
    assert torch.equal(seen.expand(2, 3, 6, 6), wanted[:, None].expand(2, 3, 6, 6))


@torch.no_grad()
def test_a_cropped_cache_says_so_and_is_not_another_rows():
    model, given = make("llama"), inputs("llama")["input_ids"]
    cache = hf.DynamicCache(config=model.config)
    with record(model) as trace:
        model(input_ids=given, cache=cache, use_cache=True)
        cache.crop(6 - given.shape[1])
        model(input_ids=given[:, 6:8], cache=cache, use_cache=True)
        with pytest.raises(LookupError, match="was cropped between two steps"):
            trace["decoder.1.self_attn"].weights()
        model(input_ids=given)
    assert trace["decoder.1.self_attn"].shape[2] == given.shape[1]


@pytest.mark.parametrize("name", ["gpt2", "bert"])
@torch.no_grad()
def test_a_changed_place_still_gives_eager_attentions_of_every_layer(name: str):
    model, given = make(name), inputs(name)
    model.set_attn_implementation("eager")
    with record(model) as trace:
        model(**given)
    place = next(each for each in trace.places() if each.endswith("1.self_attn"))
    plain = model(**given, output_attentions=True).attentions
    changed = [HeadOff(place, [0])], [TokenHidden(place, [3])]
    for changes in changed:
        with record(model, changes) as trace:
            seen = model(**given, output_attentions=True).attentions
        assert len(seen) == len(plain)
        torch.testing.assert_close(seen[1], trace[place].weights(), rtol=0, atol=1e-5)
    assert not seen[1][..., 3].any()


def test_gradients_with_checkpointing_are_those_without():
    model, given = make("llama"), inputs("llama")
    wanted = gradients(model, lambda: model(**given, labels=given["input_ids"]).loss)
    model.gradient_checkpointing_enable()
    model.train()
    found = gradients(model, lambda: model(**given, labels=given["input_ids"]).loss)
    for place in wanted.stack("decoder"):
        assert place.gradient is not None and place.gradient.abs().max() > 0
        torch.testing.assert_close(found[place.name].gradient, place.gradient)
