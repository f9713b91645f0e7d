"""Side by side with torch.nn: copied weights, equal numbers and equal gradients."""

import pytest
import torch
from torch import Tensor, nn

from everyhead.layers import masks
from everyhead.layers.blocks import Block, Stack
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.transformer import Transformer, TransformerConfig
from tests.laws.families import SMALL, batch
from tests.layers.oracles import lengths_mask

NEAR = {"rtol": 0, "atol": 1e-5}


@torch.no_grad()
def copy_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> None:
    theirs.in_proj_weight.copy_(
        torch.cat([ours.q_proj.weight, ours.k_proj.weight, ours.v_proj.weight])
    )
    theirs.in_proj_bias.copy_(torch.cat([ours.q_proj.bias, ours.k_proj.bias, ours.v_proj.bias]))
    copy_map(theirs.out_proj, ours.o_proj)


@torch.no_grad()
def copy_map(theirs: nn.Module, ours: nn.Module) -> None:
    theirs.weight.copy_(ours.weight)
    theirs.bias.copy_(ours.bias)


def copy_block(theirs: nn.Module, ours: Block) -> None:
    """torch numbers the norms in order of use."""
    copy_attention(theirs.self_attn, ours.self_attn)
    norms = [ours.self_attn_norm, ours.feed_forward_norm]
    if ours.cross_attn is not None:
        copy_attention(theirs.multihead_attn, ours.cross_attn)
        norms.insert(1, ours.cross_attn_norm)
    for number, norm in enumerate(norms, 1):
        copy_map(getattr(theirs, f"norm{number}"), norm)
    copy_map(theirs.linear1, ours.feed_forward.up_proj)
    copy_map(theirs.linear2, ours.feed_forward.down_proj)


def copy_stack(theirs: nn.Module, ours: Stack) -> None:
    for layer, block in zip(theirs.layers, ours.blocks, strict=True):
        copy_block(layer, block)
    if ours.norm is not None:
        copy_map(theirs.norm, ours.norm)


def torch_transformer(ours: Transformer) -> nn.Transformer:
    """nn.Transformer with our weights. It has no embeddings and, unlike the paper, always a last
    norm; post-norm has none."""
    c = ours.config
    sizes = (c.d_model, c.n_heads, c.d_ff, 0.0, c.activation)
    choices = {"batch_first": True, "norm_first": c.norm == "pre"}

    def last() -> nn.LayerNorm | None:
        return nn.LayerNorm(c.d_model) if c.norm == "pre" else None

    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*sizes, **choices), c.n_encoder_layers, last(),
        enable_nested_tensor=False,
    )  # fmt: skip
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(*sizes, **choices), c.n_decoder_layers, last()
    )
    theirs = nn.Transformer(
        c.d_model, c.n_heads, custom_encoder=encoder, custom_decoder=decoder, batch_first=True
    )
    copy_stack(encoder, ours.encoder)
    copy_stack(decoder, ours.decoder)
    return theirs.train()


def embedded(table: nn.Module, ids: Tensor, real: Tensor, places: Tensor) -> Tensor:
    positions = (real.long().cumsum(1) - 1).clamp_min(0)
    return nn.functional.embedding(ids, table.weight) * 32**0.5 + places[positions]


def torch_hidden(theirs: nn.Transformer, ours: Transformer, sides: tuple[Tensor, ...]) -> Tensor:
    source, target, source_mask, target_mask = sides
    table = ours.source_positions.table
    n = target.shape[1]
    return theirs(
        embedded(ours.source_embed, source, source_mask, table),
        embedded(ours.target_embed, target, target_mask, table),
        tgt_mask=torch.ones(n, n, dtype=torch.bool).triu(1),  # True = may not look
        src_key_padding_mask=~source_mask,
        tgt_key_padding_mask=~target_mask,
        memory_key_padding_mask=~source_mask,
    )


