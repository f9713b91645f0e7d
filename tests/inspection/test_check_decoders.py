"""check on decoders that read no memory: every law holds, and each planted fault is found."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from everyhead import check
from everyhead.layers.positions import LearnedPositions
from everyhead.models.gpt2 import GPT2
from tests.laws.text_decoders import TEXT_DECODERS, build

HELD = {"padding-left", "padding-right", "nan-padding", "future", "cache", "reorder", "save-load"}


@pytest.mark.parametrize("family", TEXT_DECODERS)
def test_every_law_holds(family: str) -> None:
    found = {finding.law: finding.verdict for finding in check(build(family))}
    assert "fail" not in found.values()
    assert {law for law in HELD if found[law] != "pass"} == set()
    tied = getattr(TEXT_DECODERS[family]().config, "tie_output", False)
    assert (found["ties"] == "pass") == bool(tied)


def looks_ahead(model: nn.Module) -> None:
    """Each place is told of the next one's embedding."""
    embed = model.embed

    def wrong(ids: Tensor, positions: Tensor) -> Tensor:
        x = embed(ids, positions)
        return x + 0.1 * x.roll(-1, -2)

    model.embed = wrong


def counts_from_zero(model: nn.Module) -> None:
    """Positions start anew with every call, as if there were no cache."""

    class Wrong(LearnedPositions):
        def forward(self, positions: Tensor) -> Tensor:
            return super().forward(positions - positions.min())

    model.positions.__class__ = Wrong


@pytest.mark.parametrize(("fault", "law"), [(looks_ahead, "future"), (counts_from_zero, "cache")])
def test_a_planted_fault_is_found(fault: Callable[[nn.Module], None], law: str) -> None:
    torch.manual_seed(0)
    model = build("gpt2")
    assert isinstance(model, GPT2)
    fault(model)
    (finding,) = check(model, laws=[law])
    assert finding.verdict == "fail"
