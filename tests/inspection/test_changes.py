"""Changes made where a trace looks, against the same change made by hand."""

import pytest
import torch
from torch import nn

from everyhead.generation.search import search
from everyhead.inspection.changes import HeadOff, Replaced, TokenHidden
from everyhead.inspection.trace import record
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.prepare import prepare
from tests.inspection.foreign import ids, inputs, make
from tests.laws.families import STACKED, batch, build, sentences

NEAR = {"rtol": 0, "atol": 1e-5}
# The linear map behind the joined heads (…, H·D) of layer 1.
OUT = {
    "bert": "encoder.layer.1.attention.output.dense",
    "gpt2": "transformer.h.1.attn.c_proj",
    "llama": "model.layers.1.self_attn.o_proj",
    "gemma2": "model.layers.1.self_attn.o_proj",
    "t5": "decoder.block.1.layer.1.EncDecAttention.o",
    "marian": "model.decoder.layers.1.encoder_attn.out_proj",
}
PLACE = {"bert": "encoder.1.self_attn", "t5": "decoder.1.cross_attn"}
PLACE |= {"marian": "decoder.1.cross_attn"}


def place_of(name: str) -> str:
    return PLACE.get(name, "decoder.1.self_attn")


def by_hand(model: nn.Module, path: str, change, *args, **given):
    """The model's output with `change` made to what enters the map at `path`."""
    hook = model.get_submodule(path).register_forward_pre_hook(lambda _, x: (change(x[0].clone()),))
    with torch.no_grad():
        out = model(*args, **given)
    hook.remove()
    return out


def first(output):
    return output if isinstance(output, torch.Tensor) else output[0]


def zeroed(heads, width=8):
    def change(x):
        x = x.unflatten(-1, (-1, width))
        x[..., heads, :] = 0
        return x.flatten(-2)

    return change


@pytest.mark.parametrize("name", OUT)
@torch.no_grad()
def test_a_head_off_is_a_zero_in_what_the_output_map_reads(name: str):
    model, given = make(name), inputs(name)
    plain = first(model(**given))
    with record(model, [HeadOff(place_of(name), [0, 2])]) as trace:
        found = first(model(**given))
    wanted = first(by_hand(model, OUT[name], zeroed([0, 2]), **given))
    assert torch.equal(found, wanted) and not torch.equal(found, plain)
    assert trace[place_of(name)].weights().sum() > 0  # what it would have looked at is still told
    assert torch.equal(first(model(**given)), plain)


@pytest.mark.parametrize("family", STACKED)
@torch.no_grad()
def test_a_head_off_in_everyheads_own(family: str):
    model = build(family)
    sides = batch(model)
    layer = model.decoder.blocks[1].cross_attn
    off = zeroed([3], layer.d_head)
    wanted = by_hand(model, "decoder.blocks.1.cross_attn.o_proj", off, *sides)
    for one in (model, prepare(model)):
        with record(one, [HeadOff("decoder.blocks.1.cross_attn", [3])]):
            found = one(*sides)
        torch.testing.assert_close(
            found[sides.target_mask], wanted[sides.target_mask], rtol=1e-5, atol=1e-5
        )
    assert isinstance(layer, MultiHeadAttention)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
@torch.no_grad()
def test_a_token_hidden_everywhere_is_a_token_masked_out(name: str):
    model, given = make(name), inputs(name)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[:, 4] = 0
    positions = {} if name == "bert" else {"position_ids": torch.arange(9)[None].expand(2, -1)}
    wanted = first(model(**given, attention_mask=mask, **positions))
    with record(model, [TokenHidden(None, [4])]) as trace:
        found = first(model(**given))
    rows = mask.bool()
    torch.testing.assert_close(found[rows], wanted[rows], **NEAR)
    weights = trace.stack("encoder" if name == "bert" else "decoder")[1].weights()
    assert not weights[..., 4].any()


@torch.no_grad()
def test_a_token_hidden_at_one_place_changes_nothing_before_it():
    model, given = make("t5"), inputs("t5", "right")
    with record(model) as plain:
        model(**given)
    with record(model, [TokenHidden("decoder.1.cross_attn", [0, 5])]) as trace:
        model(**given)
    place = trace["decoder.1.cross_attn"]
    assert torch.equal(trace.residual("decoder.0"), plain.residual("decoder.0"))
    kept = plain["decoder.1.cross_attn"].weights()
    kept[..., [0, 5]] = 0
    torch.testing.assert_close(place.weights(), kept / kept.sum(-1, keepdim=True), **NEAR)
    assert not torch.allclose(trace.residual("decoder.1"), plain.residual("decoder.1"))


@torch.no_grad()
def test_a_source_token_hidden_in_everyheads_own_is_one_masked_out():
    model = build("transformer-pre-learned")
    source, target = sentences(model)[0]
    real = torch.ones_like(source, dtype=torch.bool)
    real[0, 2] = False
    memory = model.encode(source)
    wanted = model.head(model.decode(target, memory._replace(mask=model.encode(source, real).mask)))
    places = [f"decoder.{i}.cross_attn" for i in (0, 1)]
    with record(model, [TokenHidden(place, [2]) for place in places]):
        found = model(source, target)
    torch.testing.assert_close(found, wanted, **NEAR)


@torch.no_grad()
def test_the_first_token_hidden_leaves_its_own_causal_row_empty_not_nan():
    model = make("gpt2")
    with record(model, [TokenHidden(None, [0])]) as trace:
        out = model(input_ids=ids(1, 6)).logits
    assert out.isfinite().all()
    assert not trace["decoder.0.self_attn"].weights()[:, :, 0].any()


