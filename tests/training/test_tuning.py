"""What stays as it is, and which layer learns how fast."""

import pytest

from everyhead.errors import UserError
from everyhead.models.bert import BertConfig
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.t5 import T5, T5Config
from everyhead.models.tasks import SequenceClassifier, SequenceClassifierConfig
from everyhead.training.sections import FineTuneRecipe
from everyhead.training.tuning import tuned


def test_freezing_and_rates_by_layer():
    body = BertConfig(vocab_size=9, d_model=8, n_heads=2, n_layers=3, d_ff=8, max_len=4)
    model = SequenceClassifier(
        SequenceClassifierConfig(family="bert", body=body, labels=("a", "b"))
    )
    recipe = FineTuneRecipe(freeze_layers=1, layer_decay=0.5, head_rate=3.0)
    factors = tuned(model, recipe, new=("classifier.",))
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == {
        name
        for name, _ in model.named_parameters()
        if name.startswith("body.encoder.blocks.0.") or "embed" in name
    }
    assert factors["body.encoder.blocks.2."] == 1 and factors["body.encoder.blocks.1."] == 0.5
    assert factors["body.token_embed.weight"] == 0.125 and factors["classifier."] == 3
    with pytest.raises(UserError, match="3 layers"):
        tuned(model, FineTuneRecipe(freeze_layers=4))
    decoder = GPT2(GPT2Config(vocab_size=9, d_model=8, n_heads=2, n_layers=2, max_len=4))
    tuned(decoder, FineTuneRecipe(freeze_embeddings=True))
    still = {name for name, p in decoder.named_parameters() if not p.requires_grad}
    assert still == {"token_embed.weight", "positions.weight"}


def test_of_two_halves_the_encoder_s_layers_come_first():
    numbers = {"d_model": 8, "n_heads": 2, "d_head": 4, "d_ff": 8}
    model = T5(T5Config(vocab_size=9, n_encoder_layers=2, n_decoder_layers=1, **numbers))
    factors = tuned(model, FineTuneRecipe(freeze_layers=2, layer_decay=0.5))
    free = {name for name, p in model.named_parameters() if p.requires_grad}
    # What stands above the encoder's layers: its last norm, and the decoder.
    assert free and all(name.startswith(("encoder.norm", "decoder.")) for name in free)
    assert [factors[f"{half}."] for half in ("encoder.blocks.0", "encoder.blocks.1")] == [0.25, 0.5]
    assert factors["decoder.blocks.0."] == 1 and factors["decoder_bias.weight"] == 0.125
    with pytest.raises(UserError, match="3 layers"):
        tuned(model, FineTuneRecipe(freeze_layers=4))
