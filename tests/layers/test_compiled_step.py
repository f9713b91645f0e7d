"""A step as one program is the step in PyTorch's calls, whatever the search does in between."""

import copy

import pytest
import torch
from torch import Tensor

from everyhead.generation.search import search
from everyhead.layers import compiled_step, probe
from everyhead.layers.blocks import Stack
from everyhead.layers.cache import DecoderCache, KeyValueCache
from everyhead.layers.compiled import library
from everyhead.layers.compiled_types import Decoder
from everyhead.models.prepare import prepare
from everyhead.models.transformer import Transformer, TransformerConfig

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler here")


def make(norm: str = "post", activation: str = "relu", **changes: int) -> Transformer:
    torch.manual_seed(0)
    sizes = {"d_model": 64, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 2}
    config = TransformerConfig(
        vocab_size=50, max_len=40, **{**sizes, "d_ff": 96, **changes}, norm=norm,
        activation=activation,
    )  # fmt: skip
    model = Transformer(config).eval()
    for parameter in model.parameters():
        with torch.no_grad():
            parameter.mul_(3) if parameter.dim() > 1 else parameter.add_(torch.randn(()) / 5)
    return model


def steps(model: Transformer, *, beams: int, n: int = 12) -> tuple[Tensor, DecoderCache]:
    """Hidden states of n steps of three sentences, with every kind of move between them."""
    torch.manual_seed(1)
    source, real = torch.randint(1, 49, (3, 6)), torch.arange(6) < torch.tensor([[6], [2], [4]])
    memory = model.encode(source, real)
    cache, found, rows = model.cache(memory, n, beams=beams), [], 3
    for step in range(n):
        hidden = model.decode(torch.randint(1, 49, (rows, 1)), memory, cache=cache)
        found.append(hidden.flatten())
        if beams > 1:
            width = rows // 3 if step < 6 else rows // 2
            sentences = torch.arange(rows // width)[:, None] * width
            index = (sentences + torch.randint(0, width, (rows // width, beams))).flatten()
            if step == 5:
                index, keep = index[beams:], torch.tensor([1, 2])
                cache.keep(keep)
                memory = memory._replace(mask=None) if cache.key_mask is None else memory
            cache.reorder(index)
            rows = index.numel()
        elif step == 5:
            cache.reorder(torch.tensor([2, 0]))
            cache.keep(torch.tensor([2, 0]))
            rows = 2
        if step == 8:
            cache.crop(7)
    return torch.cat(found), cache


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps the program has made."""
    made, plain = [], compiled_step._step

    def step(decoder: Decoder, x: Tensor, cache: DecoderCache) -> Tensor:
        made.append(x.shape[0])
        return plain(decoder, x, cache)

    monkeypatch.setattr(compiled_step, "_step", step)
    return made


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@torch.no_grad()
def test_steps_are_the_plain_models(
    counted: list[int], norm: str, activation: str, beams: int
) -> None:
    model = make(norm, activation)
    found, cache = steps(prepare(model), beams=beams)
    assert counted == ([3] * 5 + [2] * 6 if beams == 1 else [9] * 5 + [6] * 6)
    wanted, other = steps(model, beams=beams)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)
    for one, two in zip(cache.self_attn, other.self_attn, strict=True):
        torch.testing.assert_close(one.read()[1], two.read()[1], rtol=1e-5, atol=2e-5)


@torch.no_grad()
def test_two_threads_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for n in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n: n)
        found.append(steps(prepare(make("pre")), beams=3)[0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@torch.no_grad()
def test_bf16_weights_are_the_same_as_in_pytorchs_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("layers.packed", "models.prepare"):
        monkeypatch.setattr(f"everyhead.{place}.multiplies_bf16", lambda: False)
    model = make()
    found, _ = steps(prepare(model, torch.bfloat16), beams=3)
    monkeypatch.setattr("everyhead.layers.packed.library", lambda: None)
    wanted, _ = steps(prepare(model, torch.bfloat16), beams=3)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-5


@pytest.mark.parametrize("changes", [{"d_model": 36}, {"d_ff": 33}, {"n_heads": 64}])
@torch.no_grad()
def test_widths_that_do_not_fill_vectors_go_the_usual_way(changes: dict[str, int]) -> None:
    model = make(**changes)
    prepared = prepare(model)
    assert type(prepared.decoder) is Stack
    torch.testing.assert_close(
        steps(prepared, beams=3)[0], steps(model, beams=3)[0], rtol=1e-5, atol=2e-5
    )


class Watcher:
    """Looks, and changes nothing."""

    def attention(self, module, parts, mask, attend):  # type: ignore[no-untyped-def]
        return attend(parts, mask)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@torch.no_grad()
def test_who_looks_at_a_step_changes_no_bit(
    counted: list[int], norm: str, activation: str, beams: int
) -> None:
    model = prepare(make(norm, activation))
    wanted, _ = steps(model, beams=beams)
    made = len(counted)
    probe.attach(watcher := Watcher())
    try:
        found, _ = steps(model, beams=beams)
    finally:
        probe.detach(watcher)
    assert made == len(counted) == 11 and torch.equal(found, wanted)


@torch.no_grad()
def test_rows_that_share_a_memory_read_it_and_nothing_behind_it(counted: list[int]) -> None:
    found = []
    for model in (make(), prepare(make())):
        memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 4]]))
        cache = model.cache(memory, 5)
        model.decode(torch.tensor([[1], [2]]), memory, cache=cache)
        cache.reorder(torch.tensor([0, 0, 1, 1]))
        found.append(model.decode(torch.tensor([[1], [2], [3], [4]]), memory, cache=cache))
    torch.testing.assert_close(*found, rtol=1e-5, atol=2e-5)
    assert not counted


@torch.no_grad()
def test_a_hook_on_a_block_is_called(counted: list[int]) -> None:
    model, seen = prepare(make()), []
    model.decoder.blocks[1].register_forward_hook(lambda *_: seen.append(1))
    steps(model, beams=1)
    assert len(seen) == 12 and not counted


@torch.no_grad()
def test_a_copy_computes_with_its_own_weights() -> None:
    one = prepare(make())
    wanted, _ = steps(one, beams=3)
    other = copy.deepcopy(one)
    one.decoder.blocks[0].self_attn.o_proj.row.weight.zero_()
    assert not torch.equal(steps(one, beams=3)[0], wanted)
    assert torch.equal(steps(other, beams=3)[0], wanted)


@torch.no_grad()
def test_states_that_are_no_numbers_are_told_and_no_number_is_made_of_them() -> None:
    model = make()
    model.decoder.blocks[1].feed_forward.down_proj.bias[3] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        search(prepare(model), torch.tensor([[5, 6, 7]]), beam=2)


@torch.no_grad()
def test_attention_as_sharp_as_numbers_allow() -> None:
    """Scores of hundreds: one key has all the weight, and what is far below has none."""
    model = make(activation="silu")
    for block in model.decoder.blocks:
        block.self_attn.q_proj.weight.mul_(100)
        block.cross_attn.q_proj.weight.mul_(100)
    found, plain = (steps(each, beams=1)[0].double() for each in (prepare(model), model))
    wanted, _ = steps(model.double(), beams=1)
    for each in (found, plain):  # float32 rounds a score of hundreds to 1e-5 of it
        assert (each - wanted).abs().max() < 5e-2 and (each - wanted).abs().mean() < 1e-4


@torch.no_grad()
def test_a_copy_that_is_looked_at_computes_with_its_own_weights() -> None:
    """The parts of a step were functions of the first model's weights."""
    one = prepare(make("pre", "gelu"))
    wanted, _ = steps(one, beams=3)
    other = copy.deepcopy(one)
    for block in one.decoder.blocks:
        block.feed_forward.up_proj.row.weight.zero_()
        block.feed_forward_norm.weight.zero_()
    probe.attach(watcher := Watcher())
    try:
        assert torch.equal(steps(other, beams=3)[0], wanted)
    finally:
        probe.detach(watcher)


def begun(model: Transformer, *, beams: int = 1, n: int = 2) -> tuple[Tensor, DecoderCache]:
    """Two sentences' memory and a cache in which n positions stand."""
    memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 4]]))
    cache = model.cache(memory, 9, beams=beams)
    for _ in range(n):
        model.decode(torch.tensor([[1], [2]]), memory, cache=cache)
    return memory, cache


