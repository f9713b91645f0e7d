"""Blocks and stacks, against the reference and by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from everyhead import reference
from everyhead.layers import masks
from everyhead.layers.blocks import Block, Memory, Stack
from everyhead.layers.cache import DecoderCache
from everyhead.layers.feed_forward import FeedForward
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.norms import LayerNorm
from everyhead.layers.residual import PostNorm, PreNorm
from tests.layers.oracles import lengths_mask

RESIDUALS = {"post": PostNorm, "pre": PreNorm}


def make_stack(norm: str, *, cross: bool, n: int = 2) -> Stack:
    def block() -> Block:
        return Block(
            MultiHeadAttention(8, 2),
            FeedForward(8, 16),
            residual=RESIDUALS[norm](),
            norm=lambda: LayerNorm(8),
            cross_attn=MultiHeadAttention(8, 2) if cross else None,
        )

    stack = Stack([block() for _ in range(n)], LayerNorm(8) if norm == "pre" else None).double()
    for p in stack.parameters():
        nn.init.normal_(p, std=0.4)
    return stack


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in module.named_parameters()}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("norm", RESIDUALS)
def test_an_encoder_stack_equals_the_reference(norm: str) -> None:
    stack, x, real = make_stack(norm, cross=False), random(2, 5, 8), lengths_mask([5, 3], 5)
    out = stack(x, masks.keys(real))
    see = reference.padding_mask(real.numpy())
    expected = reference.encoder(arrays(stack), x.numpy(), see, n_heads=2, norm=norm)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("norm", RESIDUALS)
def test_a_decoder_stack_equals_the_reference(norm: str) -> None:
    stack, x, memory = make_stack(norm, cross=True), random(2, 4, 8), random(2, 5, 8)
    real = lengths_mask([5, 3], 5)
    out = stack(x, masks.causal(), Memory(memory, masks.keys(real)))
    expected = reference.decoder(
        arrays(stack), x.numpy(), memory.numpy(), reference.causal_mask(4),
        reference.padding_mask(real.numpy()), n_heads=2, norm=norm,
    )  # fmt: skip
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=0, atol=1e-11)


def test_without_memory_the_cross_attention_is_left_out() -> None:
    stack = make_stack("post", cross=True)
    x = random(2, 4, 8)
    assert not torch.equal(stack(x, masks.causal()), stack(x, masks.causal(), Memory(x)))


def test_every_layer_starts_from_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    blocks = [
        Block(MultiHeadAttention(8, 2), FeedForward(8, 16), residual=PostNorm(),
              norm=lambda: LayerNorm(8))
        for _ in range(2)
    ]  # fmt: skip
    first, second = (block.self_attn.q_proj.weight for block in Stack(blocks).blocks)
    assert not torch.equal(first, second)


def test_parameter_paths_are_free_of_the_residual() -> None:
    names = {name for name, _ in make_stack("pre", cross=True, n=1).named_parameters()}
    parts = {name.rsplit(".", 1)[0] for name in names}
    attentions = {
        f"blocks.0.{a}.{p}_proj" for a in ("self_attn", "cross_attn") for p in ("q", "k", "v", "o")
    }
    norms = {f"blocks.0.{a}_norm" for a in ("self_attn", "cross_attn", "feed_forward")}
    maps = {"blocks.0.feed_forward.up_proj", "blocks.0.feed_forward.down_proj"}
    assert parts == attentions | norms | maps | {"norm"}


@pytest.mark.parametrize("norm", RESIDUALS)
def test_each_block_has_its_own_place_in_the_cache(norm: str) -> None:
    stack, x, memory = make_stack(norm, cross=True), random(2, 4, 8), random(2, 5, 8)
    whole = stack(x, masks.causal(), Memory(memory))
    cache = DecoderCache(2, 4)
    steps = [stack(x[:, t : t + 1], masks.causal(), Memory(memory), cache=cache) for t in range(4)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-12)
