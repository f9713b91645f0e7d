"""Models of transformers recorded as they are: equal to their eager matrices, output bit-equal."""

import threading
from types import ModuleType

import pytest
import torch
import transformers as hf
from torch import nn
from transformers.masking_utils import AttentionMaskInterface, flash_attention_mask
from transformers.modeling_utils import AttentionInterface

from everyhead.errors import UserError
from everyhead.inspection.trace import record
from everyhead.layers import probe
from tests.inspection import foreign
from tests.inspection.foreign import (
    KINDS,
    PAIRS,
    READERS,
    WRITERS,
    eager_attentions,
    ids,
    inputs,
    make,
)

TABLE = dict(vars(AttentionInterface))
NEAR = {"rtol": 0, "atol": 1e-5}


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert not probe.active()
    assert dict(vars(AttentionInterface)) == TABLE


def cases():
    for name, kind in KINDS.items():
        yield name, "none"
        if kind.takes in ("text", "pair"):
            yield name, "right"
        if kind.takes == "text":
            yield name, "left"


@pytest.mark.parametrize(("name", "padding"), list(cases()))
@torch.no_grad()
def test_weights_are_the_eager_ones_and_the_output_stays_bit_equal(name: str, padding: str):
    model, given = make(name), inputs(name, padding)
    plain = foreign.tensors_of(model(**given))
    with record(model) as trace:
        seen = foreign.tensors_of(model(**given))
    assert len(plain) == len(seen) > 0
    assert all(torch.equal(one, other) for one, other in zip(plain, seen, strict=True))
    real = given.get("attention_mask", torch.ones(2, 1)).bool()
    count = 0
    for half, matrices in eager_attentions(model, given).items():
        places = trace.stack(half)
        for place, wanted in zip(places, matrices, strict=True):
            found = place.weights()
            assert place.shape == found.shape == wanted.shape
            if padding == "left" and place.kind == "self":  # rows of padding are nobody's
                rows = real[:, None, :, None].expand_as(wanted)
                found, wanted = found[rows], wanted[rows]
            torch.testing.assert_close(found, wanted, **NEAR)
            count += 1
    assert count == len(trace.places())


def test_names_are_told_from_the_paths():
    halves = {name: sorted({p.split(".")[0] for p in places(name)}) for name in KINDS}
    assert halves == {
        **{name: ["decoder"] for name in KINDS},
        **{name: ["decoder", "encoder"] for name in PAIRS},
        "bert": ["encoder"],
        "albert": ["encoder"],
        "vit": ["encoder"],
        "clip": ["text", "vision"],
    }
    assert places("t5") == places("marian") == places("bart")
    layer = ["decoder.0.self_attn", "decoder.0.cross_attn"]
    assert places("t5")[1:4] == ["encoder.1.self_attn", *layer]


def places(name: str) -> list[str]:
    with record(make(name)) as trace:
        return trace.places()


def test_stages_of_layers_are_counted_one_by_one():
    config = hf.SwinConfig(image_size=16, patch_size=2, embed_dim=16, depths=[2, 1],
                           num_heads=[2, 4], window_size=2)  # fmt: skip
    with torch.no_grad(), record(hf.SwinModel(config).eval()) as trace:
        trace.model(pixel_values=torch.randn(1, 3, 16, 16))
    assert trace.places() == [f"encoder.{i}.self_attn" for i in range(3)]
    assert trace.layers()[:2] == ["encoder.embed", "encoder.0"]
    assert trace.residual("encoder.embed").shape == (1, 64, 16)


def test_where_some_attentions_are_hidden_the_others_are_seen():
    config = hf.LongT5Config(**foreign.T5)
    with torch.no_grad(), record(hf.LongT5ForConditionalGeneration(config).eval()) as trace:
        trace.model(input_ids=ids(1, 9), decoder_input_ids=ids(1, 4))
    assert {place.split(".")[0] for place in trace.places()} == {"decoder"}
    with pytest.raises(LookupError, match=r"LongT5LocalAttention at .* its q and k are hidden"):
        trace["encoder.block.0.layer.0.LocalSelfAttention"]


