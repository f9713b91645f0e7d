"""CTranslate2 converts what everyhead saves, Marian or Pegasus, and says the same."""

from pathlib import Path
from typing import Any

import pytest
import torch

from everyhead.models.transformer import Transformer
from everyhead.weights import save_model

from .small import (
    LINES,
    UNSEEN,
    config,
    greedy,
    random_model,
    reversing_model,
    shared_tokenizer,
)

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

ctranslate2 = pytest.importorskip("ctranslate2")
pytest.importorskip("transformers")


def converted(model: Transformer, folder: Path) -> Any:
    from ctranslate2.converters import TransformersConverter

    assert save_model(model, folder / "model", tokenizer=shared_tokenizer()) == []
    TransformersConverter(str(folder / "model")).convert(str(folder / "converted"))
    return ctranslate2.Translator(
        str(folder / "converted"), device="cpu", compute_type="float32", intra_threads=1
    )


def pieces(ids: list[int]) -> list[str]:
    return [shared_tokenizer().source.inner.id_to_token(number) for number in ids]


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_greedy_output_is_ctranslate2s(norm: str, tmp_path: Path) -> None:
    model = reversing_model(norm)
    translator = converted(model, tmp_path)
    for line in LINES + UNSEEN:
        ids = [*shared_tokenizer().source.encode(line), 0]
        (result,) = translator.translate_batch([pieces(ids)], beam_size=1, max_decoding_length=20)
        assert result.hypotheses[0] == pieces(greedy(model, ids, 20))


@pytest.mark.parametrize(
    ("norm", "activation", "tied"),
    [
        ("post", "gelu", False),
        ("post", "gelu_tanh", True),
        ("pre", "silu", True),
        ("pre", "relu", False),
    ],
)
def test_log_probabilities_are_ctranslate2s(
    norm: str, activation: str, tied: bool, tmp_path: Path
) -> None:
    model = random_model(config(norm=norm, activation=activation, tie_output=tied))
    translator = converted(model, tmp_path)
    source, target = [7, 300, 41, 0], [100, 9, 321, 9]
    (scores,) = translator.score_batch([pieces(source)], [pieces(target)])
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[model.config.pad_id, *target]]))
    expected = logits[0].log_softmax(-1)[range(5), [*target, 0]]
    assert torch.allclose(torch.tensor(scores.log_probs), expected, atol=1e-4)
