"""The Transformer's start: small everywhere, so that a block begins near the identity."""

import pytest
import torch

from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig


def made(norm: str, source_vocab_size: int | None, tie_output: bool) -> Transformer:
    torch.manual_seed(0)
    sizes = {**PRESETS["small"], "n_encoder_layers": 1, "n_decoder_layers": 1}
    config = TransformerConfig(
        vocab_size=90,
        source_vocab_size=source_vocab_size,
        norm=norm,
        tie_output=tie_output,
        **sizes,
    )
    return Transformer(config)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("source_vocab_size", [None, 70])
def test_every_matrix_starts_small_and_every_vector_at_rest(
    source_vocab_size: int | None, tie_output: bool, norm: str
) -> None:
    """Either embeddings at 1/√d or maps by Xavier's rule learn later at the same rate."""
    for name, p in made(norm, source_vocab_size, tie_output).named_parameters():
        if p.dim() > 1:
            assert p.std().item() == pytest.approx((10 * 256) ** -0.5, rel=0.05), name
        else:
            rest = 1.0 if name.endswith("norm.weight") else 0.0
            assert torch.equal(p, torch.full_like(p, rest)), name


@pytest.mark.parametrize("source_vocab_size", [None, 70])
def test_the_rows_of_padding_start_at_zero(source_vocab_size: int | None) -> None:
    model = made("post", source_vocab_size, True)
    for table in (model.source_embed, model.target_embed):
        zero = table.weight.abs().sum(1) == 0
        assert zero.nonzero().flatten().tolist() == [table.pad_id]


def test_a_post_norm_block_starts_near_the_identity() -> None:
    model = made("post", None, True).eval()
    x = torch.randn(4, 12, 256)
    y = model.encoder.blocks[0](x)
    assert torch.cosine_similarity(x, y, dim=-1).min().item() > 0.95
