"""Temperature, top-k and top-p against transformers' own warpers."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from everyhead.errors import UserError
from everyhead.explorer.distribution import Shape, shaped


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [0, 1, 5])
@pytest.mark.parametrize("top_p", [0.2, 0.9, 1.0])
def test_as_transformers_samples(temperature: float, top_k: int, top_p: float):
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)).double()
    wanted = TemperatureLogitsWarper(temperature)(None, logits[None])
    if top_k:
        wanted = TopKLogitsWarper(top_k)(None, wanted)
    if top_p < 1:
        wanted = TopPLogitsWarper(top_p)(None, wanted)
    found = shaped(logits, Shape(temperature, top_k, top_p))
    torch.testing.assert_close(found, wanted[0].softmax(-1), atol=1e-12, rtol=1e-9)


def test_temperature_0_is_the_likeliest_and_odd_settings_are_refused():
    logits = torch.tensor([1.0, 3.0, 2.0])
    assert shaped(logits, Shape(0.0)).tolist() == [0, 1, 0]
    for shape in (
        Shape(-1),
        Shape(1e-308),
        Shape(float("nan")),
        Shape(1, -1),
        Shape(1, 0, 0),
        Shape(1, 0, 2),
    ):
        with pytest.raises(UserError):
            shaped(logits, shape)
