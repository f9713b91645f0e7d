"""Attention for long inputs is drawn as what it is: band, buckets, memory, implied matrix."""

from typing import Any

import numpy as np
import pytest
import torch

from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.explorer.asking import Head
from everyhead.explorer.drawings import band_of, drawing_of
from everyhead.explorer.own_texts import OwnTextReader
from everyhead.explorer.scene import Scene
from everyhead.explorer.server import Live
from everyhead.explorer.sessions import Asked
from everyhead.inspection.trace import record
from everyhead.layers import hashing, masks
from everyhead.layers.lsh import LshAttention
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.performer import Performer, PerformerConfig
from everyhead.models.transformer_xl import TransformerXL, TransformerXLConfig

TEXT = "the cat sat on the mat and the dog sat on the cat while the mat lay on the dog"
SMALL = {"d_model": 16, "n_heads": 2, "n_layers": 1}


@pytest.fixture(scope="module")
def words() -> TextTokenizer:
    return TextTokenizer.train([TEXT], kind="wordpiece", vocab_size=200)


class Windowed(MultiHeadAttention):
    """Three places back, and the first token from anywhere."""

    def visible(self, mask: masks.Mask | None) -> masks.Mask:
        return masks.prefix(1, masks.window(3, 0)) & masks.causal() & mask


class Hashed(LshAttention):
    """Stands in a GPT2."""


def reader(words: TextTokenizer, kind: str) -> OwnTextReader:
    torch.manual_seed(0)
    given: dict[str, Any] = {"vocab_size": words.vocab_size, **SMALL}
    if kind == "features":
        model: Any = Performer(PerformerConfig(n_features=8, max_len=64, **given))
    elif kind == "memory":
        model = TransformerXL(TransformerXLConfig(memory_len=6, segment_len=5, d_ff=16, **given))
    else:
        model = GPT2(GPT2Config(max_len=64, **given))
        block = model.decoder.blocks[0]
        if kind == "band":
            block.self_attn.__class__ = Windowed
        elif kind == "hashing":
            block.self_attn = Hashed(16, 2, n_buckets=4, n_rounds=3, chunk=4)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.4)
    return OwnTextReader(model.eval(), words, name=kind)


def scene(words: TextTokenizer, kind: str) -> Scene:
    return reader(words, kind).scene(Asked(TEXT))


def test_a_window_tells_its_edges_and_who_is_seen_from_anywhere(words: TextTokenizer) -> None:
    layer = scene(words, "band").groups[0].layers[0]
    entry = layer.drawing.entry()
    assert (entry["kind"], entry["left"], entry["right"], entry["far"]) == ("band", 3, 0, [0])
    assert not entry["other"] and layer.parts(0) is not None
    seen = layer.visible(0)
    assert seen[10].nonzero()[0].tolist() == [0, 7, 8, 9, 10]


def test_global_tokens_of_a_row_are_told_and_full_attention_is_not_drawn() -> None:
    marked = torch.tensor([[True, False, False, False], [False, False, False, True]])
    mask = masks.window(1, 1) | masks.global_tokens(marked)
    assert band_of(mask, 1) == (1, 1, 1, [3], True)
    assert band_of(masks.causal()) is None and band_of(None) is None
    module = MultiHeadAttention(8, 2).eval()
    with torch.no_grad(), record(module) as trace:
        module(torch.randn(1, 4, 8), masks.window(9, 9))
    assert drawing_of(trace[trace.places()[0]]) is None
    with torch.no_grad(), record(module) as trace:
        module(torch.randn(1, 4, 8), masks.prefix(8, masks.window(9, 0)) & masks.causal())
    assert drawing_of(trace[trace.places()[0]]) is None


def test_buckets_are_those_of_every_round(words: TextTokenizer) -> None:
    asked = reader(words, "hashing")
    found = asked.scene(Asked(TEXT))
    (group,) = found.groups
    drawing = group.layers[0].drawing
    module = asked.body.decoder.blocks[0].self_attn
    buckets = drawing.buckets(1)
    assert buckets.shape == (3, len(group.rows)) and drawing.numbers["buckets"] == 4
    k = torch.from_numpy(group.layers[0].place.parts.k[0, 1].numpy())
    told = hashing.hashed(k[None, None], module.rotations[1:2], (4,))[0, 0]
    assert np.array_equal(buckets, told.numpy())
    assert group.layers[0].parts(0) is None and drawing.other
    weights = group.layers[0].head(1)
    t, s = np.argwhere(weights > 0.01)[-1]
    assert t == s or (buckets[:, t] == buckets[:, s]).any()


def test_memory_is_where_the_segments_before_end(words: TextTokenizer) -> None:
    group = scene(words, "memory").groups[0]
    drawing = group.layers[0].drawing
    n = len(group.rows)
    assert drawing.numbers == {"reach": 6, "segments": [*range(0, n, 5)]} and n > 10
    whole = reader(words, "memory")
    with torch.no_grad(), record(whole.model) as trace:
        whole.model(torch.tensor([words.encode(TEXT)]))
    place = trace[trace.places()[0]]
    assert drawing_of(place).numbers["segments"] == [0]
    told = place.weights(heads=[1])[0, 0].numpy()
    assert np.allclose(group.layers[0].head(1), told, atol=1e-6)


def test_random_features_say_that_their_matrix_is_implied(words: TextTokenizer) -> None:
    layer = scene(words, "features").groups[0].layers[0]
    entry = layer.drawing.entry()
    assert (entry["kind"], entry["features"], entry["other"]) == ("features", 8, True)
    assert layer.parts(0) is None and layer.drawing.buckets(0) is None


def test_a_long_text_s_window_brings_its_buckets(words: TextTokenizer) -> None:
    asked = reader(words, "hashing")
    live = Live(asked, [asked.scene(Asked(TEXT))])
    live.page({})
    answer = live.head(Head(scene=1, group=0, layer=0, head=1))
    drawing = scene(words, "hashing").groups[0].layers[0].drawing
    assert answer["buckets"]["columns"] == drawing.buckets(1).tolist()


KINDS = {
    "band": ("A window: a token sees 3 places back", "seen from anywhere (shaded): 1"),
    "hashing": ("Hashing: tokens see those of their own bucket", "3 rounds, 4 buckets"),
    "memory": ("the 6 places before it", "memory of earlier ones"),
    "features": ("8 random features stand for the softmax", "computed only for you"),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_page_draws_each_as_what_it_is(
    kind: str, words: TextTokenizer, tab: Any, saved: Any
) -> None:
    shown = scene(words, kind)
    tab.show(saved(shown), view="head", head=1, show="matrix")
    told = tab.page.locator(".drawn").inner_text()
    assert all(part in told for part in KINDS[kind])
    layer = shown.groups[0].layers[0]
    near = np.abs(np.nan_to_num(tab.numbers()[0]) - np.where(layer.visible(1), layer.head(1), 0))
    assert (near <= layer.head(1).max(1, keepdims=True) / 255 + 1e-6).all()
    drawn = "() => document.querySelector('canvas.matrix').toDataURL()"
    before = tab.page.evaluate(drawn)
    if kind == "hashing":
        tab.change(lambda: tab.page.get_by_label("round of hashing").select_option("2"))
        assert "round=2" in tab.page.url and tab.page.evaluate(drawn) != before
        tab.page.locator("canvas.matrix").click(position={"x": 200, "y": 200})
        assert "buckets" in tab.page.locator(".details").inner_text()
    tab.show(saved(shown), view="head", head=1, show="matrix", lang="zh")
    assert any("一" <= letter <= "龥" for letter in tab.page.locator(".drawn").inner_text())
