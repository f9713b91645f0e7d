"""Cross-entropy by the program against PyTorch's in float64."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from everyhead.layers.compiled import library
from everyhead.training import objectives
from everyhead.training.compiled_loss import can_compute, row_losses
from everyhead.training.objectives import label_smoothed_loss

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C compiler here")


@given(rows=st.integers(1, 9), pieces=st.integers(1, 1100), wanted=st.booleans())
@settings(max_examples=60, deadline=None)
def test_rows_of_any_width(rows: int, pieces: int, wanted: bool) -> None:
    torch.manual_seed(pieces)
    z, labels = 5 * torch.randn(rows, pieces), torch.randint(0, pieces, (rows,))
    wide = z.double().requires_grad_()
    theirs = F.cross_entropy(wide, labels, reduction="none", label_smoothing=0.1)
    (grad,) = torch.autograd.grad(theirs.sum(), wide)
    before = z.clone()
    lse, picked = row_losses(z, labels, right=0.9, other=0.1 / pieces, wanted=wanted)
    torch.testing.assert_close(lse, wide.logsumexp(1), rtol=1e-6, atol=1e-6)
    assert torch.equal(picked.float(), before.gather(1, labels[:, None])[:, 0])
    if wanted:
        torch.testing.assert_close(z.double(), grad, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(z, before)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [None, "closed", "both"])
def test_the_loss_and_its_gradients(smoothing: float, bias: str | None) -> None:
    """As tests/training/test_objectives.py asks it of float64."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(40, 8, requires_grad=True), torch.randn(33, 8, requires_grad=True)
    labels, offset = torch.randint(0, 32, (40,)), None
    if bias is not None:
        offset = torch.randn(33) if bias == "both" else torch.zeros(33)
        offset[32] = float("-inf")
    found = []
    for dtype in (torch.float32, torch.float64):
        h, w = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
        told = None if offset is None else offset.to(dtype)
        loss = label_smoothed_loss(h, w, told, labels, smoothing=smoothing)
        found.append((loss.nll, loss.smoothed, *torch.autograd.grad(loss.smoothed, (h, w))))
    assert can_compute(hidden.detach()) and not can_compute(hidden.detach().double())
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_how_many_threads_there_are_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, labels, found = torch.randn(50, 301), torch.randint(0, 301, (50,)), []
    for n in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n: n)
        z = plain.clone()
        found.append((*row_losses(z, labels, right=0.9, other=0.001, wanted=True), z))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_give_a_loss_that_is_none(bad: float) -> None:
    z = torch.randn(3, 20)
    z[1, 19] = bad
    lse, _ = row_losses(z, torch.tensor([1, 2, 3]), right=1.0, other=0.0, wanted=True)
    assert lse.isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("label", [-1, 13])
def test_a_label_that_is_no_piece_is_an_error(label: int) -> None:
    """The program would read and write beside the row."""
    with pytest.raises(ValueError, match="one of 13 pieces"):
        label_smoothed_loss(torch.randn(2, 5), torch.randn(13, 5), None, torch.tensor([0, label]))


def test_without_a_compiler_the_loss_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, labels = torch.randn(9, 5), torch.randn(13, 5), torch.randint(0, 13, (9,))
    one = label_smoothed_loss(hidden, weight, None, labels, smoothing=0.1)
    monkeypatch.setattr(objectives, "can_compute", lambda _: False)
    other = label_smoothed_loss(hidden, weight, None, labels, smoothing=0.1)
    torch.testing.assert_close((one.smoothed, one.nll), (other.smoothed, other.nll))
