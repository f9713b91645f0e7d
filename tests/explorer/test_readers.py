"""What a model of transformers' can be given, and the sentence where it cannot."""

from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModel

from everyhead.errors import UserError
from everyhead.explorer.limits import longest_of
from everyhead.explorer.pictures import pixels_of
from everyhead.explorer.readers import reader
from everyhead.weights.foreign import Foreign


def foreign(model, **more) -> Foreign:
    return Foreign(model, None, "a model", None, **more)


@pytest.mark.parametrize("takes", ["input_values", "input_features"])
def test_a_model_of_sound_is_refused_in_a_sentence(takes: str):
    model = SimpleNamespace(main_input_name=takes, config=SimpleNamespace())
    with pytest.raises(UserError, match=f"takes {takes}, such as sound, neither text nor"):
        reader(foreign(model))


def test_a_picture_for_a_model_of_text_is_refused(tmp_path):
    model = SimpleNamespace(main_input_name="input_ids", config=SimpleNamespace())
    with pytest.raises(UserError, match="leave --image out"):
        reader(foreign(model), tmp_path / "a.png")


def test_a_picture_that_would_fill_the_memory_is_refused_in_a_sentence(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    Image.new("RGB", (64, 64)).save(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(UserError, match=r"a\.png is no picture that can be opened: .*exceeds"):
        pixels_of(foreign(torch.nn.Linear(1, 1), images=dict), path)


@pytest.mark.parametrize(
    ("kind", "longest"), [("roberta", 20), ("xlm-roberta", 20), ("camembert", 20), ("bert", 22)]
)
def test_positions_counted_from_behind_the_padding_are_not_the_texts(kind: str, longest: int):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 9}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 22, "pad_token_id": 1}
    model = AutoModel.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    assert longest_of(foreign(model)) == longest
    model(torch.full((1, longest), 7))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, longest + 1), 7))
