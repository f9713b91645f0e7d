"""Local attention against transformers' LocalSelfAttention, dense masks and the laws."""

import pytest
import torch
from torch import Tensor

from everyhead.layers import attention, blocked, masks
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.local import LocalAttention, NearChunks
from everyhead.layers.packing import Packing
from everyhead.layers.positions import places
from everyhead.layers.rules import span_of

LENGTHS = (1, 2, 3, 4, 5, 8, 9, 13, 31, 64, 65)
NEAR = {"rtol": 1e-10, "atol": 1e-10}


def build(**given: object) -> LocalAttention:
    torch.manual_seed(0)
    return LocalAttention(12, 3, **{"chunk": 4, "look": (1, 0)} | given).double().eval()


def states(rows: int, n: int) -> Tensor:
    return torch.randn(rows, n, 12, dtype=torch.float64)


def real_of(n: int, sides: list[tuple[int, int]]) -> Tensor:
    """bool (B, n): what is left between so many padded places on the left and on the right."""
    at = torch.arange(n)
    return torch.stack([(at >= left) & (at < n - right) for left, right in sides])


def seen(real: Tensor, size: int, look: tuple[int, int], causal: bool) -> Tensor:
    """bool (B, 1, n, n), token by token."""
    batch, n = real.shape
    found = torch.zeros(batch, 1, n, n, dtype=torch.bool)
    for b in range(batch):
        kept = [t for t in range(n) if real[b, t]]
        for i, t in enumerate(kept):
            for j, s in enumerate(kept):
                near = -look[0] <= j // size - i // size <= look[1]
                found[b, 0, t, s] = near and (s <= t or not causal)
    return found


