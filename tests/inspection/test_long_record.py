"""Any head and row at 131,072 tokens, recorded and looked at in bounded memory."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from everyhead.explorer.traced import PlaceLayer
from everyhead.inspection.trace import record
from everyhead.layers import masks
from everyhead.layers.favor import FavorAttention
from everyhead.layers.lsh import LshAttention
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.positions import SinusoidalPositions
from everyhead.layers.relative import RelativeAttention
from everyhead.models.t5 import T5, T5Config
from tests.laws.text_decoders import TEXT_DECODERS, WITH_ATTENTION

pytestmark = pytest.mark.slow
N, WIDTH, HEADS = 131_072, 16, 2
GIGABYTE = 10**9


def status(name: str) -> int:
    """Bytes, of the lines of /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) * 1024


def relative() -> MultiHeadAttention:
    return RelativeAttention(
        WIDTH, HEADS, distances=SinusoidalPositions(129, WIDTH, layout="halves")
    )


METHODS: dict[str, tuple[Callable[[], MultiHeadAttention], Mask]] = {
    "window": (lambda: MultiHeadAttention(WIDTH, HEADS), masks.window(128, 0)),
    "features": (lambda: FavorAttention(WIDTH, HEADS, n_features=16), masks.causal()),
    "LSH": (lambda: LshAttention(WIDTH, HEADS, n_buckets=512, n_rounds=1), masks.causal()),
    "memory": (relative, masks.causal()),
}


@pytest.mark.parametrize("name", METHODS)
@torch.no_grad()
def test_a_row_of_a_head_is_what_the_fast_result_used(name: str) -> None:
    torch.manual_seed(0)
    make, mask = METHODS[name]
    module = make().eval()
    x = torch.randn(1, N, WIDTH)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak
    before = status("VmRSS")
    with record(module) as trace:
        out = module(x, mask)
    place = trace[trace.places()[0]]
    assert place.shape == (1, HEADS, N, N)
    rows = torch.tensor([0, 1, 65_536, N - 1])
    heads = torch.cat([place.weights(heads=[h], rows=rows) for h in range(HEADS)], 1)
    assert heads.shape == (1, HEADS, 4, N)
    mixed = module.mix(heads, place.parts, mask)  # (1, H, 4, D)
    told = module.o_proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(told, out[:, rows], rtol=0, atol=1e-5)
    layer = PlaceLayer(place)
    assert layer.head(1, rows.numpy()).shape == layer.visible(1, rows.numpy()).shape == (4, N)
    assert status("VmHWM") - before < GIGABYTE  # a matrix of one head would be 69 GB


@pytest.mark.parametrize("family", WITH_ATTENTION)
def test_what_was_kept_stays_when_the_model_learns_on(family: str) -> None:
    torch.manual_seed(0)
    model = TEXT_DECODERS[family]().eval()
    ids = torch.randint(1, 23, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), record(model) as trace:
        model(ids)
    before = [trace[name].weights() for name in trace.places()]
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(tensor.flip(0).contiguous())
    for name, wanted in zip(trace.places(), before, strict=True):
        assert torch.equal(trace[name].weights(), wanted)


def test_nothing_n_by_n_is_kept_when_nobody_looks_any_more() -> None:
    readings = []
    model = T5(
        T5Config(
            vocab_size=23,
            d_model=16,
            n_heads=2,
            d_head=8,
            d_ff=32,
            n_encoder_layers=1,
            n_decoder_layers=1,
        )
    ).eval()
    with torch.inference_mode(), record(model) as trace:
        model(torch.ones(1, 40, dtype=torch.long), torch.ones(1, 3, dtype=torch.long))
        readings.append(len(trace._recorder._readings._known))
    readings.append(len(trace._recorder._readings._known))
    assert readings[0] > 0 and readings[1] == 0
