"""Performer: against a plain loop over the whole model; a cache whose size is fixed; looking."""

import pytest
import torch
from torch import Tensor, nn

import everyhead
from everyhead.generation.prompted_beam import prompted_beam
from everyhead.inspection.costs import held_numbers
from everyhead.layers import probe
from everyhead.layers.favor import FavorAttention
from everyhead.models.performer import PRESETS, Performer, PerformerConfig
from everyhead.weights.folder import load_model, save_model

SMALL = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2, "n_features": 24}
NEAR = {"rtol": 1e-5, "atol": 1e-5}


def model(**choices: object) -> Performer:
    torch.manual_seed(0)
    made = Performer(PerformerConfig(**{**SMALL, "max_len": 600, "dropout": 0.0, **choices}))
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(8) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
    return made.eval()


def rows(n: int, length: int) -> Tensor:
    return torch.randint(0, 23, (n, length), generator=torch.Generator().manual_seed(3))


def plain(made: Performer, ids: Tensor) -> Tensor:
    """The logits by the equations, each matrix of attention made whole with a loop of features."""
    x = made.token_embed.weight[ids] + made.positions.weight[: ids.shape[1]]
    for block in made.decoder.blocks:
        own, norm = block.self_attn, block.self_attn_norm
        y = nn.functional.layer_norm(x, (32,), norm.weight, norm.bias)
        out = []
        for h in range(4):
            part = slice(8 * h, 8 * h + 8)
            q, k, v = (
                y @ m.weight[part].T + m.bias[part] for m in (own.q_proj, own.k_proj, own.v_proj)
            )
            phi = [
                (z * 8**-0.25 @ own.projection.to(z).T - (z * 8**-0.25).square().sum(-1, True) / 2)
                for z in (q, k)
            ]
            shares = phi[0].exp() @ phi[1].exp().transpose(-2, -1)
            shares = shares.tril()
            out.append(shares / shares.sum(-1, keepdim=True) @ v)
        x = x + own.o_proj(torch.cat(out, -1))
        x = x + block.feed_forward(block.feed_forward_norm(x))
    return made.head(made.decoder.norm(x))


@torch.no_grad()
def test_logits_are_the_equations() -> None:
    made, ids = model().double(), rows(2, 150)
    torch.testing.assert_close(made(ids), plain(made, ids), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_the_cache_holds_as_much_after_500_tokens_as_after_one() -> None:
    made, ids = model(), rows(3, 500)
    cache, sizes = made.cache(500), []
    for piece in ids.split([1, 99, 400], 1):
        made.hidden(piece, cache=cache)
        sizes.append(held_numbers(cache))
    assert len(set(sizes)) == 1 and cache.length == 500
    assert sizes[0] == 2 * 3 * 4 * (24 * (8 + 1) + 1), "layers · rows · heads · (m·(D + 1) + 1)"
    cache.reorder(torch.tensor([2, 0]))
    assert held_numbers(cache) == sizes[0] * 2 // 3
    with pytest.raises(ValueError, match="none can be taken away"):
        cache.crop(400)
    cache.crop(0)
    again = made.hidden(ids[:, :40], cache=cache)
    torch.testing.assert_close(again, made.hidden(ids[:, :40]), **NEAR)


@torch.no_grad()
def test_beams_are_those_of_the_whole_text_each_time() -> None:
    """A plain beam search without a cache finds the same."""
    made = model(vocab_size=12, eos_id=0)
    prompt, width, steps = [5, 3, 7], 3, 5
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        grown = []
        for score, ids in beams:
            p = made(torch.tensor([prompt + ids]))[0, -1].log_softmax(-1).tolist()
            grown += [(score + each, [*ids, i]) for i, each in enumerate(p)]
        beams = sorted(grown, reverse=True)[:width]
    found = prompted_beam(made, [prompt, [2]], beam=width, limit=steps)
    assert list(found[0][0].ids) == beams[0][1]


@torch.no_grad()
def test_looked_at_while_it_writes_there_is_a_matrix_and_the_same_text() -> None:
    made, ids = model(), rows(2, 9)
    with everyhead.record(made) as trace:
        cache = made.cache(9)
        seen = [made.hidden(piece, cache=cache) for piece in ids.split([4, 1, 1, 3], 1)]
    torch.testing.assert_close(torch.cat(seen, 1), made.hidden(ids), **NEAR)
    place = trace["decoder.1.self_attn"]
    assert place.weights().shape == (2, 4, 9, 9)
    with everyhead.record(made) as whole:
        made.hidden(ids)
    torch.testing.assert_close(
        place.weights(), whole["decoder.1.self_attn"].weights(), rtol=1e-4, atol=1e-5
    )


class Keeps:
    """An observer that begins to look when much is read already."""

    def __init__(self) -> None:
        self.seen: list[tuple[FavorAttention, object, object, Tensor]] = []

    def attention(self, module, parts, mask, attend):
        self.seen.append((module, parts, mask, attend(parts, mask)))
        return self.seen[-1][-1]


@torch.no_grad()
def test_law_1_holds_behind_a_sum_whose_keys_show_as_features() -> None:
    made, ids, keeps = model(), rows(2, 20), Keeps()
    cache = made.cache(20)
    made.hidden(ids[:, :12], cache=cache)
    probe.attach(keeps)
    try:
        made.hidden(ids[:, 12:], cache=cache)
    finally:
        probe.detach(keeps)
    for module, parts, mask, out in keeps.seen:
        matrix = module.weights(parts, mask)
        assert matrix.shape == (2, 4, 8, 24 + 8)
        torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 4, 8))
        torch.testing.assert_close(module.mix(matrix, parts, mask), out, **NEAR)


@torch.no_grad()
def test_documents_in_one_row_do_not_see_each_other() -> None:
    made, ids = model(positions="rotary"), rows(2, 150)
    documents = torch.arange(150).expand(2, 150) // 60
    found = made.hidden(ids, documents=documents)
    for start, end in ((0, 60), (60, 120), (120, 150)):
        torch.testing.assert_close(found[:, start:end], made.hidden(ids[:, start:end]), **NEAR)
    other = ids.clone()
    other[:, :60] = (other[:, :60] + 1) % 23
    assert torch.equal(made.hidden(other, documents=documents)[:, 60:], found[:, 60:])


@torch.no_grad()
def test_its_folder_brings_the_projections_back(tmp_path) -> None:
    made = model()
    (note,) = save_model(made, tmp_path)
    assert "Only everyhead can open" in note
    again = load_model(tmp_path)
    assert torch.equal(again(rows(2, 9)), made(rows(2, 9)))


def test_redrawn_it_is_another_model_and_learns_on() -> None:
    made, ids = model(), rows(2, 9)
    before = made(ids)
    made.train().redraw()
    assert not torch.allclose(made.eval()(ids), before, atol=1e-4)
    with pytest.raises(ValueError, match="fixed in eval"):
        made.redraw()


def test_a_tiny_one_learns_a_batch_by_heart() -> None:
    torch.manual_seed(0)
    made = Performer(PerformerConfig(vocab_size=23, dropout=0.0, **PRESETS["tiny"]))
    ids, adam = rows(4, 12), torch.optim.Adam(made.parameters(), lr=3e-3)
    for _ in range(60):
        loss = nn.functional.cross_entropy(made(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert float(loss) < 0.1
