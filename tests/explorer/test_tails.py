"""Ids after a text, and positions that are hidden, of each kind of model: those that there are."""

from pathlib import Path
from typing import Any

import pytest
import torch

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.explorer.own_texts import OwnTextReader
from everyhead.explorer.readers import reader
from everyhead.explorer.sessions import Asked
from everyhead.explorer.translators import Translator
from everyhead.generation.translate import Options
from everyhead.inspection.changes import TokenHidden
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.weights.foreign import open_foreign
from tests.explorer import models

TEXT = "the bank"
SMALL = {"d_model": 32, "n_heads": 2, "max_len": 32}


def session_of(kind: str, folder: Path) -> tuple[Any, int]:
    """The session and the size of the vocabulary that it writes."""
    torch.manual_seed(0)
    if kind in ("t5", "gpt2"):
        model = {"t5": models.t5, "gpt2": models.gpt2}[kind]()
        return reader(open_foreign(models.saved(model, folder, ended=kind == "t5"))), 300
    if kind == "ours":
        words = TextTokenizer.train([TEXT, "a dog"], kind="wordpiece", vocab_size=200)
        decoder = GPT2(GPT2Config(vocab_size=words.vocab_size, n_layers=2, **SMALL)).eval()
        return OwnTextReader(decoder, words, name="ours"), words.vocab_size
    pairs = PairTokenizer.train([TEXT, "the cat"], ["河岸", "猫"], vocab_size=300, min_count=1)
    source = None if pairs.shared else pairs.source.vocab_size
    layers = {"n_encoder_layers": 2, "n_decoder_layers": 2, "d_ff": 32}
    config = TransformerConfig(
        vocab_size=pairs.target.vocab_size, source_vocab_size=source, **layers, **SMALL
    )
    model = Transformer(config).eval()
    return Translator(model, pairs, name="ours", options=Options(beam=1)), pairs.target.vocab_size


@pytest.mark.parametrize("kind", ["gpt2", "t5", "ours", "translator"])
def test_an_id_that_no_piece_has_is_refused_in_a_sentence(kind: str, tmp_path: Path):
    session, n = session_of(kind, tmp_path / "model")
    for tail in ((n,), (10**6, 5), (5, n)):
        wrong = next(i for i in tail if i >= n)
        sentence = f"There is no piece {wrong}: the model knows {n}, counted from 0."
        for ask in (session.scene, session.next_words):
            with pytest.raises(UserError) as told:
                ask(Asked(TEXT, target="", tail=tail))
            assert str(told.value) == sentence
    assert session.next_words(Asked(TEXT, target="", tail=(n - 1,))).logits.shape == (n,)


@pytest.mark.parametrize("kind", ["gpt2", "t5", "ours", "translator"])
def test_a_position_that_the_text_lacks_is_refused_in_a_sentence(kind: str, tmp_path: Path):
    session, _ = session_of(kind, tmp_path / "model")
    half = "decoder" if kind in ("gpt2", "ours") else "encoder"
    place = f"{half}.1.self_attn"
    n = len(session.scene(Asked(TEXT)).groups[0].rows)
    for ask in (session.scene, session.next_words):
        with pytest.raises(LookupError, match=rf"key {n} of {place} .* never reached"):
            ask(Asked(TEXT, changes=(TokenHidden(place, [0, n]),)))
        assert ask(Asked(TEXT, changes=(TokenHidden(place, [n - 1]),))) is not None
