"""The loss against PyTorch's, against everyhead.reference, and at its edges."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from everyhead import reference
from everyhead.training import objectives
from everyhead.training.objectives import label_smoothed_loss

V, C, N, PAD = 13, 5, 9, 12


def parts(dtype: torch.dtype = torch.float64, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden rows, the head's weight and labels that are not padding."""
    torch.manual_seed(0)
    hidden = torch.randn(n, C, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, C, dtype=dtype, requires_grad=True)
    return hidden, weight, torch.randint(0, PAD, (n,))


def pad_bias(dtype: torch.dtype = torch.float64) -> Tensor:
    """−∞ at padding, and something finite elsewhere."""
    bias = torch.linspace(-1, 1, V, dtype=dtype)
    bias[PAD] = float("-inf")
    return bias


@pytest.fixture(params=[1, 3 * V, 10**6], ids=["row by row", "chunks of 3", "one chunk"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(objectives, "CHUNK", request.param)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("biased", [False, True])
def test_equal_to_pytorchs_where_that_is_finite(smoothing: float, biased: bool):
    hidden, weight, labels = parts()
    bias = torch.linspace(-1, 1, V, dtype=torch.float64) if biased else None
    loss = label_smoothed_loss(hidden, weight, bias, labels, smoothing=smoothing)
    logits = F.linear(hidden, weight, bias)
    theirs = F.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss.smoothed, theirs)
    torch.testing.assert_close(loss.nll, F.cross_entropy(logits, labels, reduction="sum"))
    assert loss.n_tokens == N
    ours = torch.autograd.grad(loss.smoothed, (hidden, weight))
    torch.testing.assert_close(ours, torch.autograd.grad(theirs, (hidden, weight)))


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equal_to_the_reference_with_a_padding_logit_of_minus_infinity(smoothing: float):
    hidden, weight, labels = parts()
    bias = pad_bias()
    loss = label_smoothed_loss(hidden, weight, bias, labels, smoothing=smoothing)
    logits = F.linear(hidden, weight, bias).detach().numpy()
    expected = reference.label_smoothed_loss(logits, labels.numpy(), epsilon=smoothing, pad_id=PAD)
    np.testing.assert_allclose(loss.smoothed.item() / N, expected, rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_with_a_padding_logit_of_minus_infinity(smoothing: float, monkeypatch):
    monkeypatch.setattr(objectives, "CHUNK", 4 * V)
    hidden, weight, labels = parts()
    bias = pad_bias()

    def loss(h: Tensor, w: Tensor) -> Tensor:
        return label_smoothed_loss(h, w, bias, labels, smoothing=smoothing).smoothed

    assert torch.autograd.gradcheck(loss, (hidden, weight))
    # Autograd through the formula, over the pieces that can be predicted.
    log_p = (F.linear(hidden, weight)[:, :PAD] + bias[:PAD]).log_softmax(1)
    q = torch.full((N, PAD), smoothing / PAD, dtype=torch.float64)
    q[torch.arange(N), labels] += 1 - smoothing
    plain = torch.autograd.grad(-(q * log_p).sum(), (hidden, weight))
    ours = torch.autograd.grad(loss(hidden, weight), (hidden, weight))
    torch.testing.assert_close(ours, plain)
    assert not ours[1][PAD].any()


def test_the_gradient_is_scaled_by_what_comes_after_and_only_read():
    hidden, weight, labels = parts()
    loss = label_smoothed_loss(hidden, weight, None, labels, smoothing=0.1).smoothed
    once = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    thrice = torch.autograd.grad(3 * loss, (hidden, weight), retain_graph=True)
    torch.testing.assert_close(thrice, tuple(3 * g for g in once))
    torch.testing.assert_close(torch.autograd.grad(loss, (hidden, weight)), once)


def test_padded_labels_are_left_out_and_a_batch_without_them_is_fine():
    hidden, weight, labels = parts()
    bias = pad_bias()
    some = labels.clone()
    some[[1, 4]] = PAD
    kept = some != PAD
    loss = label_smoothed_loss(hidden, weight, bias, some, smoothing=0.1, pad_id=PAD)
    alone = label_smoothed_loss(hidden[kept], weight, bias, labels[kept], smoothing=0.1)
    torch.testing.assert_close(loss, alone)
    (grad,) = torch.autograd.grad(loss.smoothed, hidden)
    assert not grad[~kept].any() and grad[kept].any(1).all()
    whole = label_smoothed_loss(hidden, weight, bias, labels, smoothing=0.1, pad_id=PAD)
    assert whole.n_tokens == N and whole.smoothed > 0


@pytest.mark.parametrize("n", [0, 3], ids=["no rows", "all padding"])
def test_no_real_label_gives_zero_and_zero_gradients_never_nan(n: int):
    hidden, weight, _ = parts(n=n)
    labels = torch.full((n,), PAD)
    loss = label_smoothed_loss(hidden, weight, pad_bias(), labels, smoothing=0.1, pad_id=PAD)
    assert loss.smoothed.item() == 0 and loss.nll.item() == 0 and loss.n_tokens == 0
    for grad in torch.autograd.grad(loss.smoothed, (hidden, weight)):
        assert not grad.any()


def test_the_negative_log_likelihood_is_never_smoothed():
    hidden, weight, labels = parts()
    plain = label_smoothed_loss(hidden, weight, pad_bias(), labels, smoothing=0.0)
    smooth = label_smoothed_loss(hidden, weight, pad_bias(), labels, smoothing=0.3)
    assert torch.equal(plain.nll, smooth.nll) and torch.equal(plain.nll, plain.smoothed)
    assert not torch.equal(plain.smoothed, smooth.smoothed)


def test_huge_logits_stay_finite():
    hidden, weight, labels = parts(torch.float32)
    loss = label_smoothed_loss(1e4 * hidden, weight, pad_bias(torch.float32), labels, smoothing=0.1)
    assert torch.isfinite(loss.smoothed)
    for grad in torch.autograd.grad(loss.smoothed, (hidden, weight)):
        assert torch.isfinite(grad).all()


def test_float32_loses_nothing_over_many_rows():
    hidden, weight, labels = parts(torch.float32, n=4000)
    loss = label_smoothed_loss(hidden, weight, None, labels, smoothing=0.1)
    exact = label_smoothed_loss(hidden.double(), weight.double(), None, labels, smoothing=0.1)
    torch.testing.assert_close(loss.smoothed.double(), exact.smoothed, rtol=1e-6, atol=0)
    assert loss.smoothed.dtype == torch.float32


def test_bf16_autocast_is_close_and_gives_gradients_in_the_parameters_own_type():
    hidden, weight, labels = parts(torch.float32, n=64)
    exact = label_smoothed_loss(hidden, weight, pad_bias(torch.float32), labels, smoothing=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = label_smoothed_loss(hidden, weight, pad_bias(torch.float32), labels, smoothing=0.1)
    torch.testing.assert_close(loss.smoothed, exact.smoothed, rtol=1e-2, atol=0)
    ours = torch.autograd.grad(loss.smoothed, (hidden, weight))
    for grad, true in zip(ours, torch.autograd.grad(exact.smoothed, (hidden, weight)), strict=True):
        assert grad.dtype == torch.float32
        assert (grad - true).norm() <= 2e-2 * true.norm()


def test_without_gradients_none_are_made():
    hidden, weight, labels = parts()
    with torch.no_grad():
        loss = label_smoothed_loss(hidden, weight, None, labels, smoothing=0.1)
    assert not loss.smoothed.requires_grad
    torch.testing.assert_close(
        loss.smoothed, label_smoothed_loss(hidden, weight, None, labels, smoothing=0.1).smoothed
    )


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 1.5])
def test_smoothing_is_a_share(smoothing: float):
    hidden, weight, labels = parts()
    with pytest.raises(ValueError, match=r"share in \[0, 1\)"):
        label_smoothed_loss(hidden, weight, None, labels, smoothing=smoothing)


def test_as_many_labels_as_rows():
    hidden, weight, labels = parts()
    with pytest.raises(ValueError, match="9 hidden rows meet 8 labels"):
        label_smoothed_loss(hidden, weight, None, labels[:-1])
