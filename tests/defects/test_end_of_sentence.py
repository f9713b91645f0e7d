"""Defect: padding and `</s>` share an id, so the model never learns to stop, or never may."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from everyhead.errors import UserError
from everyhead.models.transformer import TransformerConfig
from everyhead.weights import load_model, save_model
from tests.weights.small import config, random_model


@pytest.mark.parametrize(
    "ids", [{"pad_id": 0, "eos_id": 0}, {"eos_id": 8}, {"eos_id": 9}, {"eos_id": -1}]
)
def test_a_model_that_could_never_end_a_sentence_is_refused(ids: dict[str, int]) -> None:
    """The logit of padding is −∞, and an id beyond the vocabulary has none."""
    with pytest.raises(ValidationError, match=r"eos_id .* pad_id"):
        TransformerConfig(vocab_size=9, **ids)


def test_nor_is_its_folder_opened(tmp_path: Path) -> None:
    save_model(random_model(config()), tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    values["eos_token_id"] = values["pad_token_id"]
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"config\.json describes no Transformer.*eos_id"):
        load_model(tmp_path)
