"""everyhead look: the matrices in the picture are those with which the translation was written."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from everyhead.cli.look import (
    cross_attention,
    cross_attention_figure,
    cross_attention_of,
    translated,
)
from everyhead.cli.opened import open_run
from everyhead.errors import UserError
from everyhead.files import read_json
from everyhead.generation.search import search
from everyhead.inspection.trace import record
from everyhead.weights import foreign
from tests.cli.conftest import everyhead, everything_in, refused
from tests.explorer import models

SENTENCE = "I see the red cat."
PNG = b"\x89PNG\r\n\x1a\n"


def panels(figure) -> list[str]:
    """The panels' captions."""
    texts = [text.get_text() for text in figure.texts]
    texts += [axes.get_title(loc=loc) for axes in figure.axes for loc in ("left", "center")]
    return [text for text in texts if text.startswith("head ")]


def test_the_translation_and_the_pictures_path_are_printed(lively: Path, tmp_path: Path):
    png = tmp_path / "new" / "look.png"
    code, out, err = everyhead("look", lively, SENTENCE, "--png", png)
    assert (code, err) == (0, "")
    translation = everyhead("translate", lively, SENTENCE).out
    assert out == f"{translation}{png}\n"
    assert png.read_bytes().startswith(PNG)


def test_layer_head_format_and_a_translation_of_ones_own(lively: Path, tmp_path: Path):
    code, out, _ = everyhead(
        *("look", lively, SENTENCE, "--translation", "我看见红猫。"),
        *("--layer", 1, "--head", 0, "--png", tmp_path / "a.svg"),
    )
    assert (code, out) == (0, f"我看见红猫。\n{tmp_path / 'a.svg'}\n")
    assert b"<svg" in (tmp_path / "a.svg").read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layer", "2"], "There is no layer 2; the model has 2, counted from 0"),
        (["--layer", "-1"], "There is no layer -1"),
        (["--head", "2"], "There is no head 2; the model has 2, counted from 0"),
        (["--png", "a.jpg"], "must end in .png, .svg, .pdf"),
        (["--png", "a"], "must end in .png"),
        (["--beam", "0"], "beam is 0"),
        (["--translation", "红猫" * 100], "look at a shorter one"),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_written(
    options: list[str], words: str, lively: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert words in refused("look", lively, SENTENCE, *options)
    assert everything_in(tmp_path) == {}


def test_a_blank_or_too_long_sentence_is_refused(lively: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "The sentence is blank" in refused("look", lively, " \n")
    assert "look at a shorter one" in refused("look", lively, "red cat " * 100)


def test_rows_are_the_pieces_that_the_search_wrote_with_the_weights_it_wrote_them_with(
    lively: Path,
):
    opened = open_run(lively)
    found = translated(opened, SENTENCE, beam=1)
    seen = cross_attention_of(opened, SENTENCE, found)
    source = torch.tensor([[*opened.tokenizer.source.encode(SENTENCE), 0]])
    with torch.inference_mode(), record(opened.model) as trace:
        (best,) = search(opened.model, source)[0]
    assert best.ids == found.hypothesis.ids
    spans = opened.tokenizer.target.pieces_to_spans(best.ids)
    assert seen.written == spans + ["(end)"] * best.ended
    assert "".join(seen.read) == SENTENCE + "(end)"
    for i, matrix in enumerate(seen.layers):
        weights = trace[f"decoder.{i}.cross_attn"].weights()[0].numpy()
        assert matrix.shape == weights.shape == (2, len(seen.written), len(seen.read))
        np.testing.assert_allclose(matrix, weights, atol=1e-5)
        np.testing.assert_allclose(matrix.sum(-1), 1, atol=1e-5)


def test_a_translation_that_was_cut_off_has_no_end_and_fits_the_model(lively: Path):
    opened = open_run(lively)
    longest = opened.model.config.max_len
    ids = [3 + i % 200 for i in range(longest)]
    seen = cross_attention(opened, SENTENCE, ids, ended=False)
    assert len(seen.written) == longest == seen.layers[0].shape[1]
    whole = cross_attention(opened, SENTENCE, ids[:-1])
    assert whole.written[:-1] == opened.tokenizer.target.pieces_to_spans(ids[:-1])
    np.testing.assert_allclose(whole.layers[1], seen.layers[1], atol=1e-6)


def test_panels_are_named_by_the_heads_they_show(lively: Path):
    opened = open_run(lively)
    seen = cross_attention(opened, "red cat", [9, 10])
    assert panels(cross_attention_figure(seen)) == ["head 0", "head 1"] * 2
    assert panels(cross_attention_figure(seen, head=1)) == ["head 1"] * 2
    assert panels(cross_attention_figure(seen, layer=1)) == ["head 0", "head 1"]
    assert panels(cross_attention_figure(seen, layer=1, head=1)) == ["head 1"]


def page_of(path: Path) -> dict:
    """What the page's data block holds."""
    text = path.read_text(encoding="utf-8")
    start = text.index('id="page">') + len('id="page">')
    return json.loads(text[start : text.index("</script>", start)])


def test_by_default_a_page_with_every_attention_is_written(
    lively: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    code, out, err = everyhead("look", lively, SENTENCE)
    translation = everyhead("translate", lively, SENTENCE).out
    assert (code, out, err) == (0, f"{translation}look.html\n", "")
    (scene,) = page_of(tmp_path / "look.html")["scenes"]
    groups = {group["name"]: group for group in scene["groups"]}
    assert [*groups] == ["encoder", "decoder", "cross"]
    assert "".join(groups["encoder"]["rows"]) == SENTENCE + "(end)"
    assert groups["decoder"]["rows"][0] == "(start)"
    assert scene["output"]["text"] == translation.strip("\n")
    assert len(groups["cross"]["layers"]) == 2 and scene["walk"]["width"] == 32


def test_two_texts_are_two_scenes_and_layer_and_head_are_shown_first(lively: Path, tmp_path: Path):
    page = tmp_path / "new" / "a.html"
    options = ("--layer", 1, "--head", 1, "--html", page)
    code, out, _ = everyhead("look", lively, SENTENCE, "I like the old dog.", *options)
    assert code == 0 and out.endswith(f"{page}\n") and len(out.splitlines()) == 3
    held = page_of(page)
    assert [scene["texts"] for scene in held["scenes"]] == [[SENTENCE], ["I like the old dog."]]
    assert held["state"] == {"view": "head", "group": 2, "layer": 1, "head": 1}


def test_numbers_are_written_as_json_and_pictures_beside_them(lively: Path, tmp_path: Path):
    values, picture = tmp_path / "a.json", tmp_path / "a.svg"
    options = ("--json", values, "--svg", picture, "--layer", 0, "--translation", "我看见")
    code, out, _ = everyhead("look", lively, SENTENCE, *options)
    assert (code, out) == (0, f"我看见\n{picture}\n{values}\n")
    (scene,) = read_json(values)["scenes"]
    opened = open_run(lively)
    seen = cross_attention(opened, SENTENCE, opened.tokenizer.target.encode("我看见"))
    cross = scene["groups"][2]
    assert cross["queries"] == seen.written and cross["keys"] == seen.read
    found = np.array([head["weights"] for head in cross["heads"]])
    np.testing.assert_allclose(found, seen.layers[0], atol=1e-5)
    decoder = scene["groups"][1]["heads"][0]["weights"]
    assert decoder[0][1] is None and decoder[1][1] is not None
    assert (
        picture.read_bytes().lstrip().startswith(b"<?xml") and not (tmp_path / "look.html").exists()
    )


def test_a_hugging_face_folder_is_looked_into(tmp_path: Path, monkeypatch):
    folder = models.saved(models.gpt2(), tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    text = "the bank </script> of 河"
    code, out, err = everyhead("look", folder, text)
    assert (code, out) == (0, "look.html\n"), err
    (scene,) = page_of(tmp_path / "look.html")["scenes"]
    assert scene["texts"] == [text] and scene["groups"][0]["name"] == "decoder"
    code, out, _ = everyhead("look", folder, text, "--png", "a.png", "--head", 3)
    assert (code, out) == (0, "a.png\n") and Path("a.png").read_bytes().startswith(PNG)
    assert "There is no head 4; the model has 4" in refused("look", folder, text, "--head", 4)
    assert "--beam is for translators" in refused("look", folder, text, "--beam", 2)
    own = ("--translation", "bank")
    assert "--translation is for models that translate" in refused("look", folder, text, *own)
    assert "leave --image out" in refused("look", folder, text, "--image", "a.png")


def test_a_model_that_looks_at_a_picture_alone_wants_no_text(tmp_path: Path, monkeypatch):
    folder = models.saved(models.vit(), tmp_path / "vit")
    picture = models.picture(tmp_path / "a.png")
    monkeypatch.chdir(tmp_path)
    shown = ("--image", picture)
    code, out, err = everyhead("look", folder, *shown)
    assert (code, out) == (0, "look.html\n"), err
    (scene,) = page_of(tmp_path / "look.html")["scenes"]
    assert scene["groups"][0]["rows"][:2] == ["[CLS]", "0,0"]
    assert "reads no text: leave TEXT out" in refused("look", folder, "a cat", *shown)
    assert "reads no text: leave TEXT out" in refused("look", folder, "a cat", "a dog", *shown)
    writer = models.saved(models.gpt2(), tmp_path / "gpt2")
    assert "reads text: give it one after the model's name" in refused("look", writer)


def test_a_folder_that_is_not_there_is_missed_before_its_options_are_judged(
    tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)

    def unreachable(name: str) -> None:
        raise UserError(f"{name} is not on this machine.")

    monkeypatch.setattr(foreign, "fetch", unreachable)
    words = refused("look", "runs/typo", SENTENCE, "--beam", 2)
    assert words.startswith("There is no folder runs/typo") and "beam" not in words


def test_a_page_that_is_saved_keeps_its_limit_though_it_is_served_too(tmp_path: Path, monkeypatch):
    folder = models.saved(models.gpt2(4096), tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    long = ("look", folder, "river " * 1500, "--serve", "--port", 0)
    assert "a page shows 2048" in refused(*long, "--html", "a.html")
    assert "a page shows 2048" in refused(*long, "--json", "a.json")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--html", "a.txt"], "--html a.txt must end in .html, .htm."),
        (["--json", "a"], "--json a must end in .json."),
        (["--svg", "a.png"], "--svg a.png must end in .svg."),
        (["--pair"], "--pair takes two texts"),
        (["other", "--translation", "红猫"], "--translation belongs to one text"),
        ([" "], "The sentence is blank"),
        (["other", "--png", "a.png"], "A picture shows one text: leave TEXT2 out"),
        (["other", "--svg", "a.svg"], "A picture shows one text: leave TEXT2 out"),
        (["other", "--pair"], "--pair is for models that read two sentences at once"),
        (["--image", "a.png"], "looks at no picture: leave --image out"),
        (["--serve", "--address", "my.example"], "--address my.example is no IP address"),
        (["--serve", "--address", "[::1]"], "--address [::1] is no IP address"),
    ],
)
def test_options_that_do_not_go_together(
    options: list[str], words: str, lively: Path, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert words in refused("look", lively, SENTENCE, *options)
    assert everything_in(tmp_path) == {}
