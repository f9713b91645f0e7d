"""Law 4: change token t + 1 at equal shapes, and outputs up to t stay bit-equal."""

import pytest
import torch

from tests.laws.families import FAMILIES, batch, build, sentences
from tests.laws.test_padding_never_changes_an_answer import way

__all__ = ["way"]


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(family: str, way: str) -> None:
    model = build(family)
    source, target = sentences(model)[0]
    target = torch.cat([target, target + 1, target + 2], 1)
    before = model(source, target)
    for t in range(target.shape[1] - 1):
        changed = target.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % 20 + 1
        after = model(source, changed)
        assert torch.equal(after[:, : t + 1], before[:, : t + 1])
        assert not torch.equal(after[:, t + 1], before[:, t + 1])


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_nor_does_it_in_a_padded_batch(family: str, left: bool, way: str) -> None:
    model = build(family)
    sides = batch(model, left=left, extra=1)
    before = model(*sides)
    for t in range(sides.target.shape[1] - 1):
        changed = sides.target.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % 20 + 1
        after = model(*sides._replace(target=changed))
        real = sides.target_mask[:, : t + 1]
        assert torch.equal(after[:, : t + 1][real], before[:, : t + 1][real])


@pytest.mark.parametrize("family", FAMILIES)
def test_no_gradient_flows_from_an_output_to_a_later_token(family: str, way: str) -> None:
    model = build(family)
    source, _ = sentences(model)[0]
    target = torch.arange(1, 10)[None]  # each id once, so that rows of the table are places
    for t in (0, 3, 7):
        model.zero_grad()
        memory = model.encode(source)
        memory = memory._replace(states=memory.states.detach())
        model.decode(target, memory)[0, t].square().sum().backward()
        touched = model.target_embed.weight.grad.abs().sum(1) > 0
        assert touched.nonzero()[:, 0].tolist() == list(range(1, t + 2))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_sentences_of_a_batch_do_not_see_one_another(family: str, way: str) -> None:
    model = build(family)
    sides = batch(model)
    before = model(*sides)
    source, target = sides.source.clone(), sides.target.clone()
    source[1:], target[1:] = (source[1:] + 7) % 18 + 1, (target[1:] + 7) % 20 + 1
    after = model(*sides._replace(source=source, target=target))
    assert torch.equal(after[0], before[0])
