"""Law 10: a prepared copy computes what the plain model does, whichever kernels are there."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from everyhead.generation.search import search
from everyhead.layers import masks, packed, probe
from everyhead.layers.attention import Parts, weights
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.packed import PackedLinear
from everyhead.models.prepare import prepare
from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig
from tests.laws.families import FAMILIES, batch, build

NEAR = {"rtol": 1e-5, "atol": 1e-5}


def make(norm: str = "post", **changes: object) -> Transformer:
    """Wide enough that its larger maps are packed."""
    torch.manual_seed(0)
    values = {**PRESETS["tiny"], "d_model": 256, "d_ff": 1032, "norm": norm, **changes}
    model = Transformer(TransformerConfig(vocab_size=600, max_len=64, **values)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)  # outputs that are not all alike
            elif "bias" in name:
                parameter.normal_(std=0.2)
    return model


def inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    source, target = torch.randint(1, 599, (5, 9)), torch.randint(1, 599, (5, 7))
    real = torch.arange(9) < torch.tensor([9, 5, 3, 1, 8])[:, None]
    target_real = torch.arange(7) < torch.tensor([2, 7, 3, 1, 5])[:, None]
    return source, target, real, target_real


def logits(model: torch.nn.Module) -> Tensor:
    source, target, real, target_real = inputs()
    return model(source, target, real, target_real)[target_real][:, :-1].float()


def stepwise(model: torch.nn.Module, rows: int) -> Tensor:
    """Logits of the first rows, one position at a time with a cache."""
    source, target, real, _ = inputs()
    memory = model.encode(source[:rows], real[:rows])
    cache = model.cache(memory, 7)
    steps = [model.decode(x, memory, cache=cache) for x in target[:rows].split(1, 1)]
    return model.head(torch.cat(steps, 1))[..., :-1].float()


@pytest.fixture(params=["compiled programs", "private operators", "plain products"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "compiled programs":
        monkeypatch.setattr(packed, "library", lambda: None)
    if request.param == "plain products":
        monkeypatch.setattr(packed, "packs", lambda dtype: False)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_logits_are_the_plain_models(kernels: None, norm: str, activation: str) -> None:
    model = make(norm, activation=activation)
    found = prepare(model)
    torch.testing.assert_close(logits(found), logits(model), **NEAR)
    for rows in (1, 2, 5):
        torch.testing.assert_close(stepwise(found, rows), stepwise(model, rows), **NEAR)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_every_family_prepared_is_as_it_was(family: str) -> None:
    model = build(family)
    sides = batch(model)
    wanted, found = model(*sides), prepare(model)(*sides)
    real = sides.target_mask
    torch.testing.assert_close(found[real], wanted[real], **NEAR)


@torch.no_grad()
def test_other_types_are_prepared_in_their_own_type() -> None:
    model = make().double()
    found = prepare(model)
    assert found.target_embed.weight.dtype == torch.float64
    torch.testing.assert_close(logits(found), logits(model), **NEAR)


def in_hardware() -> bool:
    return True


def not_in_hardware() -> bool:
    return False


@pytest.mark.parametrize("multiplies", [in_hardware, not_in_hardware])
@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_bf16_is_near_the_plain_model(
    norm: str, multiplies: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "multiplies_bf16", multiplies)
    monkeypatch.setattr("everyhead.models.prepare.multiplies_bf16", multiplies)
    model = make(norm)
    found = prepare(model, torch.bfloat16)
    assert found.target_embed.weight.dtype == (torch.bfloat16 if multiplies() else torch.float32)
    for got, wanted in (
        (logits(found), logits(model)),
        (stepwise(found, 1), stepwise(model, 1)),
        (stepwise(found, 5), stepwise(model, 5)),
    ):
        # 8 bits of mantissa in every weight, through four layers
        assert float((got - wanted).norm() / wanted.norm()) < 2e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_finds_the_same_tokens(norm: str, beam: int) -> None:
    model = make(norm)
    source, _, real, _ = inputs()
    for rows in (1, 5):
        wanted = search(model, source[:rows], real[:rows], beam=beam)
        found = search(prepare(model), source[:rows], real[:rows], beam=beam)
        assert [h[0].ids for h in found] == [h[0].ids for h in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert one[0].log_prob == pytest.approx(other[0].log_prob, abs=1e-3)


@torch.no_grad()
def test_masks_that_are_not_in_the_cache_count_in_a_step_too() -> None:
    """A memory with a dense rule, a window over the history, beams before they are chosen."""
    model = make()
    source, target, real, _ = inputs()
    outputs = []
    for each in (model, prepare(model)):
        memory, unpadded = each.encode(source, real), each.encode(source)
        dense = masks.dense((torch.arange(9) % 2 == 0).expand(5, 1, 1, 9))
        odd = memory._replace(mask=memory.mask & dense)
        cache = each.cache(odd, 7)
        steps = [each.decode(x, odd, cache=cache) for x in target.split(1, 1)]
        cache = each.cache(memory, 7, beams=2)
        steps += [each.decode(x, memory, cache=cache) for x in target[:, :3].split(1, 1)]
        own, cross = KeyValueCache(4), KeyValueCache(0, fixed=True)
        block = each.decoder.blocks[0]
        for x in torch.linspace(-1, 1, 5 * 4 * 256).sin().view(5, 4, 256).split(1, 1):
            near = masks.causal() & masks.window(1, 0)
            steps.append(block(x, near, unpadded, caches=(own, cross)))
        outputs.append(torch.cat(steps, 1))
    torch.testing.assert_close(*outputs, **NEAR)


@torch.no_grad()
def test_who_looks_at_a_step_sees_the_same_matrices() -> None:
    """The short way of a step is left when somebody looks."""

    class Looker:
        def __init__(self) -> None:
            self.seen: list[Tensor] = []

        def attention(
            self, module: object, parts: Parts, mask: object, attend: probe.Attend
        ) -> Tensor:
            self.seen.append(weights(parts, mask))
            return attend(parts, mask)

    def looked(model: Transformer) -> list[Tensor]:
        looker = Looker()
        probe.attach(looker)
        try:
            stepwise(model, 5)
        finally:
            probe.detach(looker)
        return looker.seen

    model = make()
    plain, prepared = looked(model), looked(prepare(model))
    assert len(plain) == len(prepared) > 20
    for one, other in zip(plain, prepared, strict=True):
        torch.testing.assert_close(one, other, **NEAR)


def test_large_maps_are_packed_and_small_ones_are_not() -> None:
    if not packed.packs(torch.float32):
        return
    prepared = prepare(make())
    maps = [m for m in prepared.modules() if isinstance(m, PackedLinear)]
    for each in maps:
        assert (each.packed is not None) == (each.n_in * each.n_out >= packed.SMALL)
    assert {each.packed is None for each in maps} == {True, False}


@torch.no_grad()
def test_the_model_itself_stays_as_it_is() -> None:
    model = make("post")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    model.train()
    prepared = prepare(model)
    assert model.training and not prepared.training
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert model.output_head.weight is model.target_embed.weight
    wanted = logits(prepared)
    for parameter in model.parameters():
        parameter.zero_()
    assert torch.equal(logits(prepared), wanted)


def test_a_prepared_model_is_not_prepared_again_nor_saved_nor_moved() -> None:
    prepared = prepare(make("post"))
    assert prepare(prepared) is prepared
    with pytest.raises(RuntimeError, match="save the model it was made from"):
        prepared.state_dict()
    with pytest.raises(RuntimeError, match="prepare it then"):
        prepared.double()
