"""Transformer-XL as a family: beams, folders, its start, learning; its equations: test_relative."""

import pytest
import torch
from torch import Tensor, nn

import everyhead
from everyhead.generation.prompted_beam import prompted_beam
from everyhead.models.transformer_xl import PRESETS, TransformerXL, TransformerXLConfig
from everyhead.weights.folder import load_model, save_model
from everyhead.weights.state import own_slots

SMALL = {"vocab_size": 12, "d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48}


def model(**choices: object) -> TransformerXL:
    torch.manual_seed(0)
    made = TransformerXL(TransformerXLConfig(**SMALL, memory_len=4, dropout=0.0, **choices))
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(8)
    return made.eval()


def rows(n: int, length: int) -> Tensor:
    return torch.randint(0, 12, (n, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def test_beams_are_those_of_the_whole_text_each_time() -> None:
    made = model()
    prompt, width, steps = [5, 3, 7, 1, 1, 4], 3, 6
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        grown = []
        for score, ids in beams:
            p = made(torch.tensor([prompt + ids]))[0, -1].log_softmax(-1).tolist()
            grown += [(score + each, [*ids, i]) for i, each in enumerate(p)]
        beams = sorted(grown, reverse=True)[:width]
    found = prompted_beam(made, [prompt, [2]], beam=width, limit=steps)
    assert list(found[0][0].ids) == beams[0][1]


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_its_folder_brings_it_back_and_shared_biases_are_one(tied: bool, tmp_path) -> None:
    made = model(tie_biases=tied, norm="pre")
    (note,) = save_model(made, tmp_path)
    assert "Only everyhead can open" in note
    again = load_model(tmp_path)
    assert torch.equal(again(rows(2, 9)), made(rows(2, 9)))
    first, second = (block.self_attn.u for block in again.decoder.blocks)
    assert (first is second) == tied
    assert (
        any(len(slot.ours) > 1 and slot.ours[0].endswith("u") for slot in own_slots(made)) == tied
    )


@torch.no_grad()
def test_the_text_may_be_longer_than_anything_it_was_made_for() -> None:
    """Nothing in it has a length but the memory, and what lies beyond is not seen."""
    made, ids = model().double(), rows(1, 700)
    hidden = made.hidden(ids)
    reach = 2 * 4  # layers · memory
    near = made.hidden(ids[:, 600 - reach :])[:, reach:]
    torch.testing.assert_close(hidden[:, 600:], near, rtol=1e-9, atol=1e-9)
    assert everyhead.MODELS["transformer-xl"].config(**SMALL).max_len > 1_000_000


def test_it_starts_as_published_and_says_what_does_not_fit() -> None:
    torch.manual_seed(0)
    made = TransformerXL(TransformerXLConfig(**{**SMALL, "d_model": 128, "vocab_size": 500}))
    for name, p in made.named_parameters():
        if p.dim() > 1:
            assert float(p.detach().std()) == pytest.approx(0.02, rel=0.25), name
    with pytest.raises(ValueError, match="does not divide into 4 heads"):
        TransformerXLConfig(**{**SMALL, "d_model": 30})


@torch.no_grad()
def test_recorded_it_shows_its_window() -> None:
    made, ids = TransformerXL(TransformerXLConfig(**SMALL, memory_len=4)).eval(), rows(2, 9)
    with everyhead.record(made) as trace:
        made.hidden(ids)
    whole = trace["decoder.1.self_attn"].weights()
    distance = torch.arange(9)[:, None] - torch.arange(9)
    assert not whole[..., (distance < 0) | (distance > 4)].any()
    assert (whole[..., (distance >= 0) & (distance <= 4)] > 0).all()


def test_a_tiny_one_learns_a_batch_by_heart_over_segments() -> None:
    torch.manual_seed(0)
    numbers = {**PRESETS["tiny"], "segment_len": 5, "memory_len": 5}
    made = TransformerXL(TransformerXLConfig(vocab_size=12, dropout=0.0, **numbers))
    ids, adam = rows(4, 13), torch.optim.Adam(made.parameters(), lr=3e-3)
    for _ in range(80):
        loss = nn.functional.cross_entropy(made(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert float(loss) < 0.1
