"""Sessions of models that we did not write: the scene's weights are transformers' eager ones."""

from pathlib import Path

import numpy as np
import pytest
import torch

from everyhead.errors import UserError
from everyhead.explorer.readers import reader
from everyhead.explorer.sessions import Asked
from everyhead.explorer.spans import pieces_of
from everyhead.inspection.changes import HeadOff, TokenHidden
from everyhead.weights.foreign import open_foreign
from tests.explorer import models

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

TEXT = "the bank of the river was muddy"


def same(group, attentions, visible=None) -> None:
    """Every head of a group within 1e-5 of (1, H, T, S) arrays, layer by layer."""
    assert len(group.layers) == len(attentions)
    for layer, wanted in zip(group.layers, attentions, strict=True):
        for h in range(layer.n_heads):
            np.testing.assert_allclose(layer.head(h), wanted[0, h].detach().numpy(), atol=1e-5)
            if visible is not None:
                np.testing.assert_array_equal(layer.visible(h), visible)
            rows = np.array([0, len(group.rows) - 1])
            np.testing.assert_allclose(layer.head(h, rows), layer.head(h)[rows], atol=1e-6)
            np.testing.assert_array_equal(layer.visible(h, rows), layer.visible(h)[rows])


def opened(model, folder: Path, *, ended: bool = False, image: Path | None = None):
    return reader(open_foreign(models.saved(model, folder, ended=ended)), image)


def test_an_encoder_reads_a_text_or_a_pair(tmp_path: Path):
    model = models.bert()
    session = opened(model, tmp_path / "bert", ended=True)
    scene = session.scene(Asked(TEXT, "and money lay in a bank"))
    model.set_attn_implementation("eager")
    pieces = pieces_of(session.tokenizer, TEXT, "and money lay in a bank")
    ids, kinds = torch.tensor([pieces.ids]), torch.tensor([pieces.segments])
    with torch.inference_mode():
        wanted = model(ids, token_type_ids=kinds, output_attentions=True)
    (group,) = scene.groups
    same(group, wanted.attentions, np.ones((len(pieces.ids),) * 2, bool))
    assert "".join(group.rows) == TEXT + "</s>" + "and money lay in a bank" + "</s>"
    assert group.special == (pieces.special, pieces.special) and sum(pieces.special) == 2
    assert group.segments[0] == sorted(group.segments[0]) and set(group.segments[0]) == {0, 1}
    np.testing.assert_allclose(scene.states["encoder"], wanted.last_hidden_state[0], atol=1e-5)
    assert set(group.numbers) >= {"entropy", "previous", "special"} and len(group.names) == 2
    assert session.next_words(Asked(TEXT)) is None


def test_a_decoder_continues_and_goes_on_with_ids_after_the_text(tmp_path: Path):
    model = models.gpt2()
    session = opened(model, tmp_path / "gpt2")
    scene = session.scene(Asked(TEXT, tail=(7, 230)))
    ids = torch.tensor([[*session.tokenizer(TEXT)["input_ids"], 7, 230]])
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        wanted = model(ids, output_attentions=True)
    n = ids.shape[1]
    same(scene.groups[0], wanted.attentions, np.tril(np.ones((n, n), bool)))
    found = session.next_words(Asked(TEXT, tail=(7, 230)))
    np.testing.assert_allclose(found.logits, wanted.logits[0, -1], atol=1e-4)
    best = wanted.logits[0, -1].softmax(-1).topk(3)
    np.testing.assert_allclose([p for _, p in scene.output["next"]], best.values, atol=1e-5)


def test_a_model_of_two_halves_shows_what_it_wrote_itself(tmp_path: Path):
    model = models.t5()
    session = opened(model, tmp_path / "t5", ended=True)
    scene = session.scene(Asked(TEXT))
    source = session.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        written = model.generate(source, max_new_tokens=64, do_sample=False)
        model.set_attn_implementation("eager")
        wanted = model(source, decoder_input_ids=written[:, :-1], output_attentions=True)
    groups = {group.name: group for group in scene.groups}
    same(groups["encoder"], wanted.encoder_attentions)
    same(groups["decoder"], wanted.decoder_attentions)
    same(groups["cross"], wanted.cross_attentions)
    assert [len(groups[name].layers) for name in ("encoder", "decoder", "cross")] == [3, 2, 2]
    assert scene.output["text"] == session.tokenizer.decode(written[0], skip_special_tokens=True)
    assert len(groups["cross"].rows) == written.shape[1] - 1
    stepped = session.next_words(Asked(TEXT, tail=tuple(written[0, 1:4].tolist())))
    assert int(stepped.logits.argmax()) == int(written[0, 4])