@pytest.mark.parametrize("name", OUT)
@torch.no_grad()
def test_what_another_run_gave_is_put_in_its_place(name: str):
    model, given = make(name), inputs(name)
    other = {key: x.flip(0) if x.dim() == 2 else x for key, x in given.items()}
    with record(model) as trace:
        model(**other)
    output = trace[place_of(name)].output()  # (B, H, T, D)
    patch = Replaced(place_of(name), output[:, [1, 3], :2], heads=[1, 3], rows=[0, 2])
    with record(model, [patch]):
        found = first(model(**given))

    def change(x):
        x = x.unflatten(-1, (4, 8))  # (B, T, H, D)
        for row, at in ((0, 0), (2, 1)):
            x[:, row, [1, 3]] = output[:, [1, 3], at]
        return x.flatten(-2)

    torch.testing.assert_close(found, first(by_hand(model, OUT[name], change, **given)), **NEAR)


@torch.no_grad()
def test_replacing_everything_by_what_it_was_changes_nothing():
    model, given = make("llama"), inputs("llama")
    with record(model) as trace:
        plain = model(**given).logits
    with record(model, [Replaced("decoder.0.self_attn", trace["decoder.0.self_attn"].output())]):
        torch.testing.assert_close(model(**given).logits, plain, **NEAR)


def test_what_does_not_exist_is_an_error_that_names_it():
    model, given = make("llama"), inputs("llama")
    off = HeadOff("decoder.7.self_attn", [0])
    with pytest.raises(LookupError, match=r"no place 'decoder\.7"), record(model, [off]):
        pass
    wrong = Replaced("decoder.0.self_attn", torch.zeros(1, 4, 3, 8), rows=[0])
    for change, sentence in (
        (HeadOff("decoder.0.self_attn", [4]), r"no 4 among the 4 heads of decoder\.0\.self_attn"),
        (wrong, r"must be \(batch, 4 heads, 1 rows"),
    ):
        with pytest.raises(ValueError, match=sentence), record(model, [change]):
            model(**given)


# --- through generate ---------------------------------------------------------------------------


def changes_of(name: str, length: int):
    """Of a pass that reads `length` tokens: one that has no row 11, or no row 1, changes none."""
    cross = "decoder.0.cross_attn" if name in ("t5", "marian") else None
    rows = [row for row in (1, 11) if row < length]
    return [
        HeadOff("decoder.1.self_attn", [1, 2]),
        TokenHidden(cross, [3]),
        Replaced("decoder.0.self_attn", torch.ones(1, 4, len(rows), 8), rows=rows),
    ]


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "t5", "marian"])
@torch.no_grad()
def test_generation_with_a_cache_is_changed_as_whole_passes_are(name: str):
    model, given = make(name), inputs(name)
    key = "input_ids"
    if name in ("t5", "marian"):
        given.pop("decoder_input_ids")
        key = "decoder_input_ids"
    reads = (1 if key == "decoder_input_ids" else 9) + 5
    with record(model, changes_of(name, reads)) as trace:
        found = model.generate(**given, max_new_tokens=6, do_sample=False)
    so_far = torch.full((2, 1), 2) if key == "decoder_input_ids" else given["input_ids"]
    given.pop("attention_mask", None)
    while so_far.shape[1] < found.shape[1]:
        with record(model, changes_of(name, so_far.shape[1])) as whole:
            logits = model(**{**given, key: so_far}).logits
        so_far = torch.cat([so_far, logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(found, so_far)
    with record(model) as plain:
        model(**{**given, key: so_far[:, :-1]})
    differs = (plain.residual("decoder.1") - whole.residual("decoder.1")).abs().amax((0, 2))
    assert differs.gt(1e-3).sum() >= 5, "nearly every row"
    for place in whole.stack("decoder"):
        torch.testing.assert_close(trace[place.name].weights(), place.weights(), **NEAR)


@pytest.mark.parametrize("beam", [1, 3])
@torch.no_grad()
def test_our_own_search_is_changed_as_whole_passes_are(beam: int):
    model = build("transformer-post")
    source = sentences(model)[0][0]
    changes = [
        HeadOff("decoder.1.self_attn", [1, 2]),
        HeadOff("decoder.0.cross_attn", [0]),
        TokenHidden("decoder.1.cross_attn", [3]),
        TokenHidden("decoder.0.self_attn", [1]),
        Replaced("decoder.0.self_attn", torch.ones(1, 4, 1, 8), rows=[2]),
    ]
    plain = search(model, source, beam=beam, max_len=6)[0][0]
    with record(model, changes) as trace:
        best = search(model, source, beam=beam, max_len=6)[0][0]
    assert abs(best.log_prob - plain.log_prob) > 0.5
    read = torch.tensor([[model.config.pad_id, *best.ids]])
    with record(model, changes) as whole:
        log_probs = model(source, read).log_softmax(-1)
    written = read[0, 1:].tolist() + ([model.config.eos_id] if best.ended else [])
    total = sum(float(log_probs[0, t, token]) for t, token in enumerate(written))
    assert total == pytest.approx(best.log_prob, abs=1e-4)
    trace.follow([best.ids])
    for place in whole.stack("decoder"):
        found, wanted = trace[place.name].weights(), place.weights()
        n = found.shape[2]
        wanted = wanted[:, :, :n, :n] if place.kind == "self" else wanted[:, :, :n]
        assert n >= len(written)
        torch.testing.assert_close(found, wanted, **NEAR)
