"""The published chunks against transformers' LSHSelfAttention with the same rotations."""

import pytest
import torch
from torch import Tensor

from everyhead.layers import masks
from everyhead.layers.lsh import PublishedLshAttention

reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
transformers = pytest.importorskip("transformers")


def pair(
    buckets: int | list[int], rounds: int, *, causal: bool, look: tuple[int, int] = (1, 0)
) -> tuple[torch.nn.Module, PublishedLshAttention]:
    config = transformers.ReformerConfig(
        hidden_size=24,
        num_attention_heads=3,
        attention_head_size=8,
        lsh_attn_chunk_length=8,
        num_hashes=rounds,
        num_buckets=buckets,
        lsh_num_chunks_before=look[0],
        lsh_num_chunks_after=look[1],
        hash_seed=5,
        is_decoder=causal,
        lsh_attention_probs_dropout_prob=0.0,
    )
    theirs = reformer.LSHSelfAttention(config).double().eval()
    ours = PublishedLshAttention(
        24,
        3,
        n_buckets=buckets if isinstance(buckets, int) else tuple(buckets),
        n_rounds=rounds,
        chunk=8,
        look=look,
    )
    ours = ours.double().eval()
    torch.manual_seed(5)  # as they draw them, at every call
    with torch.no_grad():
        ours.rotations.copy_(torch.randn(ours.rotations.shape, dtype=torch.float64))
        ours.q_proj.weight.copy_(theirs.query_key.weight)
        ours.v_proj.weight.copy_(theirs.value.weight)
        ours.o_proj.weight.copy_(torch.eye(24))
    return theirs, ours


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("buckets", "rounds", "look"),
    [(4, 1, (1, 0)), (8, 3, (1, 0)), ([2, 4], 2, (1, 0)), (4, 2, (0, 0)), (4, 2, (1, 1))],
)
def test_equals_transformers_and_so_do_the_gradients(
    buckets: int | list[int], rounds: int, look: tuple[int, int], causal: bool
) -> None:
    theirs, ours = pair(buckets, rounds, causal=causal, look=look)
    for n in (4, 8, 16, 24, 64):
        x = torch.randn(2, n, 24, dtype=torch.float64)
        grads: list[Tensor] = []
        outs: list[Tensor] = []
        for call in (
            lambda x: theirs(x).hidden_states,
            lambda x: ours(x, masks.causal() if causal else None),
        ):
            given = x.clone().requires_grad_()
            outs.append(call(given))
            outs[-1].square().sum().backward()
            grads.append(given.grad)
        torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_equals_transformers_with_padding_on_either_side(causal: bool) -> None:
    theirs, ours = pair(4, 3, causal=causal)
    x = torch.randn(3, 32, 24, dtype=torch.float64)
    real = torch.ones(3, 32, dtype=torch.bool)
    real[1, 20:], real[2, :7] = False, False
    mask = masks.keys(real) & (masks.causal() if causal else None)
    wanted = theirs(x, attention_mask=real.long()).hidden_states
    torch.testing.assert_close(ours(x, mask)[real], wanted[real], rtol=1e-5, atol=1e-5)
