"""Recording an attention: the matrix asked for is the one the fast path used, and nothing else."""

import gc
import weakref

import pytest
import torch
from torch import nn

from everyhead.generation.search import search
from everyhead.inspection.trace import record
from everyhead.layers import masks, probe
from everyhead.layers.attention import Parts, attend, weights
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.prepare import prepare
from tests.laws.families import (
    ENCODER_DECODERS,
    FAMILIES,
    STACKED,
    batch,
    build,
    sentences,
)

PLACES = [
    "encoder.0.self_attn",
    "encoder.1.self_attn",
    "decoder.0.self_attn",
    "decoder.0.cross_attn",
    "decoder.1.self_attn",
    "decoder.1.cross_attn",
]


@pytest.fixture(autouse=True)
def nobody_looks_afterwards():
    yield
    assert not probe.active()


def mapped(x, projection):
    y = x.double() @ projection.weight.double().T
    return y if projection.bias is None else y + projection.bias.double()


def matrix_by_hand(layer: MultiHeadAttention, x, memory, seen, bias, scale: float):
    """softmax(s·QKᵀ + B) of one sentence x (T, C), head by head, in float64; seen bool (T, S)."""
    q, k = mapped(x, layer.q_proj), mapped(memory, layer.k_proj)  # (T, H·D), (S, H·D)
    heads = []
    for h in range(layer.n_heads):
        cut = slice(h * layer.d_head, (h + 1) * layer.d_head)
        scores = q[:, cut] @ k[:, cut].T * scale  # (T, S)
        scores = scores if bias is None else scores + bias[0, h].double()
        powers = torch.where(seen, scores.exp(), 0.0)
        heads.append(powers / powers.sum(-1, keepdim=True))
    return torch.stack(heads)  # (H, T, S)


def inputs_of(model: nn.Module, *sides):
    """What reached each attention: place → (x, memory, bias of the scores)."""
    seen, hooks = {}, []
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):

            def keep(module, args, kwargs, name=name):
                x, memory = args[0], args[2] if len(args) > 2 else kwargs.get("memory")
                seen[name.replace(".blocks.", ".")] = (
                    x.detach(),
                    (x if memory is None else memory).detach(),
                    kwargs.get("bias"),
                )

            hooks.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    model.hidden(*sides)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("family", STACKED)
def test_weights_are_the_softmax_rows_computed_by_hand(family: str):
    model = build(family)
    source, target = sentences(model)[0]
    with record(model) as trace:
        model(source, target)
    assert trace.places() == PLACES
    inputs = inputs_of(model, source, target)
    for name in PLACES:
        x, memory, bias = inputs[name]
        layer = model.get_submodule(name.replace("coder.", "coder.blocks."))
        seen = torch.ones(x.shape[1], memory.shape[1], dtype=torch.bool)
        if name.startswith("decoder") and name.endswith("self_attn"):
            seen = seen.tril()
        scale = 1.0 if family == "t5" else layer.d_head**-0.5
        wanted = matrix_by_hand(layer, x[0], memory[0], seen, bias, scale)
        found = trace[name].weights()
        torch.testing.assert_close(found[0].double(), wanted, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1]))


