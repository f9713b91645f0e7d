"""Decoders that read a memory, and heads that stand elsewhere: against eager and true logits."""

import pytest
import torch
import transformers as hf

from everyhead.inspection.trace import record
from tests.inspection import foreign
from tests.inspection.foreign import ids

NEAR = {"rtol": 0, "atol": 1e-5}
LM = {"rtol": 1e-5, "atol": 1e-5}


def lively(model):
    """Weights that make attention uneven and logits large."""
    torch.manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.15)
    return model.eval()


def decoder(kind: str, bare: bool):
    """A decoder with cross-attention, with and without its head."""
    if kind == "gpt2":
        config = hf.GPT2Config(**foreign.KINDS["gpt2"].values, add_cross_attention=True)
        return lively((hf.GPT2Model if bare else hf.GPT2LMHeadModel)(config))
    config = hf.BertConfig(**foreign.TEXT, is_decoder=True, add_cross_attention=True)
    return lively((hf.BertModel if bare else hf.BertLMHeadModel)(config))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("bare", [True, False])
@torch.no_grad()
def test_what_reads_a_memory_stands_in_its_decoder(kind: str, bare: bool):
    model, memory = decoder(kind, bare), torch.randn(2, 5, 32)
    given = {"input_ids": ids(2, 7), "encoder_hidden_states": memory}
    with record(model) as trace:
        model(**given)
    layers = [f"decoder.{i}.{what}_attn" for i in (0, 1) for what in ("self", "cross")]
    assert trace.places() == layers
    assert trace.layers() == ["decoder.embed", "decoder.0", "decoder.1"]
    model.set_attn_implementation("eager")
    eager = model(**given, output_attentions=True)
    for kinds, matrices in (("self", eager.attentions), ("cross", eager.cross_attentions)):
        for place, wanted in zip(trace.stack(f"decoder.{kinds}"), matrices, strict=True):
            torch.testing.assert_close(place.weights(), wanted, **NEAR, msg=place.name)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@torch.no_grad()
def test_cached_steps_of_such_a_decoder_are_one_matrix(kind: str):
    """Defect: an `encoder.0.cross_attn` knows no self-attention whose steps it goes with."""
    model, memory = decoder(kind, bare=True), torch.randn(2, 5, 32)
    text = ids(2, 7)
    with record(model) as trace:
        cache = hf.DynamicCache(config=model.config)
        cache = hf.EncoderDecoderCache(cache, hf.DynamicCache(config=model.config))
        for t in range(7):
            more = {"cache": cache, "use_cache": True}
            model(input_ids=text[:, t : t + 1], encoder_hidden_states=memory, **more)
    with record(model) as whole:
        model(input_ids=text, encoder_hidden_states=memory)
    assert len(whole.stack("decoder")) == 4
    for place in whole.stack("decoder"):
        torch.testing.assert_close(trace[place.name].weights(), place.weights(), **NEAR)


@torch.no_grad()
def test_a_head_inside_the_decoder_of_two_joined_models_reads_its_states():
    """Defect: the decoder itself, all of it, was taken for the head."""
    text = dict(foreign.TEXT)
    config = hf.EncoderDecoderConfig.from_encoder_decoder_configs(
        hf.BertConfig(**text), hf.BertConfig(**text, is_decoder=True, add_cross_attention=True)
    )
    model = lively(hf.EncoderDecoderModel(config))
    with record(model) as trace:
        logits = model(input_ids=ids(2, 7), decoder_input_ids=ids(2, 4)).logits
    torch.testing.assert_close(trace.logits("decoder.1"), logits, **LM)
    assert trace.logits("decoder.0").shape == (2, 4, 61)
    with pytest.raises(LookupError, match=r"no head reads encoder\.0"):
        trace.logits("encoder.0")


@torch.no_grad()
def test_a_cap_that_only_the_decoders_config_knows_is_made():
    """Defect: T5Gemma's logits were read without c·tanh(logits / c)."""
    half = {**foreign.GROUPED, "sliding_window": 4, "final_logit_softcapping": 2.0}
    pair = {name: {**half, "query_pre_attn_scalar": 8} for name in ("encoder", "decoder")}
    pair["decoder"]["cross_attention_hidden_size"] = 32
    model = lively(hf.T5GemmaForConditionalGeneration(hf.T5GemmaConfig(**pair, vocab_size=61)))
    with record(model) as trace:
        logits = model(input_ids=ids(2, 7), decoder_input_ids=ids(2, 4)).logits
    assert logits.abs().max() > 1
    torch.testing.assert_close(trace.logits("decoder.1"), logits, **LM)


@torch.no_grad()
def test_a_layer_that_gives_several_streams_has_no_states_of_one():
    """Defect: Gemma 3n's four streams came back as logits (4, B, T, V)."""
    config = hf.Gemma3nTextConfig(
        **{**foreign.GROUPED, "intermediate_size": [48, 48]},
        sliding_window=4,
        layer_types=["sliding_attention", "full_attention"],
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=61,
        activation_sparsity_pattern=[0.0, 0.0],
        hidden_size_per_layer_input=8,
    )
    model = lively(hf.Gemma3nForCausalLM(config))
    with record(model) as trace:
        model(input_ids=ids(2, 7))
    assert trace["decoder.1.self_attn"].shape == (2, 4, 7, 7)
    for read in (trace.residual, trace.logits):
        with pytest.raises(LookupError, match=r"layer decoder\.1 gives \(4, 2, 7, 32\), not"):
            read("decoder.1")


@torch.no_grad()
def test_a_head_that_does_a_little_more_is_refused():
    """Defect: what differed by less than a thousandth passed for the model's own logits."""
    config = hf.LlamaConfig(**foreign.GROUPED)
    model = lively(hf.LlamaForCausalLM(config))

    def capped(module, args, out):
        out.logits = 30 * torch.tanh(out.logits / 30)
        return out

    with record(model) as trace:
        logits = model(input_ids=ids(2, 7)).logits
    torch.testing.assert_close(trace.logits("decoder.1"), logits, **LM)
    model.lm_head.weight.mul_(1 / logits[:, -1].abs().max())  # the largest is 1, its cap 0.9996
    hook = model.register_forward_hook(capped)
    with record(model) as trace:
        model(input_ids=ids(2, 7))
    hook.remove()
    with pytest.raises(LookupError, match="does more than a norm and a product"):
        trace.logits("decoder.0")


def test_a_head_that_wants_two_things_is_read_inside():
    """BERT's heads for gaps and for neighbours are one module of two arguments."""
    model = lively(hf.BertForPreTraining(hf.BertConfig(**foreign.TEXT)))
    ids = torch.randint(5, 40, (2, 7))
    with torch.no_grad(), record(model) as trace:
        given = model(ids).prediction_logits
    last = list(trace.layers())[-1]
    torch.testing.assert_close(trace.logits(last), given, rtol=0, atol=1e-5)


def test_logits_of_a_pass_before_say_nothing_of_a_body_that_ran_alone_since():
    model = lively(foreign.make("llama"))
    ids = torch.randint(5, 40, (2, 7))
    with torch.no_grad(), record(model) as trace:
        model(ids)
        model.model(ids[:1])
        wanted = model.lm_head(model.model(ids[:1]).last_hidden_state)
    torch.testing.assert_close(trace.logits("decoder.1"), wanted, rtol=0, atol=1e-5)
