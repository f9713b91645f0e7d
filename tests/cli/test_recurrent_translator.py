"""The recurrent encoder-decoder through the program: trained, resumed, translating, looked at."""

from pathlib import Path

import numpy as np
import pytest
import torch

from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.files import read_json
from everyhead.inspection.trace import record
from everyhead.models.recurrent_translator import RecurrentTranslator
from everyhead.weights.folder import load
from tests.cli.conftest import everyhead, refused

SENTENCE = "I see the red cat."
CHANGES = [
    *("model.preset=tiny", "model.d_model=32", "model.cell=lstm", "model.max_len=64"),
    *("tokenizer.vocab_size=400", "train.max_steps=6", "train.batch_sentences=8"),
    *("train.evaluate_every=3", "train.save_every=3", "train.warmup=2", "evaluate.beam=3"),
]


@pytest.mark.slow
def test_it_trains_translates_and_shows_where_it_looked(pairs: Path, tmp_path: Path) -> None:
    run, numbers, png = tmp_path / "run", tmp_path / "look.json", tmp_path / "look.png"
    changes = [word for change in CHANGES for word in ("--set", change)]
    given = ("translate-recurrent", "--data", pairs, "--run", run)
    code, _, err = everyhead("train", *given, *changes)
    assert code == 0 and "Model: 1+1 layers, d_model 32, lstm" in err, err
    code, out, _ = everyhead("translate", run, SENTENCE)
    assert code == 0
    code, looked, err = everyhead("look", run, SENTENCE, "--json", numbers, "--png", png)
    assert code == 0 and looked.startswith(out) and png.read_bytes().startswith(b"\x89PNG"), err
    assert everyhead("check", run, "--law", "padding-left", "--law", "cache").code == 0
    model, tokenizer = load(run)
    assert isinstance(model, RecurrentTranslator) and isinstance(tokenizer, PairTokenizer)
    (group,) = read_json(numbers)["scenes"][0]["groups"]
    (head,) = group["heads"]
    assert head["place"] == "decoder.0.cross_attn"
    source = torch.tensor([[*tokenizer.source.encode(SENTENCE), model.config.eos_id]])
    with torch.no_grad(), record(model.eval()) as trace:
        model(source, torch.tensor([[model.config.pad_id]]))
    first = trace["decoder.0.cross_attn"].weights()[0, 0, 0]  # asked before a word is written
    assert np.allclose(head["weights"][0], first, rtol=0, atol=1e-5)


def test_a_number_that_the_family_lacks_is_a_sentence(pairs: Path, tmp_path: Path) -> None:
    words = refused(
        *("train", "translate-recurrent", "--data", pairs, "--run", tmp_path / "x"),
        *("--set", "model.n_heads=2"),
    )
    assert words == "model.n_heads is not a number of recurrent-translator; leave it out."
