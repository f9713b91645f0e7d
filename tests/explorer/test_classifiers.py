"""Models that answer with labels are looked at like others, and their labels are no words."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from everyhead.cli.look_pictures import chosen_group, first_view, scene_values
from everyhead.errors import UserError
from everyhead.explorer.limits import longest_of
from everyhead.explorer.pictures import PictureReader, patch_names
from everyhead.explorer.readers import reader
from everyhead.explorer.sessions import Asked, Session
from everyhead.weights.foreign import open_foreign
from tests.explorer import models

TEXT = "the bank of the river was muddy"
SIZES = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 300}
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}


def bart(kind: type, n_encoder: int = 2, n_decoder: int = 2):
    layers = {"encoder_layers": n_encoder, "decoder_layers": n_decoder}
    small = {**models.SMALL, "decoder_start_token_id": models.END}
    config = transformers.BartConfig(**SIZES, **HEADS, **layers, **small, num_labels=3)
    return models.lively(kind(config)).eval()


def session(model, folder: Path, *, ended: bool = True) -> Session:
    return reader(open_foreign(models.saved(model, folder, ended=ended)))


def test_a_classifier_of_two_halves_reads_the_text_twice(tmp_path: Path):
    asked = session(bart(transformers.BartForSequenceClassification), tmp_path / "bart")
    scene = asked.scene(Asked(TEXT))
    assert [group.name for group in scene.groups] == ["encoder", "decoder", "cross"]
    assert scene.groups[0].rows == scene.groups[2].rows and scene.groups[0].rows[-1] == "</s>"
    assert asked.next_words(Asked(TEXT)) is None
    with pytest.raises(UserError, match="reads one text, twice"):
        asked.scene(Asked(TEXT, target="a mat"))


@pytest.mark.parametrize("kind", ["GPT2ForSequenceClassification", "GPT2ForTokenClassification"])
def test_labels_are_no_next_words(tmp_path: Path, kind: str):
    config = models.gpt2().config
    config.num_labels = 4
    model = models.lively(getattr(transformers, kind)(config)).eval()
    asked = session(model, tmp_path / "gpt2", ended=False)
    assert asked.scene(Asked(TEXT)).output is None
    assert asked.next_words(Asked(TEXT)) is None


def test_the_states_of_each_half_are_told_apart(tmp_path: Path):
    asked = session(bart(transformers.BartForConditionalGeneration), tmp_path / "bart")
    scene = asked.scene(Asked(TEXT, target="the mat"))
    assert list(scene.states) == ["encoder", "decoder"]
    for group in scene.groups:
        half = "decoder" if group.name == "cross" else group.name
        assert scene.states[half].shape == (len(group.rows), 32)


def test_what_was_written_is_counted_before_the_next_word(tmp_path: Path):
    model = bart(transformers.BartForConditionalGeneration)
    folder = models.saved(model, tmp_path / "bart", ended=True)
    asked = reader(open_foreign(folder))
    asked.longest = 12
    with pytest.raises(UserError, match="and the model takes 12"):
        asked.next_words(Asked("the mat", target="a mat and a bank and a river and a mat"))


def test_halves_may_be_of_different_depth(tmp_path: Path):
    asked = session(bart(transformers.BartForConditionalGeneration, 1, 3), tmp_path / "deep")
    scene = asked.scene(Asked("the mat", target="a mat"))
    groups = scene_values([scene], layer=2, head=0)["scenes"][0]["groups"]
    assert [group["name"] for group in groups] == ["decoder", "cross"]
    with pytest.raises(UserError, match="There is no layer 3; the model has 3"):
        scene_values([scene], layer=3, head=None)
    shallow = session(bart(transformers.BartForConditionalGeneration, 3, 1), tmp_path / "shallow")
    scene = shallow.scene(Asked("the mat", target="a mat"))
    assert chosen_group(scene, 2).name == "encoder" and chosen_group(scene).name == "cross"
    assert first_view(scene, 2, 1) == {"view": "head", "group": 0, "layer": 2, "head": 1}


def test_positions_that_lie_behind_the_paddings_id_are_not_counted():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    more = {"vocab_size": 300, "intermediate_size": 32, "max_position_embeddings": 20}
    config = transformers.RobertaPreLayerNormConfig(**sizes, **more, pad_token_id=1)
    model = transformers.RobertaPreLayerNormModel(config).eval()
    assert longest_of(SimpleNamespace(model=model, tokenizer=None)) == 18
    model(torch.full((1, 18), 7))
    with pytest.raises((IndexError, RuntimeError)):
        model(torch.full((1, 19), 7))


def test_a_caption_that_is_too_long_is_a_sentence(tmp_path: Path):
    text = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
    text |= {"num_hidden_layers": 1, "vocab_size": 300, "max_position_embeddings": 8}
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4}
    vision |= {"num_hidden_layers": 1, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    model = transformers.CLIPModel(config).eval()
    looked = PictureReader.__new__(PictureReader)
    looked.model, looked.name, looked.image = model, "clip", tmp_path / "a.png"
    looked.foreign = SimpleNamespace(tokenizer=models.tokenizer(), images=None, model=model)
    looked.pixels = torch.rand(1, 3, 32, 32)
    with pytest.raises(UserError, match="and the model takes 8: look at a shorter one"):
        looked.scene(Asked(TEXT))
    groups = looked.scene(Asked("the mat")).groups
    assert {group.name for group in groups} == {"text", "vision"}


def test_patches_are_those_of_the_picture_that_is_looked_at():
    config = transformers.Dinov2Config(image_size=518, patch_size=14)
    names = patch_names(config, 257, (224, 224))
    assert names[:2] == ["[CLS]", "0,0"] and names[-1] == "15,15" and len(names) == 257
    wide = patch_names(config, 1 + 2 * 3, (28, 42))
    assert wide == ["[CLS]", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2"]
    assert patch_names(config, 5, (224, 224)) == list("01234")
