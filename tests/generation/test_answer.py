"""Answers about pictures: greedy, batched and alone, against a loop without a cache."""

import numpy as np
import pytest
import torch
from torch import Tensor

from everyhead.data.image_preparation import Preparation
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.generation.answer import answer, class_probabilities, text_probabilities
from everyhead.models.clip import Clip, ClipConfig
from everyhead.models.vision_text import VisionText, VisionTextConfig
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig

SMALL = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48, "image_size": 8, "patch_size": 4}
LINES = ["what color is the blue shape?", "is there a red circle?", "no yes triangle"] * 4
QUESTIONS = ["what color is it?", "is there a circle?", "no"]
TEXT = TextTokenizer.train(LINES, kind="wordpiece", vocab_size=120)
COMPANION = TextAndPictures(TEXT, Preparation(size=(8, 8)))


def random(model):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return model.eval()


def decoder(seed: int) -> VisionText:
    torch.manual_seed(seed)
    ends = {"sep_id": TEXT.sep_id, "eos_id": TEXT.sep_id, "pad_id": TEXT.pad_id}
    return random(
        VisionText(VisionTextConfig(**SMALL, **ends, vocab_size=TEXT.vocab_size, max_len=14))
    )


def pixels(n: int) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def naive(model: VisionText, picture: Tensor, question: str) -> tuple[list[int], float]:
    """The whole text anew for every piece."""
    ids, p = TEXT.encode(question), 1.0
    start, room = len(ids), model.config.max_len - len(ids)
    for _ in range(room + 1):
        best = model(picture[None], torch.tensor([ids]))[0, -1].softmax(-1).max(-1)
        p *= float(best.values)
        if int(best.indices) == model.config.eos_id or len(ids) - start >= room:
            break
        ids.append(int(best.indices))
    return ids[start:], p


@pytest.mark.parametrize("seed", range(4))
def test_answers_are_those_of_a_loop_without_a_cache(seed: int) -> None:
    model, pictures = decoder(seed), pixels(3)
    found = answer(model, COMPANION, pictures, QUESTIONS)
    with torch.no_grad():
        for row, question in enumerate(QUESTIONS):
            alone = answer(model, COMPANION, pictures[row : row + 1], [question])[0]
            ids, p = naive(model, pictures[row], question)
            assert alone.text == TEXT.decode(ids)
            assert alone.probability == pytest.approx(p, rel=1e-4)
            n = len(TEXT.encode(question))
            if len(ids) < model.config.max_len - max(len(TEXT.encode(q)) for q in QUESTIONS):
                assert found[row] == (alone.text, pytest.approx(p, rel=1e-4)), n


def test_an_answer_ends_where_there_is_no_more_room() -> None:
    model = decoder(0)
    with torch.no_grad():  # never an end
        model.embed.weight[TEXT.sep_id] = 0
        model.decoder.norm.bias += 5 * model.embed.weight[30]
    (found,) = answer(model, COMPANION, pixels(1), ["no"])
    assert len(TEXT.encode(found.text, special=False)) <= model.config.max_len


def test_chinese_answers_have_no_blanks_inside() -> None:
    lines = ["图 形 是 什 么 颜 色 ？", "深蓝色 blue 三角形"]
    tokenizer = TextTokenizer.train(lines * 3, kind="wordpiece", vocab_size=120)
    torch.manual_seed(0)
    ends = {"sep_id": tokenizer.sep_id, "eos_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id}
    sizes = {"vocab_size": tokenizer.vocab_size, "max_len": 32}
    model = VisionText(VisionTextConfig(**SMALL, **ends, **sizes))
    wanted = "深蓝色 blue 三角形"
    ids = [*tokenizer.encode(wanted, special=False), tokenizer.sep_id]
    steps = iter(ids)
    model.head = lambda hidden: torch.eye(tokenizer.vocab_size)[[next(steps)]] * 50
    beside = TextAndPictures(tokenizer, COMPANION.pictures)
    (found,) = answer(model.eval(), beside, pixels(1), ["图形是什么颜色？"])
    assert found.text == wanted


def test_without_a_picture_it_answers_too() -> None:
    (found,) = answer(decoder(1), COMPANION, None, ["is there a circle?"])
    assert isinstance(found.text, str) and 0 < found.probability <= 1


def test_a_question_that_is_too_long_is_a_sentence() -> None:
    with pytest.raises(UserError, match="so that an answer fits behind it"):
        answer(decoder(0), COMPANION, pixels(1), ["color " * 20])


def test_shares_of_classes_sum_to_one() -> None:
    torch.manual_seed(0)
    model = random(VisionTransformer(VisionTransformerConfig(**SMALL, n_classes=3)))
    found = class_probabilities(model, pixels(4))
    assert found.shape == (4, 3) and np.allclose(found.sum(1), 1, atol=1e-6)
    assert torch.equal(found.argmax(1), model(pixels(4)).argmax(1))


def test_shares_of_texts_are_clips_softmax_whatever_their_lengths() -> None:
    torch.manual_seed(0)
    ends = {"bos_id": TEXT.cls_id, "eos_id": TEXT.sep_id, "pad_id": TEXT.pad_id}
    ends["vocab_size"] = TEXT.vocab_size
    image = {"image_d_model": 32, "image_n_heads": 4, "image_n_layers": 1, "image_d_ff": 48}
    model = random(Clip(ClipConfig(**SMALL, **image, **ends, max_len=12)))
    texts = ["a red circle", "no", "is there a blue triangle"]
    found = text_probabilities(model, COMPANION, pixels(2), texts)
    rows = [TEXT.encode(text) for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [TEXT.pad_id] * (longest - len(row)) for row in rows])
    wanted = model(pixels(2), ids, ids != TEXT.pad_id).softmax(-1)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="and the model takes 12: shorten it"):
        text_probabilities(model, COMPANION, pixels(1), ["circle " * 30])
