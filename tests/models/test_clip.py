"""CLIP against Hugging Face's: features, logits, gradients, where a text ends."""

import pytest
import torch
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

from everyhead.models.clip import PRESETS, Clip, ClipConfig
from everyhead.weights import clip
from everyhead.weights.state import collect, fill

TOWER = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
TEXT = {**TOWER, "vocab_size": 60, "max_position_embeddings": 12, "num_hidden_layers": 2}
IMAGE = {**TOWER, "hidden_size": 24, "image_size": 8, "patch_size": 4, "num_hidden_layers": 2}
END, PAD = 59, 1


def theirs(text: dict | None = None, image: dict | None = None, *, noise: float = 0.2) -> nn.Module:
    torch.manual_seed(0)
    ids = {"bos_token_id": 58, "eos_token_id": END, "pad_token_id": PAD}
    config = CLIPConfig(
        text_config={**TEXT, **ids, **(text or {})},
        vision_config={**IMAGE, **(image or {})},
        projection_dim=20,
    )
    model = CLIPModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(noise * torch.randn_like(p))
    return model


def ours_of(model: nn.Module) -> Clip:
    """Ours with the same weights, by the table that also opens folders."""
    values = model.config.to_dict()
    ours = Clip(clip.config(values, "a test")).eval()
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fill(ours, clip.tidy(tensors, values).tensors, clip.slots(ours))
    return ours


def pixels(n: int = 3, size: tuple[int, int] = (8, 8)) -> Tensor:
    return torch.randn(n, 3, *size, generator=torch.Generator().manual_seed(1))


def texts(end: int = END) -> tuple[Tensor, Tensor]:
    """Four texts of several lengths, padded on the right, and where they are real."""
    rng = torch.Generator().manual_seed(2)
    lengths = torch.tensor([9, 4, 2, 7])
    ids = torch.randint(2, 58, (4, 9), generator=rng)
    real = torch.arange(9) < lengths[:, None]
    ids[:, 0], ids[torch.arange(4), lengths - 1] = 58, end
    return ids.masked_fill(~real, PAD), real


CHOICES = [
    ({}, {}),
    ({"hidden_act": "gelu"}, {"hidden_act": "gelu", "num_channels": 3}),
    ({"layer_norm_eps": 1e-3}, {"layer_norm_eps": 1e-3, "patch_size": 2}),
]


@pytest.mark.parametrize(("text", "image"), CHOICES)
def test_features_and_logits_are_hugging_faces(text: dict, image: dict) -> None:
    model = theirs(text, image)
    ours, (ids, real), given = ours_of(model), texts(), pixels()
    with torch.no_grad():
        wanted = model(input_ids=ids, pixel_values=given, attention_mask=real.long())
        near = {"rtol": 0, "atol": 1e-5}
        images, words = ours.image_features(given), ours.text_features(ids, real)
        torch.testing.assert_close(nn.functional.normalize(images), wanted.image_embeds, **near)
        torch.testing.assert_close(nn.functional.normalize(words), wanted.text_embeds, **near)
        features = model.get_text_features(ids, attention_mask=real.long()).pooler_output
        torch.testing.assert_close(words, features, rtol=0, atol=2e-5)
        torch.testing.assert_close(
            ours(given, ids, real), wanted.logits_per_image, rtol=1e-5, atol=1e-5
        )


def test_the_hidden_states_of_both_towers_are_hugging_faces() -> None:
    model = theirs()
    ours, (ids, real), given = ours_of(model), texts(), pixels()
    with torch.no_grad():
        wanted = model.vision_model(given).last_hidden_state
        torch.testing.assert_close(ours.image_hidden(given), wanted, rtol=0, atol=2e-5)
        wanted = model.text_model(ids, attention_mask=real.long()).last_hidden_state
        torch.testing.assert_close(
            ours.text_hidden(ids, real)[real], wanted[real], rtol=0, atol=2e-5
        )


def test_pictures_of_another_size_are_read_as_hugging_face_interpolates() -> None:
    model, given = theirs(), pixels(2, (8, 16))
    with torch.no_grad():
        wanted = model.get_image_features(given, interpolate_pos_encoding=True).pooler_output
        torch.testing.assert_close(ours_of(model).image_features(given), wanted, rtol=0, atol=2e-5)


def test_an_old_config_reads_each_text_at_its_largest_id() -> None:
    model = theirs({"eos_token_id": 2})
    ours, (ids, real) = ours_of(model), texts()
    ids[0, 3] = 2  # an ordinary piece there, the end by its config
    with torch.no_grad():
        wanted = model.get_text_features(ids, attention_mask=real.long()).pooler_output
        torch.testing.assert_close(ours.text_features(ids, real), wanted, rtol=0, atol=2e-5)
    assert ours.config.eos_id is None and ours.ends(ids, real).tolist() == [8, 3, 1, 6]