@pytest.mark.parametrize("name", ["llama", "mistral", "bert"])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@torch.no_grad()
def test_what_flash_attention_is_given_is_the_same_matrix(name: str, padding: str, monkeypatch):
    """It needs a graphics card; its way of being told of padding, causality and window does not."""
    shown = []

    def flash_attention_stand_in(module, query, key, value, attention_mask, **kwargs):
        shown.append((attention_mask, kwargs.get("sliding_window")))
        groups = query.shape[1] // key.shape[1]
        out = torch.nn.functional.scaled_dot_product_attention(
            query, *(x.repeat_interleave(groups, 1) for x in (key, value)), scale=kwargs["scaling"]
        )
        return out.transpose(1, 2), None

    given = inputs(name, padding)
    model = make(name)
    eager = eager_attentions(model, given)
    monkeypatch.setitem(AttentionInterface._global_mapping, "stand_in", flash_attention_stand_in)
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "stand_in", flash_attention_mask)
    model.set_attn_implementation("stand_in")
    with record(model) as trace:
        model(**given)
    assert len(shown) == 2 and all(mask is None or mask.dim() == 2 for mask, _ in shown)
    real = given.get("attention_mask", torch.ones(2, 9)).bool()[:, None, :, None]
    (half, matrices), *_ = eager.items()
    found, wanted = trace.stack(half)[0].weights(), matrices[0]  # later layers read other values
    torch.testing.assert_close(*((x * real) for x in (found, wanted)), **NEAR)


def test_a_place_is_found_by_its_modules_path_too():
    model = make("bert")
    with record(model) as trace:
        model(**inputs("bert"))
    place = trace["encoder.1.self_attn"]
    assert trace["encoder.layer.1.attention.self"] is place
    assert place.path == "encoder.layer.1.attention.self" and place.kind == "self"
    with pytest.raises(LookupError, match=r"there are encoder\.0"):
        trace["encoder.2.self_attn"]


def test_heads_and_rows_and_the_mix_are_those_of_the_whole_matrix():
    model, given = make("t5"), inputs("t5", "right")
    with torch.no_grad(), record(model) as trace:
        model(**given)
    place = trace["encoder.1.self_attn"]
    whole = place.weights()
    cut = place.weights(heads=[3, 0], rows=slice(2, 6))
    torch.testing.assert_close(cut, whole[:, [3, 0], 2:6], rtol=0, atol=1e-6)
    q, k, v, scale, bias = place.parts[:5]
    assert scale == 1.0 and bias.shape == (1, 4, 9, 9)
    real = given["attention_mask"].bool()[:, None, None]
    scores = (q.double() @ k.double().transpose(-2, -1) + bias).masked_fill(~real, -torch.inf)
    torch.testing.assert_close(whole.double(), scores.softmax(-1), **NEAR)
    torch.testing.assert_close(place.output(), (scores.softmax(-1) @ v.double()).float(), **NEAR)


def test_models_that_hide_their_attention_say_so_in_one_sentence():
    config = hf.LongformerConfig(**foreign.TEXT, attention_window=[4, 4])
    sentence = r"LongformerSelfAttention at encoder\.layer\.0.* computes its scores inside"
    with pytest.raises(UserError, match=sentence), record(hf.LongformerModel(config)):
        pass
    with pytest.raises(UserError, match="Linear has no attention"), record(nn.Linear(2, 2)):
        pass


def test_the_table_is_restored_when_the_model_fails():
    model = make("llama")
    with pytest.raises(IndexError), record(model):
        model(input_ids=torch.tensor([[999]]))
    assert dict(vars(AttentionInterface)) == TABLE
    assert "generate" not in vars(model)


def test_another_thread_does_not_look():
    model, given = make("gpt2"), inputs("gpt2")
    with record(model) as trace:
        thread = threading.Thread(target=lambda: model(**given))
        thread.start()
        thread.join()
        with pytest.raises(LookupError, match="in the same thread"):
            trace["decoder.0.self_attn"].weights()
        model(**given)
    assert trace["decoder.0.self_attn"].shape == (2, 4, 9, 9)


def test_gradients_reach_the_place_and_stay_what_they_are():
    model, given = make("llama"), inputs("llama")
    grads = []
    for looks in (False, True):
        model.zero_grad()
        if looks:
            with record(model) as trace:
                model(**given, labels=given["input_ids"]).loss.backward()
        else:
            model(**given, labels=given["input_ids"]).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    gradient = trace["decoder.1.self_attn"].gradient
    assert gradient is not None and gradient.shape == (2, 4, 9, 8)
    o_proj = model.model.layers[1].self_attn.o_proj
    joined = trace["decoder.1.self_attn"].output().transpose(1, 2).flatten(2)  # (B, T, H·D)
    assert joined.shape[-1] == o_proj.in_features


# --- generation ---------------------------------------------------------------------------------


def written(model, prompt, **options):
    with torch.no_grad(), record(model) as trace:
        out = model.generate(**prompt, max_new_tokens=7, do_sample=False, **options)
    return trace, out


