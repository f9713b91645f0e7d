"""Law 9, and what the traced graph computes: both are the plain forward, bit by bit or nearly."""

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import probe
from everyhead.layers.attention import Parts
from everyhead.layers.masks import Mask
from tests.laws.families import FAMILIES, batch, build


class Watcher:
    """Computes with everything it sees and hands it on as it was."""

    def __init__(self) -> None:
        self.count = 0

    def attention(
        self, module: nn.Module, parts: Parts, mask: Mask | None, attend: probe.Attend
    ) -> Tensor:
        self.count += 1
        _ = parts.q.detach().clone().mul_(2), parts.k.sum(), parts.v.exp()
        return attend(parts, mask)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_with_an_observer_outputs_and_gradients_are_bit_equal(family: str, training: bool) -> None:
    results = []
    for watcher in (None, Watcher()):
        model = build(family).train(training)
        sides = batch(model)
        torch.manual_seed(5)
        if watcher is not None:
            probe.attach(watcher)
        try:
            hidden = model.hidden(*sides)
        finally:
            if watcher is not None:
                probe.detach(watcher)
        hidden.square().sum().backward()
        results.append((hidden, [p.grad for p in model.parameters() if p.grad is not None]))
        if watcher is not None:
            assert watcher.count == 6
    (plain, grads), (seen, wanted) = results
    assert torch.equal(plain, seen)
    assert all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_rectangle_of_a_traced_graph_is_the_packed_rows(
    family: str, left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for traced in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda traced=traced: traced)
        model = build(family, dtype=torch.float64)
        sides = batch(model, left=left, extra=1)
        hidden = model.hidden(*sides)[sides.target_mask]
        hidden.square().sum().backward()
        results.append((hidden, {n: p.grad for n, p in model.named_parameters()}))
    (packed, grads), (rectangle, wanted) = results
    torch.testing.assert_close(packed, rectangle, rtol=0, atol=1e-12)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, wanted[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["transformer-post", "transformer-pre-learned", "t5"])
def test_torch_compile_traces_a_forward_in_one_graph(family: str) -> None:
    model = build(family)
    sides = batch(model)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    out, expected = compiled(*sides), model(*sides)
    real = sides.target_mask
    torch.testing.assert_close(out[real], expected[real], rtol=1e-5, atol=1e-5)
    wider = batch(model, extra=2)
    torch.testing.assert_close(
        compiled(*wider)[wider.target_mask], expected[real], rtol=1e-5, atol=1e-5
    )