@pytest.mark.parametrize("left", [False, True])
def test_a_sentence_in_a_padded_batch_has_the_matrix_it_has_alone(left: bool):
    model = build("transformer-post")
    sides, alone = batch(model, left=left, extra=2), sentences(model)
    with record(model) as together:
        model(*sides)
    for i, (source, target) in enumerate(alone):
        with record(model) as trace:
            model(source, target)
        rows, columns = sides.target_mask[i], sides.source_mask[i]
        found = together["decoder.1.cross_attn"].weights()[i][:, rows]
        wanted = trace["decoder.1.cross_attn"].weights()[0]
        torch.testing.assert_close(found[:, :, columns], wanted, rtol=0, atol=1e-6)
        assert not found[:, :, ~columns].any()
        found = together["decoder.1.self_attn"].weights()[i][:, rows][:, :, rows]
        torch.testing.assert_close(
            found, trace["decoder.1.self_attn"].weights()[0], rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_recording_changes_no_bit_of_the_output(family: str):
    model = build(family)
    sides = batch(model)
    plain = model(*sides)
    with record(model) as trace:
        assert torch.equal(model(*sides), plain)
        trace["decoder.0.cross_attn"].weights()
        assert torch.equal(model(*sides), plain)
    assert torch.equal(model(*sides), plain)


def test_either_spelling_of_a_place_and_only_real_places():
    model = build("transformer-post")
    with record(model) as trace:
        model(*sentences(model)[0])
    assert trace["decoder.blocks.1.cross_attn"] is trace["decoder.1.cross_attn"]
    for wrong in ("decoder.2.cross_attn", "encoder.0.cross_attn", "", "decoder.1"):
        with pytest.raises(LookupError, match=r"decoder\.1\.cross_attn"):
            trace[wrong]


def test_heads_and_rows_asked_for_are_a_cut_of_the_whole():
    model = build("transformer-post")
    with record(model) as trace:
        model(*sentences(model)[0])
    place = trace["decoder.1.self_attn"]
    whole = place.weights()
    assert torch.equal(place.weights(heads=[3], rows=slice(0, 2)), whole[:, [3], :2])
    assert torch.equal(place.weights(heads=slice(1, 3)), whole[:, 1:3])
    assert torch.equal(place.weights(rows=torch.tensor([2, 0])), whole[:, :, [2, 0]])


def test_what_was_not_passed_says_so():
    model = build("transformer-post")
    with record(model) as trace:
        model.encode(sentences(model)[0][0])
    assert trace["encoder.0.self_attn"].weights().shape == (1, 4, 7, 7)
    with pytest.raises(LookupError, match=r"nothing was recorded at decoder\.0\.cross_attn"):
        trace["decoder.0.cross_attn"].weights()


def test_a_model_without_attention_cannot_be_recorded():
    with pytest.raises(ValueError, match="Linear has no attention"), record(nn.Linear(2, 2)):
        pass


def test_looking_ends_when_the_model_fails():
    model = build("transformer-post")
    with pytest.raises(ValueError, match="max_len"), record(model):
        model.encode(torch.ones(1, 999, dtype=torch.long))
    assert not probe.active()


def test_two_models_are_recorded_apart():
    one, other = build("transformer-post"), build("transformer-pre-learned")
    source, target = sentences(one)[0]
    with record(one) as first, record(other) as second:
        one(source, target)
        other(source[:, :3], target[:, :2])
    assert first["decoder.0.cross_attn"].weights().shape == (1, 4, 3, 7)
    assert second["decoder.0.cross_attn"].weights().shape == (1, 4, 2, 3)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_of_two_passes_the_last_is_kept_whole_whatever_memory_they_reuse(length: int):
    model = build("transformer-post")
    source, target = sentences(model)[0]
    source, target = source[:, :length], target[:, :length]
    for change in (0, 1):
        with torch.inference_mode(), record(model) as trace:
            for _ in range(3):
                model(source, target)
            model(source + change, target)
        with torch.inference_mode(), record(model) as once:
            model(source + change, target)
        for name in PLACES:
            assert torch.equal(trace[name].weights(), once[name].weights()), name


def greedily(model: nn.Module, source, max_len: int):
    with torch.inference_mode(), record(model) as trace:
        (best,) = search(model, source, beam=1, max_len=max_len)[0]
    return trace, torch.tensor([[model.config.pad_id, *best.ids]])


@pytest.mark.parametrize("family", STACKED)
def test_cached_greedy_steps_are_one_matrix_whose_rows_are_the_queries_that_wrote_the_tokens(
    family: str,
):
    model = build(family)
    source = sentences(model)[0][0]
    trace, written = greedily(model, source, 6)
    with record(model) as whole:
        model(source, written)
    for name in PLACES:
        n = trace[name].weights().shape[2]
        # Cut off by max_len: the last token was written and never read.
        wanted = whole[name].weights()
        wanted = wanted[:, :, :n, :n] if name.endswith("self_attn") else wanted[:, :, :n]
        assert n >= written.shape[1] - 1
        torch.testing.assert_close(trace[name].weights(), wanted, rtol=0, atol=1e-5)
    for rows in (slice(2, 4), torch.tensor([0, 3])):
        part = trace["decoder.1.cross_attn"].weights(rows=rows)
        wanted = trace["decoder.1.cross_attn"].weights()[:, :, rows]
        torch.testing.assert_close(part, wanted, rtol=0, atol=1e-6)


def test_a_prepared_copy_is_recorded_like_the_model_it_was_made_from():
    model = build("transformer-post")
    source = sentences(model)[0][0]
    plain, written = greedily(model, source, 6)
    prepared, again = greedily(prepare(model), source, 6)
    assert torch.equal(written, again) and prepared.places() == PLACES
    for name in PLACES:
        torch.testing.assert_close(
            prepared[name].weights(), plain[name].weights(), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("family", ENCODER_DECODERS)
def test_looking_at_a_prepared_copys_steps_changes_no_bit(family: str, beam: int):
    model = prepare(build(family))
    source = sentences(model)[0][0]
    with torch.inference_mode():
        plain = search(model, source, beam=beam, max_len=7)[0][0]
        with record(model) as trace:
            seen = search(model, source, beam=beam, max_len=7)[0][0]
    assert seen == plain, "ids, log-probability and score to the last bit"
    if beam == 1:
        assert trace["decoder.0.cross_attn"].shape[2] >= len(plain.ids)


def test_a_second_search_begins_a_new_matrix():
    model = build("transformer-post")
    first, second = (pair[0] for pair in sentences(model)[:2])
    with torch.inference_mode(), record(model) as trace:
        search(model, first, max_len=7)
        search(model, second, max_len=4)
    again, _ = greedily(model, second, 4)
    for name in PLACES:
        assert torch.equal(trace[name].weights(), again[name].weights()), name


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_of_a_cached_decoding_are_one_matrix(chunk: int):
    model = build("transformer-pre-learned")
    source, target = sentences(model)[1]
    memory = model.encode(source)
    cache = model.cache(memory, target.shape[1])
    with record(model) as trace:
        for start in range(0, target.shape[1], chunk):
            model.decode(target[:, start : start + chunk], memory, cache=cache)
    with record(model) as whole:
        model(source, target)
    for name in PLACES[2:]:
        torch.testing.assert_close(
            trace[name].weights(), whole[name].weights(), rtol=0, atol=1e-5, msg=name
        )


def test_a_recording_that_begins_amid_a_search_has_the_rows_since_then():
    model = build("transformer-post")
    source, target = sentences(model)[1]
    memory = model.encode(source)
    cache = model.cache(memory, target.shape[1])
    model.decode(target[:, :2], memory, cache=cache)
    with record(model) as trace:
        for t in range(2, target.shape[1]):
            model.decode(target[:, t : t + 1], memory, cache=cache)
    with record(model) as whole:
        model(source, target)
    for name in PLACES[2:]:
        wanted = whole[name].weights()[:, :, 2:]
        torch.testing.assert_close(trace[name].weights(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("beam", [1, 3])
def test_rows_that_a_search_moves_are_an_error_not_another_sentences_matrix(beam: int):
    model = build("transformer-post")
    source, _, real, _ = batch(model)
    with torch.inference_mode(), record(model) as trace:
        found = search(model, source, real, beam=beam)  # twice the source's length at most
    assert len({len(best[0].ids) for best in found}) > 1
    assert trace["encoder.1.self_attn"].weights().shape == (4, 4, 7, 7)
    for name in PLACES[2:]:
        with pytest.raises(LookupError, match=f"rows at {name} were moved"):
            trace[name].weights()
    with record(model) as trace:  # and a pass afterwards is whole again
        search(model, source, real, beam=beam)
        model(*sentences(model)[0])
    assert trace["decoder.1.cross_attn"].weights().shape == (1, 4, 3, 7)


def test_a_trace_keeps_copies_so_what_comes_later_changes_nothing():
    model = build("transformer-post")
    source, target = sentences(model)[0]
    with record(model) as trace:
        model(source, target)
    before = trace["encoder.0.self_attn"].weights().clone()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    model(source, target)
    assert torch.equal(trace["encoder.0.self_attn"].weights(), before)


def test_nothing_is_kept_when_nobody_looks():
    layer = MultiHeadAttention(8, 2)
    kept = []
    project = layer.project

    def watched(*args):
        parts = project(*args)
        kept.append(weakref.ref(parts.k.untyped_storage()))
        return parts

    layer.project = watched
    with torch.no_grad():
        layer(torch.randn(1, 5, 8), masks.causal())
    gc.collect()
    assert kept[0]() is None


def test_memory_of_a_trace_grows_with_the_length_not_its_square():
    layer = nn.ModuleDict({"self_attn": MultiHeadAttention(8, 2)})
    sizes = []
    for n in (64, 512):
        with torch.no_grad(), record(layer) as trace:
            layer["self_attn"](torch.randn(1, n, 8), masks.causal())
        parts = trace["self_attn"].parts
        sizes.append(sum(x.untyped_storage().nbytes() for x in (parts.q, parts.k, parts.v)))
    assert sizes[1] == 8 * sizes[0] == 8 * 3 * 64 * 8 * 4


@pytest.mark.parametrize("beam", [1, 3])
@torch.inference_mode()
def test_the_rows_of_a_finished_hypothesis_are_followed_through_the_beams(beam: int):
    model = build("transformer-pre-separate-untied")
    source, _, real, _ = batch(model)
    with record(model) as trace:
        found = [best[0] for best in search(model, source, real, beam=beam)]
    trace.follow([best.ids for best in found])
    for i, best in enumerate(found):
        read = torch.tensor([[model.config.pad_id, *best.ids]])
        n = read.shape[1] if best.ended else read.shape[1] - 1
        with record(model) as whole:
            model(source[i : i + 1], read[:, :n], real[i : i + 1])
        for place in whole.stack("decoder"):
            mine, wanted = trace[place.name].weights()[i], place.weights()[0]
            torch.testing.assert_close(mine[:, :n, : wanted.shape[-1]], wanted, rtol=0, atol=1e-5)
            assert not mine[:, n:].any() and not mine[:, :, wanted.shape[-1] :].any()
        mine = trace.residual("decoder.1")[i, :n]
        torch.testing.assert_close(mine, whole.residual("decoder.1")[0], rtol=0, atol=1e-4)


def test_what_was_never_written_cannot_be_followed():
    model = build("transformer-post")
    with torch.inference_mode(), record(model) as trace:
        search(model, sentences(model)[0][0], beam=3, max_len=5)
    with pytest.raises(LookupError, match=r"did not write \[1, 2, 3, 4\]"):
        trace.follow([[1, 2, 3, 4]])


@pytest.mark.parametrize("family", STACKED)
def test_states_between_the_layers_are_what_the_blocks_gave_padding_or_not(family: str):
    model = build(family)
    sides = batch(model)
    with torch.no_grad(), record(model) as trace:
        logits = model(*sides)
    real = sides.target_mask
    assert trace.layers() == [
        f"{half}.{layer}" for half in ("encoder", "decoder") for layer in ("embed", 0, 1)
    ]
    torch.testing.assert_close(trace.logits("decoder.1")[real], logits[real])
    with torch.no_grad():
        memory = model.encode(sides.source, sides.source_mask)
        for i in range(4):
            rows = sides.source_mask[i]
            entry = trace.residual("encoder.embed")[i : i + 1, rows]
            n = entry.shape[1]
            bias = model.encoder_bias(n, n) if family == "t5" else None
            after = model.encoder.blocks[0](entry, bias=bias)[0]
            torch.testing.assert_close(trace.residual("encoder.0")[i, rows], after)
    packed, last = memory.states, trace.residual("encoder.1")[sides.source_mask]
    norm = model.encoder.norm
    torch.testing.assert_close(last if norm is None else norm(last), packed)
    with pytest.raises(LookupError, match=r"no head reads encoder\.1"):
        trace.logits("encoder.1")


def test_a_trace_shows_itself_with_every_name_as_text():
    model = nn.ModuleDict({"<b>&": MultiHeadAttention(8, 2)})
    with torch.no_grad(), record(model) as trace:
        model["<b>&"](torch.randn(1, 3, 8))
    html = trace._repr_html_()
    assert "&lt;b&gt;&amp;" in html and "<b>" not in html
    assert "2 heads × 3 queries × 3 keys" in html
    assert trace["<b>&"]._repr_html_() in html


def test_a_bias_of_every_step_is_kept_not_the_last_ones():
    """A bias that depends on the position, over cached steps, as T5 has it."""
    layer = nn.ModuleDict({"self_attn": MultiHeadAttention(8, 2)})
    x, bias = torch.randn(1, 4, 8), torch.randn(1, 2, 4, 4)
    with torch.no_grad(), record(layer) as trace:
        attention, cache = layer["self_attn"], KeyValueCache(4)
        for t in range(4):
            q, k, v, scale = attention.project(x[:, t : t + 1])[:4]
            k, v = cache.append(k, v)
            parts = Parts(q, k, v, scale, bias[:, :, t : t + 1, : t + 1])
            probe.attention(attention, parts, None, attend)
        q, k, v, scale = attention.project(x)[:4]
    wanted = weights(Parts(q, k, v, scale, bias), masks.causal())
    torch.testing.assert_close(trace["self_attn"].weights(), wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(trace["self_attn"].weights(rows=slice(2, 3)), wanted[:, :, 2:3])