def exchanged(cache: DecoderCache, how: str) -> None:
    """Put another kind of keys into a begun cache."""
    own, cross = cache.self_attn[1], cache.cross_attn[1]
    if how == "few rows":
        own._k, own._v = own._k[:1], own._v[:1]
    elif how == "a type":
        own._k, own._v = own._k.to(torch.bfloat16), own._v.to(torch.bfloat16)
    elif how == "a memory's type":
        cross._k, cross._v = cross._k.double(), cross._v.double()
    elif how == "gaps":
        own._k = own._k.transpose(0, 1).contiguous().transpose(0, 1)
    elif how == "a shorter history":
        own.length -= 1
    elif how == "a shorter memory":
        cross._k, cross._v, cross.length = cross._k[:, :, :2], cross._v[:, :, :2], 2
    elif how == "no room":
        own._k, own._v, own.capacity = own._k[:, :, :2].clone(), own._v[:, :, :2].clone(), 2
    elif how == "another kind":
        cache.self_attn[1] = type("Other", (KeyValueCache,), {})(9)
        cache.self_attn[1].__dict__.update(own.__dict__)
    elif how == "fewer layers":
        del cache.self_attn[1]


@pytest.mark.parametrize("how", [
    "few rows", "a type", "a memory's type", "gaps", "a shorter history", "a shorter memory",
    "no room", "another kind", "fewer layers",
])  # fmt: skip
@torch.no_grad()
def test_defect_a_cache_that_does_not_fit_is_never_read_by_address(
    counted: list[int], how: str
) -> None:
    """It was read past its end, or as numbers of another type."""
    told = []
    for model in (prepare(make()), make()):
        memory, cache = begun(model)
        made = len(counted)
        exchanged(cache, how)
        try:
            told.append(model.decode(torch.tensor([[3], [4]]), memory, cache=cache))
        except (IndexError, RuntimeError, ValueError) as error:
            told.append(type(error))
        assert len(counted) == made
    if isinstance(told[1], Tensor):
        torch.testing.assert_close(*told, rtol=1e-5, atol=2e-5)
    else:
        assert told[0] is not None


