"""Law 10: a prepared copy computes what the plain model does."""

import pytest
import torch
from torch import Tensor

from everyhead.generation.search import search
from everyhead.models.prepare import prepare
from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig


def make(norm: str, **changes: object) -> Transformer:
    torch.manual_seed(0)
    values = {**PRESETS["tiny"], "d_model": 128, "d_ff": 512, "norm": norm, **changes}
    model = Transformer(TransformerConfig(vocab_size=60, max_len=64, **values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1.5)  # outputs that are not all alike
    return model


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    source, target = torch.randint(1, 59, (5, 9)), torch.randint(1, 59, (5, 7))
    real = torch.arange(9) < torch.tensor([9, 5, 3, 1, 8])[:, None]
    target_real = torch.arange(7) < torch.tensor([2, 7, 3, 1, 5])[:, None]
    return source, target, real, target_real


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@torch.no_grad()
def test_logits_are_the_plain_models(norm, activation):
    model = make(norm, activation=activation)
    source, target, real, target_real = batch()
    wanted = model(source, target, real, target_real)[target_real][:, :-1]
    found = prepare(model)(source, target, real, target_real)[target_real][:, :-1]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["post", "pre"])
@torch.no_grad()
def test_bf16_is_near_the_plain_model(norm):
    model = make(norm)
    source, target, real, target_real = batch()
    wanted = model(source, target, real, target_real)[target_real][:, :-1]
    found = prepare(model, torch.bfloat16)(source, target, real, target_real)
    found = found[target_real][:, :-1].float()
    # 8 bits of mantissa in every weight, through four layers
    assert float((found - wanted).norm() / wanted.norm()) < 2e-2


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_finds_the_same_tokens(norm, beam):
    model = make(norm)
    source, _, real, _ = batch()
    wanted = search(model, source, real, beam=beam)
    found = search(prepare(model), source, real, beam=beam)
    assert [h[0].ids for h in found] == [h[0].ids for h in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert one[0].log_prob == pytest.approx(other[0].log_prob, abs=1e-4)


@torch.no_grad()
def test_the_model_itself_stays_as_it_is():
    model = make("post")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    model.train()
    prepare(model)
    assert model.training
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())
    assert model.output_head.weight is model.target_embed.weight


def test_a_prepared_model_is_not_prepared_again_nor_saved_nor_moved():
    prepared = prepare(make("post"))
    assert prepare(prepared) is prepared
    with pytest.raises(RuntimeError, match="save the model it was made from"):
        prepared.state_dict()
    with pytest.raises(RuntimeError, match="prepare it then"):
        prepared.double()
