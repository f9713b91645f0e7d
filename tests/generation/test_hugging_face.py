"""Tokens equal to Hugging Face's Marian with the same weights, greedy and with beams."""

import re

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from everyhead.generation.search import search
from everyhead.models.transformer import Transformer
from tests.generation.models import lively, sources

VOCAB, LONGEST = 40, 24
THEIRS = {
    r"\.self_attn_norm": ".self_attn_layer_norm",
    r"\.cross_attn_norm": ".encoder_attn_layer_norm",
    r"\.feed_forward_norm": ".final_layer_norm",
    r"\.cross_attn\.": ".encoder_attn.",
    r"o_proj": "out_proj",
    r"feed_forward\.up_proj": "fc1",
    r"feed_forward\.down_proj": "fc2",
    r"^(en|de)coder\.blocks": r"model.\1coder.layers",
    r"^target_embed": "model.shared",
    r"^source_embed": "model.shared",
    r"^output_head": "lm_head",
}


def their_name(name: str) -> str:
    for ours, theirs in THEIRS.items():
        name = re.sub(ours, theirs, name)
    return name


@pytest.fixture(scope="module", params=[1, 6])
def pair(request: pytest.FixtureRequest) -> tuple[Transformer, MarianMTModel]:
    """The same random weights twice, such that answers vary and end at different lengths."""
    ours = lively(VOCAB, request.param, d_model=32, n_heads=4, d_ff=64, positions="sinusoidal")
    with torch.no_grad():
        ours.target_embed.weight.mul_(0.3)
        ours.output_head.weight[0] *= 1.7
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        activation_function="relu",
        scale_embedding=True,
        tie_word_embeddings=False,
        max_position_embeddings=64,
        pad_token_id=VOCAB - 1,
        eos_token_id=0,
        decoder_start_token_id=VOCAB - 1,
        forced_eos_token_id=None,
    )
    theirs = MarianMTModel(config).eval()
    state = theirs.state_dict()
    copied = {their_name(name): p for name, p in ours.named_parameters()}
    for side in ("encoder", "decoder"):
        copied[f"model.{side}.embed_tokens.weight"] = ours.target_embed.weight
    assert copied.keys() - {"model.shared.weight"} <= state.keys()
    theirs.load_state_dict({k: copied.get(k, v) for k, v in state.items()})
    theirs.final_logits_bias[0, VOCAB - 1] = float("-inf")
    return ours, theirs


def test_the_logits_are_the_same(pair: tuple[Transformer, MarianMTModel]) -> None:
    ours, theirs = pair
    source, real = sources([9, 3, 6, 1], VOCAB)
    target = torch.cat([torch.full((4, 1), VOCAB - 1), source[:, :5]], 1)
    with torch.no_grad():
        got = ours(source, target, real)
        wanted = theirs(
            input_ids=source, attention_mask=real.long(), decoder_input_ids=target
        ).logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize(("beam", "rule"), [(1, None), (4, "never"), (4, False)])
def test_the_tokens_are_the_same(
    pair: tuple[Transformer, MarianMTModel],
    beam: int,
    rule: str | bool | None,
    length_penalty: float,
) -> None:
    ours, theirs = pair
    source, real = sources([9, 3, 6, 1, 12, 5], VOCAB, seed=1)
    asked = {} if beam == 1 else {"length_penalty": length_penalty, "early_stopping": rule}
    wanted = theirs.generate(
        source, attention_mask=real.long(), num_beams=beam, max_new_tokens=LONGEST, **asked
    )
    asked = {"beam": beam, "length_penalty": length_penalty, "eager": rule is False}
    found = search(ours, source, real, max_len=LONGEST, **asked)
    for (best,), row in zip(found, wanted.tolist(), strict=True):
        pieces = [*best.ids, 0] if best.ended else best.ids
        assert row[1:] == pieces + [VOCAB - 1] * (len(row) - 1 - len(pieces))
    assert len({len(best.ids) for (best,) in found}) > 1
