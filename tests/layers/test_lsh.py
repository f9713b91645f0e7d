"""LSH attention against one query at a time, full attention, torch and the laws."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from everyhead.layers import chunked, hashing, masks
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.lsh import LshAttention, PublishedLshAttention
from everyhead.layers.packing import Packing
from everyhead.layers.rotary import Rotary

BOTH = pytest.mark.parametrize("kind", [LshAttention, PublishedLshAttention])
LENGTHS = (1, 2, 3, 5, 8, 17, 33)
INF = float("inf")


@pytest.fixture(autouse=True)
def chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts by chunks too, which else go by the matrix."""
    monkeypatch.setattr(chunked, "FEW", 1 << 40)


def build(kind: type[LshAttention] = LshAttention, **given: object) -> LshAttention:
    return kind(12, 3, **{"n_buckets": 4, "n_rounds": 2, "chunk": 3} | given).double().eval()


def real_of(n: int, sides: list[tuple[int, int]]) -> Tensor:
    """bool (B, n): what is left between so many padded places on the left and on the right."""
    real = torch.ones(len(sides), n, dtype=torch.bool)
    for row, (left, right) in zip(real, sides, strict=True):
        row[:left] = False
        row[n - right :] = False
    return real


def by_one_query(module: LshAttention, x: Tensor, real: Tensor, causal: bool) -> Tensor:
    """What the layer is said to do, in Python: lists of buckets, one softmax a round, logsumexp."""
    heads, width = module.n_heads, module.d_head
    q = (x @ module.q_proj.weight.T).unflatten(-1, (heads, width))
    v = (x @ module.v_proj.weight.T).unflatten(-1, (heads, width))
    size, (back, ahead) = module.hashing.chunk, module.hashing.look
    out = torch.zeros_like(q)
    for b, h in torch.cartesian_prod(torch.arange(len(x)), torch.arange(heads)).tolist():
        kept = [t for t in range(x.shape[1]) if real[b, t]]
        rounds = []
        for r in range(module.rotations.shape[2]):
            members: dict[int, list[int]] = {}
            for t in kept:
                turned = q[b, t, h] @ module.rotations[h, :, r].double()
                members.setdefault(int(torch.cat([turned, -turned]).argmax()), []).append(t)
            chunk = {t: (m, i // size) for m, ts in members.items() for i, t in enumerate(ts)}
            rounds.append(chunk)
        for t in kept:
            tops, mixed = [], []
            for chunk in rounds:
                near = [
                    j
                    for j in kept
                    if j != t
                    and chunk[j][0] == chunk[t][0]
                    and -back <= chunk[j][1] - chunk[t][1] <= ahead
                    and (j <= t or not causal)
                ]
                if near:
                    keys = F.normalize(q[b, near, h], dim=-1, eps=0)
                    scores = keys @ q[b, t, h]
                    tops.append(torch.logsumexp(scores, 0))
                    mixed.append(scores.softmax(0) @ v[b, near, h])
            share = torch.stack(tops).softmax(0) if tops else torch.ones(1, dtype=x.dtype)
            out[b, t, h] = share @ torch.stack(mixed or [v[b, t, h]])
    return out.flatten(2) @ module.o_proj.weight.T


@pytest.mark.parametrize("look", [(1, 0), (0, 0), (2, 1)])
@pytest.mark.parametrize("causal", [True, False])
@torch.no_grad()
def test_equals_one_query_at_a_time(causal: bool, look: tuple[int, int]) -> None:
    module = build(look=look)
    for n in (1, 2, 5, 19):
        x = torch.randn(2, n, 12, dtype=torch.float64)
        real = real_of(n, [(0, 0), (n // 4, n // 5)])
        mask = masks.keys(real) & (masks.causal() if causal else None)
        wanted = by_one_query(module, x, real, causal)[real]
        torch.testing.assert_close(module(x, mask)[real], wanted, rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@torch.no_grad()
def test_attend_is_the_matrix_times_the_values(
    kind: type[LshAttention], dtype: torch.dtype
) -> None:
    module = build(kind).to(dtype)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    for n in LENGTHS:
        parts = module.project(torch.randn(3, n, 12, dtype=dtype))
        real = real_of(n, [(0, 0), (n // 2, 0), (n // 4, n // 4)])
        for mask in (None, masks.causal(), masks.keys(real), masks.keys(real) & masks.causal()):
            matrix = module.weights(parts, mask)
            fast, slow = module.attend(parts, mask), module.mix(matrix, parts, mask)
            torch.testing.assert_close(fast, slow, rtol=tolerance, atol=tolerance)
            rows = matrix.sum(-1)
            torch.testing.assert_close(rows, (rows > 0).to(rows.dtype))
            seen = real if mask is not None and mask.key_mask is not None else real | True
            assert bool((rows[seen[:, None].expand(rows.shape)] > 0).all())
            some = module.weights(parts, mask, heads=[2, 0], rows=slice(n // 2, None))
            torch.testing.assert_close(some, matrix[:, [2, 0], n // 2 :])


@pytest.mark.parametrize("n", [1, 2, 3, 64, 65])
@torch.no_grad()
def test_one_bucket_is_full_attention(n: int) -> None:
    module = build(n_buckets=1, n_rounds=3, chunk=65)
    parts = module.project(torch.randn(2, n, 12, dtype=torch.float64))
    for mask, seen in ((None, torch.ones(n, n)), (masks.causal(), torch.ones(n, n).tril())):
        seen = seen.fill_diagonal_(0).bool()
        seen |= torch.eye(n, dtype=torch.bool) & ~seen.any(-1, keepdim=True)
        full = F.scaled_dot_product_attention(parts.q, parts.k, parts.v, seen, scale=1.0)
        torch.testing.assert_close(module.attend(parts, mask), full, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("n", [2, 3, 17, 64, 65])
@torch.no_grad()
def test_the_causal_form_never_sees_the_future_not_even_through_chunk_edges(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "BLOCK", 5)
    module = build(n_buckets=8, chunk=4).float()
    mask = masks.causal() & masks.keys(real_of(n, [(n // 3, 0), (0, 0)]))
    x = torch.randn(2, n, 12)
    before = module(x, mask)
    for t in range(0, n - 1, max(1, n // 9)):
        changed = x.clone()
        changed[:, t + 1 :] = torch.randn(2, n - t - 1, 12)
        after = module(changed, mask)
        assert torch.equal(after[:, : t + 1], before[:, : t + 1])
        assert not torch.equal(after[1, t + 1], before[1, t + 1])


def test_where_a_token_stands_does_not_depend_on_later_ones() -> None:
    how, real = hashing.Hashing((4,), 3, (1, 0)), torch.ones(2, 40, dtype=torch.bool)
    before = torch.randint(0, 4, (2, 3, 1, 40))
    for t in range(0, 39, 4):
        after = before.clone()
        after[..., t + 1 :] = torch.randint(0, 4, (2, 3, 1, 39 - t))
        (old,), (new,) = (hashing.within_buckets(each, real, how) for each in (before, after))
        assert torch.equal(new.slots[..., : t + 1], old.slots[..., : t + 1])
        for chunk in range(int(old.slots[0, 0, 0, : t + 1].max()) // 3 + 1):
            assert torch.equal(new.near[0, 0, chunk], old.near[0, 0, chunk])


@torch.no_grad()
def test_the_published_chunks_see_the_future_and_ours_do_not() -> None:
    earlier = {}
    for kind in (PublishedLshAttention, LshAttention):
        module = build(kind, n_buckets=8, chunk=4)
        x = torch.randn(1, 64, 12, dtype=torch.float64)
        before = module(x, masks.causal())
        changed = torch.cat([x[:, :-1], -x[:, -1:]], 1)
        earlier[kind] = (module(changed, masks.causal()) - before)[:, :-1].abs().max().item()
    assert earlier[LshAttention] == 0 < 1e-3 < earlier[PublishedLshAttention]
    assert "sees the future" in (PublishedLshAttention.__doc__ or "")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("extra", [(6, 0), (0, 6), (60, 3)])
@torch.no_grad()
def test_padding_changes_no_answer(extra: tuple[int, int], causal: bool) -> None:
    module = build().float()
    x = torch.randn(1, 21, 12)
    rule = masks.causal() if causal else None
    alone = module(x, rule)
    wide = F.pad(x, (0, 0, *extra), value=3.0)
    wide = torch.cat([wide, torch.randn_like(wide)])
    real = real_of(wide.shape[1], [extra, (0, 0)])
    got = module(wide, masks.keys(real) & rule)[:1, extra[0] : extra[0] + 21]
    torch.testing.assert_close(got, alone, rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("junk", [float("nan"), INF, 1e30])
def test_junk_under_the_key_mask_reaches_no_output_and_no_gradient(
    kind: type[LshAttention], junk: float
) -> None:
    module = build(kind)
    parts = module.project(torch.randn(2, 14, 12, dtype=torch.float64))
    real = real_of(14, [(3, 2), (0, 6)])
    hidden = ~real[:, None, :, None]
    found = []
    for value in (0.0, junk):
        q, k, v = (x.detach().masked_fill(hidden, value).requires_grad_() for x in parts[:3])
        out = module.attend(parts._replace(q=q, k=k, v=v), masks.keys(real) & masks.causal())
        out.square().sum().backward()
        found.append((out, q.grad, k.grad, v.grad))
    for clean, dirty in zip(*found, strict=True):
        torch.testing.assert_close(dirty, clean, rtol=1e-12, atol=1e-12)


@BOTH
def test_pads_share_no_bucket_with_real_tokens(kind: type[LshAttention]) -> None:
    module = build(kind, look=(0, 0))
    k = module.project(torch.randn(1, 24, 12, dtype=torch.float64)).k
    buckets = hashing.hashed(k, module.rotations, module.hashing.factors)
    real = real_of(24, [(5, 4)])
    for source, _, slots in module.layout(buckets, real, module.hashing):
        held = source.flatten()
        assert bool(real[0][held[held >= 0]].all())  # no pad is a key of any chunk
        counts = held[held >= 0].bincount(minlength=24)[real[0]]
        assert counts.tolist() == [module.n_heads * slots.shape[2]] * 15  # and each real one is


@BOTH
@torch.no_grad()
def test_any_length_from_1_up(kind: type[LshAttention]) -> None:
    module = build(kind, n_buckets=(2, 4), chunk=8).float()
    for n in (*range(1, 20), 63, 64, 65, 127, 128, 129, 1000, 1025):
        out = module(torch.randn(1, n, 12), masks.causal())
        assert out.shape == (1, n, 12) and bool(out.isfinite().all())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 7])
@torch.no_grad()
def test_a_cache_changes_nothing(step: int, padded: bool) -> None:
    module = build().float()
    x = torch.randn(2, 23, 12)
    real = real_of(23, [(4, 0), (0, 0)]) if padded else None
    whole = module(x, masks.causal() & (None if real is None else masks.keys(real)))
    cache, pieces = KeyValueCache(23), []
    for start in range(0, 23, step):
        stop = min(start + step, 23)
        rule = masks.causal() & (None if real is None else masks.keys(real[:, :stop]))
        pieces.append(module(x[:, start:stop], rule, cache=cache))
        x, order = x.flip(0), torch.tensor([1, 0])  # rows move, as beams do
        real = None if real is None else real.flip(0)
        pieces = [piece.flip(0) for piece in pieces]
        whole = whole.flip(0)
        cache.reorder(order)
    seen = torch.ones(2, 23, dtype=torch.bool) if real is None else real
    torch.testing.assert_close(torch.cat(pieces, 1)[seen], whole[seen], rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("long", [0, 1 << 30])
def test_gradients_equal_plain_autograds(
    kind: type[LshAttention], long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "LONG", long)  # scores made again in backward, or kept
    monkeypatch.setattr(chunked, "BLOCK", 4 if long else 64)
    module = build(kind)
    x = torch.randn(2, 19, 12, dtype=torch.float64)
    mask = masks.keys(real_of(19, [(0, 0), (3, 2)])) & masks.causal()
    found = []
    for plain in (False, True):
        module.zero_grad()
        given = x.clone().requires_grad_()
        parts = module.project(given)
        out = module.attend(parts, mask)
        if plain:
            out = module.mix(module.weights(parts, mask), parts, mask)
        (out * torch.arange(out.shape[-1])).square().sum().backward()
        found.append([given.grad, module.q_proj.weight.grad, module.v_proj.weight.grad])
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)


def test_what_is_dropped_is_dropped_again_when_scores_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = build(dropout=0.4).train()
    x, found = torch.randn(1, 19, 12, dtype=torch.float64), []
    for long in (0, 1 << 30):
        monkeypatch.setattr(chunked, "LONG", long)
        given = x.clone().requires_grad_()
        torch.manual_seed(2)
        out = module(given, masks.causal())
        out.square().sum().backward()
        found.append((out, given.grad))
    for again, kept in zip(*found, strict=True):
        torch.testing.assert_close(again, kept, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
def test_a_text_shorter_than_its_buckets_goes_by_the_matrix_and_gives_the_same(
    padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(n_buckets=64, chunk=8)
    x = torch.randn(2, 40, 12, dtype=torch.float64)
    mask = masks.causal() & (masks.keys(real_of(40, [(0, 0), (3, 2)])) if padded else None)
    found, calls, rows = [], [], chunked._attend_rows
    monkeypatch.setattr(chunked, "_attend_rows", lambda *a: calls.append(1) or rows(*a))
    for few in (1 << 40, 4):
        monkeypatch.setattr(chunked, "FEW", few)
        module.zero_grad()
        given = x.clone().requires_grad_()
        out = module(given, mask)
        out.square().sum().backward()
        found.append([out.detach(), given.grad, module.q_proj.weight.grad.clone()])
    assert len(calls) == 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    longer = torch.randn(1, 60, 12, dtype=torch.float64)
    module(longer), module(torch.cat([longer, longer], 1))
    assert len(calls) == 2  # not where buckets fill, and by the length alone


def test_no_tensor_grows_with_the_square_of_the_length() -> None:
    largest = 0

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.shape:
                largest = max(largest, out.numel())
            return out

    sizes = {}
    module = build(n_buckets=8, chunk=16).float()
    for n in (1024, 2048):
        largest = 0
        with Watch(), torch.no_grad():
            module(torch.randn(1, n, 12), masks.causal())
        sizes[n] = largest
    assert sizes[2048] < 2.1 * sizes[1024] < 2048 * 2048


def test_rotations_are_saved_fixed_in_eval_and_redrawn_on_request_in_training() -> None:
    module, other = build(), build()
    x = torch.randn(1, 17, 12, dtype=torch.float64)
    with torch.no_grad():
        before = module(x)
        assert torch.equal(module(x), before)
        assert not torch.equal(other(x), before)
        other.load_state_dict(module.state_dict())
        assert torch.equal(other(x), before)
        with pytest.raises(ValueError, match="fixed in eval"):
            module.redraw()
        module.train().redraw()
        assert not torch.equal(module(x), before)
    assert copy.deepcopy(module).float().bfloat16().rotations.dtype == torch.float32


def test_dropout_keeps_the_mean_and_is_off_in_eval() -> None:
    module = build(n_buckets=2, chunk=16, dropout=0.5)
    x = torch.randn(1, 16, 12, dtype=torch.float64)
    with torch.no_grad():
        clean = module(x)
        module.train()
        mean = torch.stack([module(x) for _ in range(60)]).mean(0)
        assert not torch.equal(module(x), clean)
    assert (mean - clean).abs().mean() < 0.25 * clean.abs().mean()


def test_what_it_cannot_honour_is_refused() -> None:
    module, x = build(), torch.randn(1, 6, 12, dtype=torch.float64)
    rotation = Rotary(4)(torch.arange(6)[None])
    with pytest.raises(ValueError, match="bias"):
        module(x, bias=torch.randn(1, 3, 6, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="rotary"):
        module(x, rotation=rotation)
    with pytest.raises(ValueError, match="memory"):
        module(x, None, x)
    for mask in (masks.window(2, 0), masks.dense(torch.ones(6, 6, dtype=torch.bool))):
        with pytest.raises(ValueError, match="exact attention"):
            module(x, mask)
    for wrong in ({"n_buckets": 3}, {"chunk": 0}, {"look": (-1, 0)}, {"n_rounds": 0}):
        with pytest.raises(ValueError, match=r"got"):
            build(**wrong)


@torch.no_grad()
def test_autocast_hashes_and_sums_in_float32() -> None:
    module = build().float()
    x = torch.randn(2, 21, 12)
    with torch.autocast("cpu", torch.bfloat16):
        parts = module.project(x)
        out = module.attend(parts, masks.causal())
    slow = module.mix(module.weights(parts, masks.causal()), parts)
    assert math.isfinite(out.sum().item())
    torch.testing.assert_close(out.float(), slow.float(), rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_packed_rows_give_the_same() -> None:
    module, x = build(), torch.randn(2, 20, 12, dtype=torch.float64)
    real = real_of(20, [(6, 0), (0, 3)])
    mask = masks.keys(real) & masks.causal()
    packed = module(x[real], mask, packing=Packing(real))
    torch.testing.assert_close(packed, module(x, mask)[real], rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@torch.no_grad()
def test_a_traced_graph_gives_the_same() -> None:
    module, x = build(), torch.randn(2, 20, 12, dtype=torch.float64)
    traced = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(traced(x, masks.causal()), module(x, masks.causal()))