def test_an_image_model_looks_at_the_picture(tmp_path: Path):
    model = models.vit()
    image = models.picture(tmp_path / "p.png")
    session = opened(model, tmp_path / "vit", image=image)
    scene = session.scene(Asked("ignored"))
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        wanted = model(session.pixels, output_attentions=True)
    (group,) = scene.groups
    same(group, wanted.attentions)
    assert group.rows[:3] == ["[CLS]", "0,0", "0,1"] and len(group.rows) == 17
    with pytest.raises(UserError, match="give the path of one, with --image"):
        opened(model, tmp_path / "vit")
    with pytest.raises(UserError, match="is no picture that can be opened"):
        opened(model, tmp_path / "vit", image=tmp_path / "vit/config.json")


def test_changes_are_made_to_the_pass_that_is_shown(tmp_path: Path):
    session = opened(models.gpt2(), tmp_path / "gpt2")
    plain, off, hidden = (
        session.scene(Asked(TEXT, changes=changes))
        for changes in (
            (),
            (HeadOff("decoder.0.self_attn", [1]),),
            (TokenHidden("decoder.0.self_attn", [2]),),
        )
    )
    assert np.abs(plain.states["decoder"] - off.states["decoder"]).max() > 1e-3
    layer = hidden.groups[0].layers[0]
    assert not layer.visible(0)[:, 2].any() and (layer.head(0)[:, 2] == 0).all()
    assert hidden.groups[0].layers[1].visible(0)[5, 2]


def test_every_heads_effect_is_what_its_lost_columns_do(tmp_path: Path):
    model = models.bert()
    session = opened(model, tmp_path / "bert")
    scene = session.scene(Asked(TEXT, measured=True))
    ids = torch.tensor([session.tokenizer(TEXT)["input_ids"]])
    cosine = torch.nn.functional.cosine_similarity
    for layer, head in ((0, 1), (1, 3)):
        dense = model.encoder.layer[layer].attention.output.dense.weight
        kept = dense.data.clone()
        with torch.inference_mode():
            plain = model(ids).last_hidden_state[0]
            dense.data[:, head * 8 : head * 8 + 8] = 0
            without = model(ids).last_hidden_state[0]
        dense.data.copy_(kept)
        wanted = float((1 - cosine(plain, without, dim=-1)).mean())
        found = scene.groups[0].numbers["effect"][layer][head]
        assert wanted > 1e-3 and abs(found - wanted) < 1e-5
    assert "effect" not in session.scene(Asked(TEXT)).groups[0].numbers


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(" \n "), "The sentence is blank"),
        (Asked("river " * 200), "the model takes 128: look at a shorter one"),
        (Asked(TEXT, most=3), "a page shows 3: cut it; the served page"),
    ],
)
def test_what_cannot_be_read_is_refused(asked: Asked, words: str, tmp_path: Path):
    session = opened(models.gpt2(), tmp_path / "gpt2")
    with pytest.raises(UserError, match=words):
        session.scene(asked)


@pytest.mark.parametrize("text", ["我在河边", "👩‍👩‍👧", "a  b", "the\tbank"])
def test_pieces_are_spans_of_the_text_or_whole_tokens(text: str):
    tokenizer = models.tokenizer()
    pieces = pieces_of(tokenizer, text)
    tokens = tokenizer.convert_ids_to_tokens(pieces.ids)
    assert len(pieces.texts) == len(pieces.ids) == len(tokens)
    for shown, token in zip(pieces.texts, tokens, strict=True):
        assert shown == token or shown in text
    if text == "a  b":
        assert "".join(pieces.texts) == text