def pair(norm: str, **choices: object) -> tuple[Transformer, nn.Transformer]:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=23, source_vocab_size=19, norm=norm, **SMALL, **choices)
    ours = Transformer(config.model_copy(update={"dropout": 0.0}))
    for p in ours.parameters():
        if p.dim() == 1:
            nn.init.normal_(p, 0.5, 0.5)
    return ours, torch_transformer(ours)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_hidden_states_equal_torchs_with_padding(norm: str, activation: str) -> None:
    ours, theirs = pair(norm, activation=activation)
    sides = batch(ours)
    real = sides.target_mask
    hidden = ours.hidden(*sides)[real]
    torch.testing.assert_close(hidden, torch_hidden(theirs, ours, sides)[real], **NEAR)
    evaluated = torch_hidden(theirs.eval(), ours, sides)[real]
    torch.testing.assert_close(ours.eval().hidden(*sides)[real], evaluated, **NEAR)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_gradients_equal_torchs_with_padding(norm: str) -> None:
    ours, theirs = pair(norm)
    sides = batch(ours)
    real = sides.target_mask
    upstream = torch.randn(int(real.sum()), 32)
    ours.hidden(*sides)[real].backward(upstream)
    tables = [ours.source_embed.weight, ours.target_embed.weight]
    mine = [table.grad.clone() for table in tables]
    for table in tables:
        table.grad = None
    torch_hidden(theirs, ours, sides)[real].backward(upstream)
    for table, grad in zip(tables, mine, strict=True):
        torch.testing.assert_close(grad[:-1], table.grad[:-1], rtol=1e-4, atol=1e-4)
    for stack, other in ((ours.encoder, theirs.encoder), (ours.decoder, theirs.decoder)):
        for block, layer in zip(stack.blocks, other.layers, strict=True):
            compare_gradients(block, layer)


def compare_gradients(block: Block, layer: nn.Module) -> None:
    attentions = [(block.self_attn, layer.self_attn)]
    if block.cross_attn is not None:
        attentions.append((block.cross_attn, layer.multihead_attn))
    pairs = [
        (block.feed_forward.up_proj.weight.grad, layer.linear1.weight.grad),
        (block.feed_forward.down_proj.bias.grad, layer.linear2.bias.grad),
        (block.self_attn_norm.weight.grad, layer.norm1.weight.grad),
    ]
    for a, b in attentions:
        joined = [p.weight.grad for p in (a.q_proj, a.k_proj, a.v_proj)]
        pairs.append((torch.cat(joined), b.in_proj_weight.grad))
        pairs.append((a.o_proj.weight.grad, b.out_proj.weight.grad))
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention_equals_torchs(cross: bool) -> None:
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(32, 4), nn.MultiheadAttention(32, 4, batch_first=True)
    for p in ours.parameters():
        if p.dim() == 1:
            nn.init.normal_(p)
    copy_attention(theirs, ours)
    x = torch.randn(3, 5, 32, requires_grad=True)
    memory = torch.randn(3, 7, 32) if cross else x
    real = lengths_mask([memory.shape[1], 2, 4], memory.shape[1])
    out = ours(x, masks.keys(real), memory if cross else None)
    expected, matrix = theirs(x, memory, memory, key_padding_mask=~real, average_attn_weights=False)
    torch.testing.assert_close(out, expected, **NEAR)
    from everyhead.layers.attention import weights

    parts = ours.project(x, memory if cross else None)
    torch.testing.assert_close(weights(parts, masks.keys(real)), matrix, **NEAR)
    upstream = torch.randn_like(out)
    (mine,) = torch.autograd.grad(out, x, upstream)
    (other,) = torch.autograd.grad(expected, x, upstream)
    torch.testing.assert_close(mine, other, **NEAR)


def test_multi_head_attention_equals_torchs_under_a_causal_mask() -> None:
    torch.manual_seed(0)
    ours, theirs = MultiHeadAttention(32, 4), nn.MultiheadAttention(32, 4, batch_first=True)
    copy_attention(theirs, ours)
    x = torch.randn(2, 150, 32)  # beyond the short path
    hidden = torch.ones(150, 150, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
    torch.testing.assert_close(ours(x, masks.causal()), expected, **NEAR)