@pytest.mark.parametrize("look", [(1, 0), (0, 0), (2, 0)])
@torch.no_grad()
def test_equals_transformers_at_their_lengths(look: tuple[int, int]) -> None:
    reformer = pytest.importorskip("transformers.models.reformer.modeling_reformer")
    transformers = pytest.importorskip("transformers")
    config = transformers.ReformerConfig(
        hidden_size=12,
        num_attention_heads=3,
        attention_head_size=4,
        local_attn_chunk_length=4,
        local_num_chunks_before=look[0],
        local_num_chunks_after=look[1],
        is_decoder=True,
    )
    theirs, ours = reformer.LocalSelfAttention(config).double().eval(), build(look=look)
    for mine, name in ((ours.q_proj, "query"), (ours.k_proj, "key"), (ours.v_proj, "value")):
        mine.weight.copy_(getattr(theirs, name).weight)
    ours.o_proj.weight.copy_(torch.eye(12))
    for n in (1, 3, 4, 8 if look[0] < 2 else 12, 20):  # their ring would come round
        x, real = states(2, n), real_of(n, [(0, 0), (0, n // 3)])
        wanted = theirs(x, attention_mask=real.long()).hidden_states
        got = ours(x, masks.causal() & masks.keys(real))
        torch.testing.assert_close(got[real], wanted[real], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("long", [1 << 20, 0])
@pytest.mark.parametrize("look", [(1, 0), (0, 0), (2, 1)])
@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_equals_attention_under_the_same_matrix_at_any_length(
    causal: bool, look: tuple[int, int], long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, and block by block with the keys that each block can reach."""
    monkeypatch.setattr(attention, "LONG", long)
    monkeypatch.setattr(blocked, "ROWS", 6)
    module = build(look=look)
    for n in LENGTHS:
        real = real_of(n, [(0, 0), (n // 3, n // 4), (0, n // 2)])
        rule = masks.causal() if causal else masks.Mask()
        parts = module.project(states(3, n))
        for mask, kept in ((rule & masks.keys(real), real), (rule, real | True)):
            mask = module.visible(mask)
            matrix = masks.dense(seen(kept, 4, look, causal))
            wanted = attention.weights(parts, matrix)
            found = module.weights(parts, mask)
            out = module.attend(parts, mask).transpose(1, 2)[kept]
            torch.testing.assert_close(
                found.transpose(1, 2)[kept], wanted.transpose(1, 2)[kept], **NEAR
            )
            mixed = module.mix(wanted, parts).transpose(1, 2)[kept]
            torch.testing.assert_close(out, mixed, **NEAR)


@torch.no_grad()
def test_a_chunk_as_long_as_the_text_is_full_attention() -> None:
    for n in (1, 5, 64):
        module = build(chunk=64)
        parts, mask = module.project(states(2, n)), masks.causal()
        full = attention.attend(parts, mask)
        torch.testing.assert_close(module.attend(parts, module.visible(mask)), full, **NEAR)


@pytest.mark.parametrize("extra", [(3, 0), (0, 6), (61, 2)])
@torch.no_grad()
def test_padding_moves_no_edge(extra: tuple[int, int]) -> None:
    module, x = build(), states(1, 21)
    wide = torch.nn.functional.pad(x, (0, 0, *extra), value=3.0)
    wide = torch.cat([wide, torch.randn_like(wide)])
    mask = masks.causal() & masks.keys(real_of(wide.shape[1], [extra, (0, 0)]))
    got = module(wide, mask)[:1, extra[0] : extra[0] + 21]
    torch.testing.assert_close(got, module(x, masks.causal()), **NEAR)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
@torch.no_grad()
def test_a_cache_changes_nothing(step: int, biased: bool) -> None:
    """Also where a bias that hides the padding stands in the mask's place, as in a model's step."""
    if biased and step > 1:
        return
    module, x, real = build(), states(2, 23), real_of(23, [(5, 0), (0, 0)])
    whole = module(x, masks.causal() & masks.keys(real))
    cache, pieces = KeyValueCache(23), []
    for start in range(0, 23, step):
        stop = min(start + step, 23)
        rule = masks.causal() & masks.keys(real[:, :stop])
        if biased and start > 5:
            hidden = torch.zeros(2, 1, 1, stop, dtype=x.dtype)
            cache.step_bias = hidden.masked_fill(~real[:, None, None, :stop], float("-inf"))
            rule = masks.causal()
        pieces.append(module(x[:, start:stop], rule, cache=cache))
    torch.testing.assert_close(torch.cat(pieces, 1)[real], whole[real], **NEAR)


@torch.no_grad()
def test_packed_rows_give_the_same() -> None:
    module, x, real = build(), states(2, 20), real_of(20, [(6, 0), (0, 3)])
    mask = masks.keys(real) & masks.causal()
    packed = module(x[real], mask, packing=Packing(real))
    torch.testing.assert_close(packed, module(x, mask)[real], **NEAR)


def test_the_span_holds_every_key_that_is_seen_and_no_chunk_more() -> None:
    real = real_of(40, [(0, 0), (7, 0), (3, 9)])
    for numbers in (None, places(real, 40)):
        rule = NearChunks(4, 1, 0, numbers)
        i, j = torch.arange(40)[:, None], torch.arange(40)[None]
        visible = rule.visible(i, j, 0) & torch.ones(3, 1, 40, 40, dtype=torch.bool)
        for start, stop in ((0, 1), (0, 6), (9, 12), (20, 40)):
            keys = visible[:, 0, start:stop].flatten(0, 1).any(0).nonzero()[:, 0]
            assert span_of(rule, start, stop, 40, 0) == (int(keys[0]), int(keys[-1]) + 1)


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    sizes = []
    for n in (2048, 4096):
        module, x = LocalAttention(12, 3, chunk=16), torch.randn(1, n, 12)
        largest = 0

        class Watch(torch.overrides.TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
                nonlocal largest
                out = func(*args, **(kwargs or {}))
                if isinstance(out, Tensor) and out.shape:
                    largest = max(largest, out.numel())
                return out

        with Watch(), torch.no_grad():
            module(x, masks.causal())
        sizes.append(largest)
    assert sizes[1] <= 2 * sizes[0] < 2048 * 2048


def test_numbers_that_make_no_chunk_are_refused() -> None:
    for wrong in ({"chunk": 0}, {"look": (-1, 0)}):
        with pytest.raises(ValueError, match="at least 1 token"):
            build(**wrong)