def prompt_of(name: str, padding: str = "none"):
    given = inputs(name, padding)
    given.pop("decoder_input_ids", None)
    return given


def whole_pass(name: str, model, prompt, out):
    """One pass over what was written, as teacher forcing sees it."""
    key = "decoder_input_ids" if name in PAIRS else "input_ids"
    given = {**prompt, key: out}
    n_more = out.shape[1] - prompt["input_ids"].shape[1]
    if "attention_mask" in prompt and name not in PAIRS:
        more = torch.ones(2, n_more, dtype=torch.long)
        given["attention_mask"] = torch.cat([prompt["attention_mask"], more], 1)
        position = given["attention_mask"].cumsum(1) - 1
        given["position_ids"] = position.clamp_min(0)
    with torch.no_grad(), record(model) as trace:
        model(**given)
    return trace


@pytest.mark.parametrize("name", WRITERS)
def test_what_greedy_generation_wrote_is_one_matrix_a_layer(name: str):
    model, prompt = make(name), prompt_of(name)
    trace, out = written(model, prompt)
    whole = whole_pass(name, model, prompt, out)
    for place in whole.stack("decoder"):
        found, wanted = trace[place.name].weights(), place.weights()
        n = found.shape[2]
        assert n == out.shape[1] - 1, "a row for each token read"
        wanted = wanted[:, :, :n, :n] if place.kind == "self" else wanted[:, :, :n]
        torch.testing.assert_close(found, wanted, **NEAR, msg=place.name)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "t5", "marian", "gemma2"])
def test_beam_search_shows_the_rows_that_wrote_what_it_returns(name: str):
    model, prompt = make(name), prompt_of(name)
    trace, out = written(model, prompt, num_beams=3, num_return_sequences=1)
    whole = whole_pass(name, model, prompt, out)
    for place in whole.stack("decoder"):
        found, wanted = trace[place.name].weights(), place.weights()
        assert found.shape[0] == 2 and found.shape[2] >= out.shape[1] - 1 - 6
        for row in range(2):
            n = int(found[row, 0].sum(-1).round().sum())  # rows of padding are zeros
            mine, other = found[row, :, :n], wanted[row, :, :n]
            s = min(mine.shape[-1], other.shape[-1])
            torch.testing.assert_close(mine[..., :s], other[..., :s], **NEAR, msg=place.name)


@pytest.mark.parametrize("name", ["llama", "t5"])
@torch.no_grad()
def test_several_beams_are_shown_for_each_prompt_and_for_one_token_too(name: str):
    model, prompt = make(name), prompt_of(name)
    for n_new, n_best in ((1, 1), (5, 2)):
        options = {"max_new_tokens": n_new, "num_beams": 3, "num_return_sequences": n_best}
        with record(model) as trace:
            out = model.generate(**prompt, do_sample=False, **options)
        whole = {"decoder_input_ids": out, "input_ids": prompt["input_ids"]}
        if name == "t5":
            whole["input_ids"] = whole["input_ids"].repeat_interleave(n_best, 0)
        else:
            whole = {"input_ids": out}
        with record(model) as passed:
            model(**whole)
        found = trace["decoder.1.self_attn"].weights()
        n = found.shape[2]
        assert len(found) == 2 * n_best and n == out.shape[1] - 1
        wanted = passed["decoder.1.self_attn"].weights()[:, :, :n, :n]
        torch.testing.assert_close(found, wanted, **NEAR)


def test_left_padded_prompts_are_generated_and_seen_as_they_are():
    model, prompt = make("llama"), prompt_of("llama", "left")
    trace, out = written(model, prompt)
    whole = whole_pass("llama", model, prompt, out)
    found = trace["decoder.1.self_attn"].weights()
    n = found.shape[2]
    wanted = whole["decoder.1.self_attn"].weights()[:, :, :n, :n]
    torch.testing.assert_close(found, wanted, **NEAR)
    assert not found[1, :, 3:, :3].any()


def test_a_static_cache_is_seen_without_its_empty_room():
    model, prompt = make("llama"), prompt_of("llama")
    trace, out = written(model, prompt, cache_implementation="static", disable_compile=True)
    whole = whole_pass("llama", model, prompt, out)
    found = trace["decoder.1.self_attn"].weights()
    n = out.shape[1] - 1
    assert found.shape[2:] == (n, n)
    wanted = whole["decoder.1.self_attn"].weights()[:, :, :n, :n]
    torch.testing.assert_close(found, wanted, **NEAR)


