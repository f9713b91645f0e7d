"""CLIP's loss against Hugging Face's, with equal captions, and its temperature."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

from everyhead.models.clip import PRESETS, Clip, ClipConfig
from everyhead.training.contrast import PairBatch, contrast, pair_loss
from everyhead.training.jobs.clip import retrieval


def logits(n: int = 5) -> torch.Tensor:
    return 3 * torch.randn(n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_different_pairs_are_hugging_faces_mean() -> None:
    wanted = image_text_contrastive_loss(logits())
    found = contrast(logits(), torch.tensor([4, 0, 9, 1, 2])) / 5
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_pairs_that_say_the_same_share_what_is_right() -> None:
    z, meanings = logits(4), torch.tensor([7, 1, 7, 2])
    targets = torch.tensor(
        [[0.5, 0, 0.5, 0], [0, 1, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]
    ).double()
    wanted = (F.cross_entropy(z, targets) + F.cross_entropy(z.t(), targets)) / 2
    torch.testing.assert_close(contrast(z, meanings) / 4, wanted, rtol=0, atol=1e-12)


def test_the_temperature_is_cut_back_to_a_hundred() -> None:
    torch.manual_seed(0)
    ids = {"vocab_size": 20, "bos_id": 1, "eos_id": 3, "pad_id": 0}
    small = {"image_size": 8, "patch_size": 4}
    model = Clip(ClipConfig(**{**PRESETS["tiny"], **ids, **small}))
    with torch.no_grad():
        model.log_scale.fill_(9.0)
    words = torch.tensor([[1, 5, 3], [1, 6, 3]])
    mask = torch.ones_like(words, dtype=torch.bool)
    batch = PairBatch(torch.randn(2, 3, 8, 8), words, mask, torch.arange(2))
    loss = pair_loss(model, batch, 0.0)
    assert model.log_scale.item() == pytest.approx(math.log(100)) and loss.n_tokens == 2
    loss.smoothed.backward()
    assert torch.isfinite(model.log_scale.grad)


def test_retrieval_counts_by_hand() -> None:
    z = torch.tensor([[3.0, 1, 0, 0], [0, 2, 5, 0], [4, 0, 1, 0]])  # pictures by meanings
    found = retrieval(z, torch.tensor([0, 1, 2]), unseen=(2,))
    assert found["zero_shot"] == pytest.approx(1 / 3) and found["chance"] == 0.25
    assert found["text_to_picture"] == pytest.approx(1 / 3)  # 0 → picture 2, 1 → 1, 2 → 1
    assert found["text_to_picture_chance"] == pytest.approx(1 / 3)
    assert found["zero_shot_seen"] == 0.5 and found["zero_shot_unseen"] == 0.0
    assert found["pictures_unseen"] == 1
