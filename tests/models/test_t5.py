"""T5 against transformers' T5ForConditionalGeneration with the same random weights."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from everyhead.data.batching import Batch
from everyhead.layers.inference import StepBlock
from everyhead.layers.relative_bias import RelativeBias, buckets
from everyhead.models.prepare import prepare
from everyhead.models.t5 import PRESETS, T5, T5Config
from everyhead.training.losses import batch_loss
from everyhead.weights.t5 import config as config_of
from everyhead.weights.t5 import slots
from tests.laws.families import padded

transformers = pytest.importorskip("transformers")

NEAR = {"rtol": 1e-5, "atol": 1e-5}
SMALL = {
    "vocab_size": 80,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
}
# One of each published size's shape and start, a layer a half.
PUBLISHED = {
    "t5-small": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "feed_forward_proj": "relu"},
    "flan-t5-small": {"d_model": 512, "d_ff": 1024, "num_heads": 6},
}
V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


def pair(values: dict[str, Any], seed: int = 0) -> tuple[T5, Any]:
    """Ours and theirs with the same weights; an output table of its own for v1.1."""
    torch.manual_seed(seed)
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(**values)).eval()
    if values.get("tie_word_embeddings") is False:
        own = torch.randn(theirs.shared.weight.shape) * values["d_model"] ** -0.5
        theirs.lm_head.weight = torch.nn.Parameter(own)
    ours = T5(config_of(theirs.config.to_dict() | values, "config.json")).eval()
    state, own_state = theirs.state_dict(), ours.state_dict()
    with torch.no_grad():
        for slot in slots(ours):
            own_state[slot.ours[0]].copy_(state[slot.theirs[0]])
    return ours, theirs


@cache
def small(kind: str) -> tuple[T5, Any]:
    return pair(SMALL | (V11 if kind == "v1.1" else {"tie_word_embeddings": True}))


LENGTHS = {"right": ([9, 4, 30, 1], [3, 25, 1, 6]), "left": ([5, 33, 2, 8], [7, 7, 2, 1])}


def batch(side: str, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    rows = [
        [torch.randint(2, 80, (1, n), generator=rng) for n in lengths] for lengths in LENGTHS[side]
    ]
    (source, source_mask), (target, target_mask) = (padded(r, 0, left=side == "left") for r in rows)
    return source, target, source_mask, target_mask


def their_logits(theirs: Any, sides: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    source, target, source_mask, target_mask = sides
    return theirs(
        input_ids=source,
        decoder_input_ids=target,
        attention_mask=source_mask.long(),
        decoder_attention_mask=target_mask.long(),
    ).logits


def relative(got: Tensor, wanted: Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["v1.0", "v1.1"])
@torch.no_grad()
def test_logits_are_theirs_in_padded_batches(kind: str, side: str) -> None:
    ours, theirs = small(kind)
    sides = batch(side)
    real = sides[3]
    torch.testing.assert_close(ours(*sides)[real], their_logits(theirs, sides)[real], **NEAR)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", ["v1.0", "v1.1"])
def test_gradients_are_theirs(kind: str, side: str) -> None:
    ours, theirs = small(kind)
    sides = batch(side)
    real = sides[3]
    for model, logits in ((ours, ours(*sides)), (theirs, their_logits(theirs, sides))):
        model.zero_grad()
        logits[real].log_softmax(-1)[:, 3].mean().backward()
    wanted = {name: p.grad for name, p in theirs.named_parameters()}
    found = {name: p.grad for name, p in ours.named_parameters()}
    assert len(slots(ours)) > 30
    for slot in slots(ours):
        mine, other = _gradient(slot.ours, found), _gradient(slot.theirs, wanted)
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=2e-6, msg=slot.ours[0])


def _gradient(names: tuple[str, ...], grads: dict[str, Tensor | None]) -> Tensor:
    (grad,) = {id(g): g for n in names if (g := grads.get(n)) is not None}.values()
    return grad


@pytest.mark.parametrize("name", PUBLISHED)
@torch.no_grad()
def test_at_published_size_and_start_with_texts_beyond_the_farthest_bucket(name: str) -> None:
    """One layer a half; 200 tokens also take the fused kernel's way."""
    shape = {"vocab_size": 500, "d_kv": 64, "num_layers": 1, "num_decoder_layers": 1}
    ours, theirs = pair(shape | PUBLISHED[name])
    rng = torch.Generator().manual_seed(2)
    source, target = (torch.randint(2, 500, (2, n), generator=rng) for n in (210, 190))
    real = torch.arange(210) < torch.tensor([210, 150])[:, None]
    sides = source, target, real, torch.ones_like(target, dtype=torch.bool)
    got, wanted = ours(*sides), their_logits(theirs, sides)
    assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["v1.0", "v1.1"])
@torch.no_grad()
def test_bf16_is_near_their_float32_of_the_same_rounded_weights(kind: str) -> None:
    ours, theirs = pair(SMALL | (V11 if kind == "v1.1" else {}))
    ours, theirs = ours.bfloat16(), theirs.bfloat16().float()
    sides = batch("right")
    real = sides[3]
    assert relative(ours(*sides)[real], their_logits(theirs, sides)[real]) < 1e-2


@torch.no_grad()
def test_float16_stays_finite_where_the_stream_passes_its_largest_number() -> None:
    """What `T5.half()` of published weights does: the feed-forward's result is beyond 65,504."""
    ours, _ = pair(SMALL | V11)
    for stack in (ours.encoder, ours.decoder):
        for block in stack.blocks:
            block.feed_forward.down_proj.weight.mul_(2.0**15)
    sides = batch("right")
    wanted = ours(*sides)[sides[3]]
    half = ours.half()
    stream = half.source_embed(sides[0])
    assert float(half.encoder.blocks[0](stream.float()).abs().max()) > 65_504
    logits = half(*sides)[sides[3]]
    assert logits.dtype == torch.float16 and logits.isfinite().all()
    assert relative(logits, wanted) < 1e-2
    assert relative(stepwise(prepare(half), sides), wanted) < 1e-2


