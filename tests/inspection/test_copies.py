"""What is copied or saved of a model while it is recorded: a plain model that nobody hears."""

import copy
import io
import pickle

import pytest
import torch

from everyhead.inspection.states import Nothing
from everyhead.inspection.trace import record
from everyhead.models.prepare import prepare
from tests.inspection.foreign import ids, inputs, make
from tests.laws.families import batch, build


@torch.no_grad()
def test_a_copy_made_inside_the_block_is_not_listened_to():
    model, given = make("gpt2"), inputs("gpt2")
    with record(model) as trace:
        twin = copy.deepcopy(model)
        kept = model(**given).logits
        states = trace.residual("decoder.1").clone()
        twin(input_ids=ids(2, 4))
        assert torch.equal(trace.residual("decoder.1"), states)
        torch.testing.assert_close(trace.logits("decoder.1"), kept)
    assert twin.generate.__self__ is twin
    wanted = model.generate(**given, max_new_tokens=3, do_sample=False)
    with record(twin) as seen:
        assert torch.equal(twin.generate(**given, max_new_tokens=3, do_sample=False), wanted)
    assert seen["decoder.1.self_attn"].shape[2] == wanted.shape[1] - 1


@torch.no_grad()
def test_a_model_is_saved_whole_inside_the_block_and_read_again():
    model, given = make("gpt2"), inputs("gpt2")
    with record(model) as trace:
        model(**given)
        torch.save(model, io.BytesIO())
        twin = pickle.loads(pickle.dumps(model))  # noqa: S301
        for module in twin.modules():
            for hook in module._forward_hooks.values():
                assert isinstance(hook, Nothing)
    assert torch.equal(twin(**given).logits, model(**given).logits)
    written = twin.generate(**given, max_new_tokens=3, do_sample=False)
    assert twin.generate.__self__ is twin
    assert torch.equal(written, model.generate(**given, max_new_tokens=3, do_sample=False))
    assert trace["decoder.0.self_attn"].shape == (2, 4, 9, 9)


@torch.no_grad()
def test_what_is_prepared_inside_the_block_has_no_hooks_and_leaves_the_trace_alone():
    model = build("transformer-post")
    sides = batch(model)
    mine = []
    model.decoder.register_forward_hook(lambda *_: mine.append(1))
    with record(model) as trace:
        fast = prepare(model)
        model(*sides)
        layers = {name: trace.residual(name).clone() for name in trace.layers()}
        weights = trace["decoder.1.cross_attn"].weights()
        del mine[:]
        fast(sides.source[:1, :3], sides.target[:1, :2])
        assert mine == [1], "a hook of the user's own goes along"
        for name, states in layers.items():
            assert torch.equal(trace.residual(name), states)
        assert torch.equal(trace["decoder.1.cross_attn"].weights(), weights)
    hooks = [
        hook
        for module in fast.modules()
        for of in (module._forward_hooks, module._forward_pre_hooks)
        for hook in of.values()
    ]
    assert len(hooks) == 1
    prepared = prepare(model)
    torch.testing.assert_close(fast(*sides), prepared(*sides), rtol=0, atol=0)


@torch.no_grad()
def test_a_shallow_copy_shares_hooks_that_do_not_hear_it():
    model, given = make("gpt2"), inputs("gpt2")
    with record(model) as trace:
        model(**given)
        states = trace.residual("decoder.0").clone()
        block = copy.copy(model.transformer.h[0])
        assert block._forward_hooks
        block.attn = torch.nn.Identity()
        for hook in block._forward_hooks.values():
            hook(block, (torch.zeros(1, 2, 32),), {}, torch.zeros(1, 2, 32))
        assert torch.equal(trace.residual("decoder.0"), states)


@pytest.mark.parametrize("positional", [True, False])
@torch.no_grad()
def test_beams_are_followed_whichever_way_their_config_is_given(positional: bool):
    from transformers import GenerationConfig

    model, given = make("llama"), inputs("llama")["input_ids"]
    config = GenerationConfig(num_beams=3, num_return_sequences=2, max_new_tokens=5,
                              do_sample=False, pad_token_id=2, eos_token_id=1)  # fmt: skip
    with record(model) as trace:
        if positional:
            out = model.generate(given, config)
        else:
            out = model.generate(given, generation_config=config)
    found = trace["decoder.1.self_attn"].weights()
    with record(model) as whole:
        model(input_ids=out[:, :-1], attention_mask=torch.ones_like(out[:, :-1]))
    wanted = whole["decoder.1.self_attn"].weights()
    assert found.shape == wanted.shape and len(found) == 4
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)