def test_what_is_written_into_a_static_cache_later_does_not_reach_the_trace():
    model, given = make("llama"), inputs("llama")
    cache = hf.StaticCache(config=model.config, max_cache_len=given["input_ids"].shape[1])
    with torch.no_grad(), record(model) as trace:
        model(**given, past_key_values=cache, use_cache=True)
    place = trace["decoder.1.self_attn"]
    k, v = place.parts.k.clone(), place.parts.v.clone()
    assert k.any() and torch.equal(cache.layers[1].keys, k)
    cache.reset()
    assert not cache.layers[1].keys.any()
    assert torch.equal(place.parts.k, k) and torch.equal(place.parts.v, v)


# --- the states between the layers --------------------------------------------------------------


@pytest.mark.parametrize("name", [*READERS, *WRITERS, "vit"])
@torch.no_grad()
def test_the_residual_stream_is_what_hidden_states_are(name: str):
    model, given = make(name), inputs(name)
    out = model(**given, output_hidden_states=True)
    with record(model) as trace:
        model(**given)
    half = "encoder" if name in (*READERS, "vit") else "decoder"
    states = out.decoder_hidden_states if name in PAIRS else out.hidden_states
    torch.testing.assert_close(trace.residual(f"{half}.embed"), states[0])
    torch.testing.assert_close(trace.residual(f"{half}.0"), states[1])
    assert trace.residual(f"{half}.{len(states) - 2}").shape == states[-1].shape
    with pytest.raises(LookupError, match="no layer"):
        trace.residual(f"{half}.{len(states) - 1}")


@pytest.mark.parametrize("name", WRITERS)
@torch.no_grad()
def test_the_last_layers_logits_are_the_models_own(name: str):
    model, given = make(name), inputs(name)
    with record(model) as trace:
        logits = model(**given).logits
    torch.testing.assert_close(trace.logits("decoder.1"), logits, rtol=1e-4, atol=1e-4)
    first = trace.logits("decoder.0", rows=slice(1, 3))
    assert first.shape == (2, 2, 61) and not torch.allclose(first, logits[:, 1:3], atol=1e-2)


def test_a_model_without_a_head_says_so():
    model = make("vit")
    with record(model) as trace:
        model(**inputs("vit"))
    with pytest.raises(LookupError, match="ViTModel has no head"):
        trace.logits("encoder.0")


# --- memory -------------------------------------------------------------------------------------


def kept_bytes(thing, seen=None) -> int:
    """Bytes of the storages of all tensors that a trace holds, models and modules left out."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, nn.Module | ModuleType | type | str):
        return 0
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        storage = thing.untyped_storage()
        key = ("storage", storage.data_ptr())
        known = key in seen
        seen.add(key)
        return 0 if known else storage.nbytes()
    if isinstance(thing, dict):
        return sum(kept_bytes(x, seen) for x in [*thing.keys(), *thing.values()])
    if isinstance(thing, list | tuple | set):
        return sum(kept_bytes(x, seen) for x in thing)
    return kept_bytes(vars(thing), seen) if hasattr(thing, "__dict__") else 0


def bytes_of(name: str, length: int, **more) -> int:
    model = make(name, max_position_embeddings=length, **more)
    real = torch.ones(1, length, dtype=torch.long)
    real[:, -length // 8 :] = 0
    with torch.no_grad(), record(model) as trace:
        model(input_ids=ids(1, length), attention_mask=real)
    kept = kept_bytes(trace)
    row = trace["decoder.0.self_attn"].weights(heads=[0], rows=slice(length // 2, length // 2 + 1))
    torch.testing.assert_close(row.sum(), torch.tensor(1.0))
    return kept


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_a_trace_grows_with_the_length_though_the_model_makes_a_square_mask(name: str):
    small, large = (bytes_of(name, n) for n in (256, 1024))
    assert 3.5 * small < large < 4.5 * small


def test_a_relative_bias_is_kept_as_one_row():
    model = make("t5")
    with torch.no_grad(), record(model) as trace:
        model(input_ids=ids(1, 512), decoder_input_ids=ids(1, 4))
    kept = kept_bytes(trace["encoder.1.self_attn"].calls[0].bias)
    assert kept == 4 * (2 * 512 - 1) * 4


@pytest.mark.slow
def test_at_16384_tokens_a_trace_keeps_megabytes_where_one_matrix_takes_a_gigabyte():
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    kept = bytes_of("mistral", 16384, **sizes)
    assert kept < 16384 * 1024