@torch.no_grad()
def test_memories_that_hide_otherwise_in_each_layer_are_read_so(counted: list[int]) -> None:
    found = []
    for model in (prepare(make()), make()):
        memory, cache = begun(model)
        for i, cross in enumerate(cache.cross_attn):
            cross._bias = torch.zeros(2, 1, 1, 3)
            cross._bias[:, :, :, i] = float("-inf")
        found.append(model.decode(torch.tensor([[3], [4]]), memory, cache=cache))
    assert len(counted) == 2
    torch.testing.assert_close(*found, rtol=1e-5, atol=2e-5)


@torch.no_grad()
def test_defect_parts_exchanged_after_preparing_are_read_where_they_are_now(
    counted: list[int],
) -> None:
    """A freed norm was read, and a stack that lost a block computed all of them."""
    model = prepare(make())
    before, _ = steps(model, beams=3)
    for block in model.decoder.blocks:
        block.self_attn_norm.weight.data = torch.full((64,), 0.5)
        block.cross_attn_norm.bias = torch.nn.Parameter(torch.ones(64))
    found, made = steps(model, beams=3)[0], len(counted)
    plain = make()
    for block in plain.decoder.blocks:
        block.self_attn_norm.weight.fill_(0.5)
        block.cross_attn_norm.bias.fill_(1)
    torch.testing.assert_close(found, steps(plain, beams=3)[0], rtol=1e-5, atol=2e-5)
    assert made == 22 and not torch.equal(found, before)
    for each in (model, plain):
        del each.decoder.blocks[1]
    found = steps(model, beams=3)[0]
    torch.testing.assert_close(found, steps(plain, beams=3)[0], rtol=1e-5, atol=2e-5)


def test_defect_a_memory_that_wants_a_gradient_gets_it(counted: list[int]) -> None:
    model = prepare(make()).requires_grad_(False)
    memory = model.encode(torch.tensor([[5, 6, 7], [8, 9, 4]]))
    memory.states.requires_grad_()
    cache = model.cache(memory, 9)
    for _ in range(3):
        out = model.decode(torch.tensor([[1], [2]]), memory, cache=cache)
    out.sum().backward()
    assert memory.states.grad is not None and memory.states.grad.any() and not counted
