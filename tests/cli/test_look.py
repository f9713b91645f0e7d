"""everyhead look: the matrices in the picture are those with which the translation was written."""

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
from everyhead.generation.search import search
from everyhead.inspection.trace import record
from tests.cli.conftest import everyhead, everything_in, refused

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