def test_the_end_is_the_first_even_where_padding_has_its_id() -> None:
    ours, (ids, real) = ours_of(theirs({"pad_token_id": END})), texts()
    ids = ids.masked_fill(~real, END)
    with torch.no_grad():
        assert ours.ends(ids).tolist() == ours.ends(ids, real).tolist() == [8, 3, 1, 6]
        torch.testing.assert_close(
            ours.text_features(ids), ours.text_features(ids, real), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("left", [False, True])
def test_padding_of_a_text_changes_nothing(left: bool) -> None:
    ours, (ids, real) = ours_of(theirs()), texts()
    alone = torch.cat(
        [ours.text_features(row[keep][None]) for row, keep in zip(ids, real, strict=True)]
    )
    extra = torch.full((4, 2), 7), torch.zeros(4, 2, dtype=torch.bool)
    if left:
        order = torch.stack([torch.cat([(~r).nonzero()[:, 0], r.nonzero()[:, 0]]) for r in real])
        ids, real = ids.gather(1, order), real.gather(1, order)
        ids, real = torch.cat([extra[0], ids], 1), torch.cat([extra[1], real], 1)
    else:
        ids, real = torch.cat([ids, extra[0]], 1), torch.cat([real, extra[1]], 1)
    torch.testing.assert_close(ours.text_features(ids, real), alone, rtol=0, atol=1e-5)


def test_nan_under_padding_reaches_neither_feature_nor_gradient() -> None:
    ours, (ids, real) = ours_of(theirs()), texts()
    clean = ours.text_features(ids, real)
    clean.sum().backward()
    wanted = ours.text_positions.weight.grad.clone()
    with torch.no_grad():
        ours.embed.weight[PAD] = float("nan")
    ours.zero_grad()
    found = ours.text_features(ids, real)
    found.sum().backward()
    assert torch.equal(found, clean)
    assert torch.equal(ours.text_positions.weight.grad, wanted)


def test_the_text_tower_never_sees_the_future() -> None:
    ours, (ids, _) = ours_of(theirs()), texts()
    other = ids.clone()
    other[:, 5:] = (other[:, 5:] + 1) % 58
    assert torch.equal(ours.text_hidden(ids)[:, :5], ours.text_hidden(other)[:, :5])


def test_gradients_are_hugging_faces() -> None:
    model = theirs(noise=0.1)
    ours, (ids, real), given = ours_of(model), texts(), pixels(4)
    model(
        input_ids=ids, pixel_values=given, attention_mask=real.long(), return_loss=True
    ).loss.backward()
    logits, right = ours(given, ids, real), torch.arange(4)
    cross = nn.functional.cross_entropy
    ((cross(logits, right) + cross(logits.t(), right)) / 2).backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    with torch.no_grad():
        for p in ours.parameters():
            p.copy_(p.grad)
    for name, tensor in collect(ours, clip.slots(ours)).items():
        torch.testing.assert_close(tensor, wanted[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_at_published_size_and_scale_with_one_layer() -> None:
    model = theirs(
        {**CLIPConfig().text_config.to_dict(), "num_hidden_layers": 1},
        {**CLIPConfig().vision_config.to_dict(), "num_hidden_layers": 1},
        noise=0.0,
    )
    ours, given = ours_of(model), pixels(2, (224, 224))
    ids = torch.tensor([[49406, 320, 1125, 49407], [49406, 1929, 49407, 49407]])
    with torch.no_grad():
        wanted = model(input_ids=ids, pixel_values=given).logits_per_image
        torch.testing.assert_close(ours(given, ids), wanted, rtol=0, atol=1e-5)


def test_bf16_is_near_float32() -> None:
    ours, (ids, real), given = ours_of(theirs()), texts(), pixels()
    with torch.no_grad():
        exact = ours.image_features(given), ours.text_features(ids, real)
        ours.to(torch.bfloat16)
        for found, wanted in zip(
            (ours.image_features(given), ours.text_features(ids, real)), exact, strict=True
        ):
            assert float((found.float() - wanted).norm() / wanted.norm()) < 1.5e-2


def test_parameters_are_the_published_ones_to_the_last() -> None:
    for preset, published in {"base-32": 151_277_313, "base-16": 149_620_737}.items():
        with torch.device("meta"):
            model = Clip(ClipConfig(**PRESETS[preset]))
        assert sum(p.numel() for p in model.parameters()) == published


def test_a_text_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="has no end: CLIP reads it at the token 59"):
        ours_of(theirs()).text_features(torch.tensor([[58, 3, 4]]))


def test_a_text_beyond_the_longest_is_refused() -> None:
    with pytest.raises(ValueError, match="13 tokens are more than the model's max_len 12"):
        ours_of(theirs()).text_features(torch.full((1, 13), 3))


def test_the_temperature_starts_where_the_paper_says() -> None:
    model = Clip(ClipConfig(**PRESETS["tiny"], vocab_size=60, eos_id=END))
    assert model.log_scale.exp().item() == pytest.approx(1 / 0.07)