def stepwise(model: torch.nn.Module, sides: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
    """Logits at real targets, one position at a time with a cache."""
    source, target, source_mask, target_mask = sides
    memory = model.encode(source, source_mask)
    cache = model.cache(memory, target.shape[1])
    steps = [model.decode(x, memory, cache=cache) for x in target.split(1, 1)]
    return model.head(torch.cat(steps, 1))[target_mask]


@pytest.mark.parametrize("kind", ["v1.0", "v1.1"])
@torch.no_grad()
def test_a_prepared_copy_takes_short_steps_to_the_same_logits(kind: str) -> None:
    ours, _ = small(kind)
    prepared, sides = prepare(ours), batch("right")
    assert all(isinstance(block, StepBlock) for block in prepared.decoder.blocks)
    wanted = ours(*sides)[sides[3]]
    torch.testing.assert_close(stepwise(prepared, sides), wanted, **NEAR)
    torch.testing.assert_close(prepared(*sides)[sides[3]], wanted, **NEAR)


@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (12, 20), (64, 300), (8, 5)])
@pytest.mark.parametrize("causal", [True, False])
def test_buckets_are_theirs_at_every_distance(
    n_buckets: int, max_distance: int, causal: bool
) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-700, 700)
    wanted = T5Attention._relative_position_bucket(distance, not causal, n_buckets, max_distance)
    found = buckets(distance, n_buckets, max_distance=max_distance, causal=causal)
    assert torch.equal(found, wanted)


def test_the_bias_is_the_tables_entry_for_each_pair() -> None:
    """Also for queries that stand behind a cache, and after a stay on the meta device."""
    torch.manual_seed(0)
    bias = RelativeBias(8, 3, max_distance=12, causal=False)
    with torch.device("meta"):
        empty = RelativeBias(8, 3, max_distance=12, causal=False)
    empty = empty.to_empty(device="cpu")
    empty.load_state_dict(bias.state_dict())
    for n_queries, n_keys in ((1, 1), (1, 30), (4, 9), (30, 30)):
        found = bias(n_queries, n_keys)
        assert found.shape == (1, 3, n_queries, n_keys)
        assert torch.equal(empty(n_queries, n_keys), found)
        for i in range(n_queries):
            for j in range(n_keys):
                away = torch.tensor(j - (i + n_keys - n_queries))
                row = int(buckets(away, 8, max_distance=12, causal=False))
                assert torch.equal(found[0, :, i, j], bias.weight[row])


@pytest.mark.parametrize(("n_buckets", "max_distance", "causal"), [(2, 9, False), (32, 16, True)])
def test_buckets_that_leave_nothing_for_far_distances_are_refused(
    n_buckets: int, max_distance: int, causal: bool
) -> None:
    with pytest.raises(ValueError, match="leave none for far distances"):
        RelativeBias(n_buckets, 2, max_distance=max_distance, causal=causal)


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("small", {}),
        ("base", {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}),
        ("small-v1.1", {"d_ff": 1024, "num_layers": 8, "num_heads": 6} | V11),
        ("base-v1.1", {"d_model": 768, "num_layers": 12, "num_heads": 12} | V11),
    ],
)
def test_presets_have_as_many_parameters_as_theirs(name: str, theirs: dict[str, Any]) -> None:
    with torch.device("meta"):
        ours = T5(T5Config(**PRESETS[name]))
        other = transformers.T5ForConditionalGeneration(transformers.T5Config(**theirs))
    wanted = sum(p.numel() for p in other.parameters())
    if not ours.config.tie_output:  # which their newer code ties until a file says otherwise
        wanted += other.shared.weight.numel()
    assert sum(p.numel() for p in ours.parameters()) == wanted


def test_the_start_is_that_of_the_published_code() -> None:
    """The output's own table as the authors' newer code draws it, not as transformers does."""
    torch.manual_seed(0)
    ours = T5(T5Config(vocab_size=600, d_model=256, d_ff=512, gated=True, tie_output=False))
    block = ours.decoder.blocks[0]
    wanted = {
        ours.target_embed.weight: 1.0,
        ours.output_head.weight: 256**-0.5,
        ours.decoder_bias.weight: 256**-0.5,
        block.self_attn.q_proj.weight: (256 * 64) ** -0.5,
        block.cross_attn.k_proj.weight: 256**-0.5,
        block.self_attn.o_proj.weight: 512**-0.5,
        block.feed_forward.up_proj.weight: 256**-0.5,
        block.feed_forward.down_proj.weight: 512**-0.5,
    }
    for weight, std in wanted.items():
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("kind", ["v1.0", "v1.1"])
@torch.no_grad()
def test_the_loss_of_training_is_theirs(kind: str) -> None:
    """It takes the head's table and the states before it, never the logits as a whole."""
    ours, theirs = small(kind)
    source, target, source_mask, target_mask = batch("right")
    start = torch.cat([torch.zeros_like(target[:, :1]), target[:, :-1]], 1)
    found = batch_loss(
        ours, Batch(source, source_mask, start, target, target_mask, int(target_mask.sum()), 4), 0.0
    )
    wanted = theirs(
        input_ids=source,
        attention_mask=source_mask.long(),
        labels=target.masked_fill(~target_mask, -100),
    ).loss
    assert float(found.nll) / found.n_tokens == pytest.approx(float(wanted), rel=1e-5)
