"""VisionText: the laws, and a naive pass without prefix rule, packing or cache to agree with."""

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.models.vision_text import PRESETS, VisionText, VisionTextConfig

SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "image_size": 8, "patch_size": 4}


def build(**choices) -> VisionText:
    torch.manual_seed(0)
    model = VisionText(VisionTextConfig(vocab_size=23, max_len=12, **{**SMALL, **choices})).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def picture(n: int = 4) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def words(*lengths: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(
        3, 23, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(2)
    )
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return ids.masked_fill(~real, 2), real


def naive(model: VisionText, pixels: Tensor, ids: Tensor) -> Tensor:
    """One picture and its words, with the whole matrix of who sees whom written out."""
    patches = nn.functional.conv2d(
        pixels, model.patches.proj.weight.unflatten(1, (3, 4, 4)), model.patches.proj.bias, stride=4
    )
    patches = patches.flatten(2).transpose(1, 2) + model.patch_positions.weight
    x = torch.cat([patches, model.embed.weight[ids] + model.positions.weight[: ids.shape[1]]], 1)
    n, total = patches.shape[1], x.shape[1]
    seen = torch.tensor([[j < n or j <= i for j in range(total)] for i in range(total)])
    return model.decoder(x, masks.dense(seen))[:, n:]


def test_all_see_the_picture_and_words_see_those_before_them() -> None:
    model, (ids, _) = build(), words(7, 7)
    torch.testing.assert_close(
        model.hidden(picture(2), ids), naive(model, picture(2), ids), rtol=0, atol=1e-5
    )


def test_every_patch_and_every_word_before_matters() -> None:
    model, (ids, _) = build(), words(5)
    pixels = picture(1).requires_grad_()
    model.hidden(pixels, ids)[0, 0].sum().backward()
    assert (pixels.grad.unflatten(2, (2, 4)).unflatten(4, (2, 4)).abs().sum((0, 1, 3, 5)) > 0).all()


@pytest.mark.parametrize("left", [False, True])
def test_padding_changes_nothing(left: bool) -> None:
    model, (ids, real) = build(), words(6, 3, 1, 5)
    alone = [model.hidden(picture()[i : i + 1], ids[i : i + 1, real[i]])[0] for i in range(4)]
    if left:
        order = torch.stack([torch.cat([(~r).nonzero()[:, 0], r.nonzero()[:, 0]]) for r in real])
        ids, real = ids.gather(1, order), real.gather(1, order)
    found = model.hidden(picture(), ids, real)
    torch.testing.assert_close(found[real], torch.cat(alone), rtol=0, atol=1e-5)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(model.real_hidden(picture(), ids, real), found[real])


def test_nan_under_padding_reaches_nothing() -> None:
    model, (ids, real) = build(), words(6, 3, 1, 5)
    clean = model.real_hidden(picture(), ids, real)
    clean.sum().backward()
    wanted = model.patches.proj.weight.grad.clone()
    model.zero_grad()
    with torch.no_grad():
        model.embed.weight[2] = float("nan")
    found = model.real_hidden(picture(), ids, real)
    found.sum().backward()
    assert torch.equal(found, clean) and torch.equal(model.patches.proj.weight.grad, wanted)


def test_the_future_is_never_seen() -> None:
    model, (ids, _) = build(), words(7, 7)
    other = ids.clone()
    other[:, 4:] = (other[:, 4:] + 5) % 23
    before = model.hidden(picture(2), ids)[:, :4]
    assert torch.equal(model.hidden(picture(2), other)[:, :4], before)


@pytest.mark.parametrize("width", [1, 2, 3, 7])
@pytest.mark.parametrize("with_picture", [True, False])
def test_a_cache_changes_nothing(width: int, with_picture: bool) -> None:
    model, (ids, _) = build(), words(7, 7)
    pixels = picture(2) if with_picture else None
    cache, found = model.cache(7), []
    for i, piece in enumerate(ids.split(width, 1)):
        found.append(model.hidden(None if i else pixels, piece, cache=cache))
    wanted = model.hidden(pixels, ids)
    torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=0, atol=1e-5)


def test_a_cache_goes_on_after_left_padding_and_moved_rows() -> None:
    model, (ids, real) = build(), words(6, 3, 1, 5)
    order = torch.stack([torch.cat([(~r).nonzero()[:, 0], r.nonzero()[:, 0]]) for r in real])
    left, seen = ids.gather(1, order), real.gather(1, order)
    cache, move, new = model.cache(8), torch.tensor([3, 3, 0]), torch.tensor([[5], [9], [4]])
    model.hidden(picture(), left, seen, cache=cache)
    cache.reorder(move)
    found = model.hidden(None, new, cache=cache)
    for row, origin in enumerate(move.tolist()):
        text = torch.cat([ids[origin, real[origin]], new[row]])[None]
        wanted = model.hidden(picture()[origin : origin + 1], text)[:, -1:]
        torch.testing.assert_close(found[row : row + 1], wanted, rtol=0, atol=1e-5)


def test_texts_in_a_row_see_the_picture_and_not_each_other() -> None:
    model, (ids, _) = build(), words(9, 9)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2], [5, 5, 1, 1, 1, 1, 1, 1, 1]])
    found = model.hidden(picture(2), ids, documents=documents)
    for row in range(2):
        for each in documents[row].unique():
            keep = documents[row] == each
            alone = model.hidden(picture(2)[row : row + 1], ids[row : row + 1, keep])
            torch.testing.assert_close(found[row, keep][None], alone, rtol=0, atol=1e-5)


def test_a_row_may_be_longer_than_max_len_where_its_texts_are_not() -> None:
    model, documents = build(), torch.arange(20)[None] // 10
    assert model.hidden(picture(1), torch.full((1, 20), 4), documents=documents).shape[1] == 20
    with pytest.raises(ValueError, match="13 words are more than the model's max_len 12"):
        model.hidden(picture(1), torch.full((1, 13), 4))


def test_a_cache_takes_one_picture_and_one_text() -> None:
    model, (ids, _) = build(), words(3)
    cache = model.cache(9)
    model.hidden(picture(1), ids, cache=cache)
    with pytest.raises(ValueError, match="one picture and one text"):
        model.hidden(picture(1), ids, cache=cache)
    with pytest.raises(ValueError, match="one picture and one text"):
        model.hidden(picture(1), ids, documents=torch.zeros_like(ids), cache=model.cache(3))


def test_padding_is_never_predicted() -> None:
    model, (ids, real) = build(), words(3, 2)
    logits = model(picture(2), ids, real)
    assert logits.shape == (2, 3, 23) and (logits[..., 2] == float("-inf")).all()


@pytest.mark.slow
def test_the_tiny_preset_overfits_one_batch() -> None:
    torch.manual_seed(0)
    model = VisionText(VisionTextConfig(vocab_size=23, **PRESETS["tiny"]))
    pixels, answers = torch.randn(4, 3, 32, 32), torch.tensor([4, 5, 6, 7])
    ids = torch.full((4, 3), 9)  # one question; only the picture tells the answers apart
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(pixels, ids)[:, -1], answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
