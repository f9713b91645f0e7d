"""Windows with global tokens: against plain loops, the laws 1 to 4, the blocks, what is refused."""

import math

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from everyhead.inspection.changes import HeadOff, TokenHidden
from everyhead.inspection.importance import weight_gradients
from everyhead.inspection.trace import record
from everyhead.layers import attention, blocked, masks
from everyhead.layers.cache import KeyValueCache
from everyhead.layers.masks import Mask
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.layers.packing import Packing
from everyhead.layers.rotary import Rotary
from everyhead.layers.window import WindowAttention, WindowParts
from tests.layers.oracles import TOLERANCE, lengths_mask, relative_error

LENGTHS = (1, 2, 3, 63, 64, 65, 127, 128, 129, 1000, 1025)
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def made(left: int = 3, right: int = 3, dilation: int = 1, d_model: int = 16) -> WindowAttention:
    """Two heads, in eval, float64, with sharp scores and no bias at zero."""
    torch.manual_seed(5)
    module = WindowAttention(d_model, 2, left=left, right=right, dilation=dilation)
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(2) if p.dim() > 1 else p.normal_(std=0.3)
    return module.double().eval()


def states(batch: int, n: int, d_model: int = 16) -> Tensor:
    rng = torch.Generator().manual_seed(n)
    return torch.randn(batch, n, d_model, generator=rng, dtype=torch.float64)


def marks(batch: int, n: int) -> Tensor:
    """Global tokens on several places, others in each row; none in the last of three."""
    marked = torch.zeros(batch, n, dtype=torch.bool)
    marked[0, 0] = marked[0, n // 3] = True
    if batch > 1:
        marked[1, n // 2] = marked[1, n - 1] = True
    return marked


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every attention goes by blocks, of 4 queries."""
    monkeypatch.setattr(attention, "LONG", 1)
    monkeypatch.setattr(blocked, "ROWS", 4)


def by_loops(module: WindowAttention, x: Tensor, marked: Tensor, real: Tensor, mode: str) -> Tensor:
    """Equation by equation: one head, one query, one key at a time."""
    maps = (module.q_proj, module.k_proj, module.v_proj)
    others = (module.q_global, module.k_global, module.v_global)
    step = max(1, module.window.step)
    heads = [[m(x).unflatten(-1, (2, 8)) for m in kind] for kind in (maps, others)]
    out = torch.zeros_like(x).unflatten(-1, (2, 8))
    for b, h, i in ((b, h, i) for b in range(len(x)) for h in range(2) for i in range(x.shape[1])):
        q, k, v = heads[int(marked[b, i])]
        seen = [
            j
            for j in range(x.shape[1])
            if real[b, j]
            and (mode != "causal" or j <= i)
            and (
                (-module.window.left <= j - i <= module.window.right and (j - i) % step == 0)
                or marked[b, i]
                or marked[b, j]
            )
        ]
        powers = [math.exp(float(q[b, i, h] @ k[b, j, h]) / math.sqrt(8)) for j in seen]
        for j, power in zip(seen, powers, strict=True):
            out[b, i, h] += power / sum(powers) * v[b, j, h]
    return module.o_proj(out.flatten(2))


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("mode", ["both sides", "causal"])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 17])
@torch.no_grad()
def test_is_the_equation_one_query_at_a_time(n: int, mode: str, dilation: int) -> None:
    module = made(3, 0 if mode == "causal" else 2, dilation)
    x, marked = states(3, n), marks(3, n)
    real = lengths_mask([n, max(1, n - 2), n], n)
    mask = masks.keys(real) & masks.global_tokens(marked & real)
    mask = mask & masks.causal() if mode == "causal" else mask
    wanted = by_loops(module, x, marked & real, real, mode)
    torch.testing.assert_close(module(x, mask)[real], wanted[real], **EXACT)


def parts_of(module: WindowAttention, x: Tensor, mask: Mask | None) -> tuple[WindowParts, Mask]:
    rule = module.visible(mask)
    return module.completed(module.project(x), x, rule, None), rule


# ----------------------------------------------------------------------------- law 1: one matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("left_padded", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("n", LENGTHS)
@torch.no_grad()
def test_the_fast_result_is_the_matrix_times_the_values(
    n: int, batch: int, left_padded: bool, dtype: torch.dtype
) -> None:
    module = made(8, 8).to(dtype)
    real = lengths_mask([n, max(1, n - 5), max(1, n // 2)][:batch], n, left=left_padded)
    mask = masks.global_tokens(marks(batch, n) & real) & masks.keys(real)
    parts, rule = parts_of(module, states(batch, n).to(dtype), mask)
    matrix = module.weights(parts, rule)
    out, mixed = module.attend(parts, rule), module.mix(matrix, parts, rule)
    sums = matrix.sum(-1)
    assert (((sums - 1).abs() < 1e-4) | (sums == 0)).all() and (matrix >= 0).all()
    if dtype == torch.float32:
        torch.testing.assert_close(out, mixed, rtol=0, atol=TOLERANCE[dtype])
    else:
        assert relative_error(out, mixed) < TOLERANCE[dtype]


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize(("left", "right"), [(3, 3), (4, 0), (0, 2), (50, 50)])
@pytest.mark.parametrize("n", [1, 2, 5, 30, 41])
@torch.no_grad()
def test_blocks_are_the_whole(
    n: int, left: int, right: int, dilation: int, small_blocks: None
) -> None:
    module = made(left, right, dilation)
    for mask in (None, masks.global_tokens(marks(3, n)), masks.causal() & masks.window(9, 9)):
        parts, rule = parts_of(module, states(3, n), mask)
        mixed = module.mix(module.weights(parts, rule), parts, rule)
        torch.testing.assert_close(module.attend(parts, rule), mixed, **EXACT)


@torch.no_grad()
def test_rows_and_heads_asked_for_are_a_cut_of_the_whole() -> None:
    module, n = made(), 20
    parts, rule = parts_of(module, states(3, n), masks.global_tokens(marks(3, n)))
    whole, out = module.weights(parts, rule), module.attend(parts, rule)
    for rows in (slice(0, 3), slice(5, 20, 4), torch.tensor([19, 0, 6]), torch.tensor([3])):
        cut = module.weights(parts, rule, heads=[1], rows=rows)
        torch.testing.assert_close(cut, whole[:, [1]][:, :, rows], **EXACT)
        mixed = module.mix(whole[:, :, rows], parts, rule, rows)
        torch.testing.assert_close(mixed, out[:, :, rows], **EXACT)
    with pytest.raises(ValueError, match="say which rows"):
        module.mix(whole[:, :, :3], parts, rule)


def test_gradients_are_those_of_the_whole(small_blocks: None) -> None:
    for dilation in (1, 2):
        module, mask = made(3, 2, dilation), masks.global_tokens(marks(3, 22))
        x = states(3, 22).requires_grad_()
        leaves = [x, *module.parameters()]
        up = torch.randn(3, 22, 16, dtype=torch.float64)
        found = torch.autograd.grad((module(x, mask) * up).sum(), leaves)
        parts, rule = parts_of(module, x, mask)
        out = module.mix(module.weights(parts, rule), parts, rule)
        whole = module.o_proj(out.transpose(1, 2).flatten(2))
        wanted = torch.autograd.grad((whole * up).sum(), leaves)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, **EXACT)


# --------------------------------------------------------------------------- law 2: never n × n


class Largest(TorchFunctionMode):
    """The largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numel = max(self.numel, out.untyped_storage().size() // out.element_size())
        return out


@pytest.mark.parametrize("dilation", [1, 4])
@torch.no_grad()
def test_no_tensor_of_queries_by_keys_is_made(dilation: int) -> None:
    module, n = made(16, 16, dilation).float(), 4096
    mask = masks.global_tokens(marks(1, n)) & masks.keys(torch.ones(1, n, dtype=torch.bool))
    x = states(1, n).float()
    with Largest() as largest:
        module(x, mask)
    block = blocked.ROWS * (blocked.ROWS + 2 * 16 + 3)
    assert largest.numel <= max(block, 3 * n * 16)  # and n² is 85 times as much


def test_a_dilated_window_makes_no_score_in_vain() -> None:
    """As many as a plain window of as many keys: 256 queries of one residue, and their keys."""
    n, device = 8192, torch.device("cpu")

    def scores(mask: Mask) -> int:
        found = 0
        for start, stop, keys, step in blocked.reaches(mask, n, n, device):
            found += len(range(start, stop, step)) * len(range(*keys.indices(n)))
        return found

    plain = scores(masks.window(64, 64))
    for step in (2, 4, 8):
        assert scores(masks.window(64 * step, 64 * step, step=step)) <= plain
    assert scores(masks.window(64 * 4, 64 * 4)) > 1.9 * plain  # what a mask alone would cost


@pytest.mark.parametrize("name", ["mask", "prefix", "cached", "or"])
def test_a_dilated_rule_beside_others(name: str, small_blocks: None) -> None:
    n, step = 30, 3
    n_queries = 10 if name == "cached" else n
    rule = masks.window(6, 6, step=step)
    mask = {
        "mask": rule & masks.causal() & masks.keys(lengths_mask([30, 22], n)),
        "prefix": masks.prefix(2, rule),
        "cached": rule & masks.causal(),
        "or": rule | masks.window(1, 0),
    }[name]
    rng = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, 8, generator=rng, dtype=torch.float64) for _ in range(3))
    q = q[:, :, n - n_queries :]
    parts = attention.Parts(q, k, v, 0.4)
    wanted = attention.mix(attention.weights(parts, mask), parts, mask)
    torch.testing.assert_close(attention.attend(parts, mask), wanted, **EXACT)


# ------------------------------------------------------------------------------- law 3: padding


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("n_pad", [0, 6, 60])
@torch.no_grad()
def test_padding_changes_nothing(n_pad: int, left: bool) -> None:
    module, n = made(), 20
    x, marked = states(2, n), marks(2, n)
    at = slice(n_pad, None) if left else slice(0, n)
    wide = torch.full((2, n + n_pad, 16), 7.0, dtype=torch.float64)
    real, both = (torch.zeros(2, n + n_pad, dtype=torch.bool) for _ in range(2))
    wide[:, at], real[:, at], both[:, at] = x, True, marked
    mask = masks.keys(real) & masks.global_tokens(both)
    plain = module(x, masks.global_tokens(marked))
    torch.testing.assert_close(module(wide, mask)[:, at], plain, **EXACT)
    packed = Packing(real)
    rows = module(packed.pack(wide), mask, packing=packed)
    torch.testing.assert_close(rows, plain.flatten(0, 1), **EXACT)


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("left", [False, True])
def test_junk_under_the_key_mask_never_leaks(left: bool, junk: float, small_blocks: None) -> None:
    """In k and v and in the global tokens' own k' and v'."""
    n, results = 20, []
    real = lengths_mask([20, 13, 4], n, left=left)
    mask = masks.keys(real) & masks.global_tokens(marks(3, n) & real)
    for value in (junk, 0.0):
        module = made()
        parts, rule = parts_of(module, states(3, n), mask)
        names = ("k", "v", "k_global", "v_global")
        given = {
            name: getattr(parts, name).detach().masked_fill(~real[:, None, :, None], value)
            for name in names
        }
        leaves = [x.requires_grad_() for x in given.values()]
        parts = parts._replace(q=parts.q.detach(), q_global=parts.q_global.detach(), **given)
        out, matrix = module.attend(parts, rule), module.weights(parts, rule)
        mixed = module.mix(matrix, parts, rule)
        grads = torch.autograd.grad(out.square().sum() + mixed.square().sum(), leaves)
        results.append((out, matrix, mixed, *grads))
    for found, wanted in zip(*results, strict=True):
        assert found.isfinite().all() and torch.equal(found, wanted)


# ----------------------------------------------------------------------------- law 4: the future


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("blocks", [False, True])
@torch.no_grad()
def test_the_causal_form_never_sees_the_future(
    blocks: bool, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks:
        monkeypatch.setattr(attention, "LONG", 1)
        monkeypatch.setattr(blocked, "ROWS", 4)
    module, n = made(4, 0, dilation).float(), 24
    x = states(2, n).float()
    for mask in (None, masks.causal() & masks.global_tokens(marks(2, n))):
        plain = module(x, mask)
        for t in range(n - 1):
            other = x.clone()
            other[:, t + 1 :] = torch.randn(2, n - t - 1, 16) * 5
            assert torch.equal(module(other, mask)[:, : t + 1], plain[:, : t + 1])


# ------------------------------------------------- a window alone, and one as wide as the text


@torch.no_grad()
def test_without_global_tokens_it_is_multi_head_attention_under_a_window() -> None:
    module, x = made(4, 2, 2), states(2, 30)
    plain = MultiHeadAttention(16, 2).double().eval()
    plain.load_state_dict({k: v for k, v in module.state_dict().items() if "global" not in k})
    assert torch.equal(module(x), plain(x, masks.window(8, 4, step=2)))
    nobody = masks.global_tokens(torch.zeros(2, 30, dtype=torch.bool))
    torch.testing.assert_close(module(x, nobody), module(x), **EXACT)


@torch.no_grad()
def test_a_step_behind_a_cache_is_the_whole_pass_where_no_token_is_global() -> None:
    module, x = made(4, 0), states(2, 17)
    cache, steps = KeyValueCache(17), []
    for piece in x.split([5, 1, 1, 7, 3], 1):
        steps.append(module(piece, masks.causal(), cache=cache))
    torch.testing.assert_close(torch.cat(steps, 1), module(x, masks.causal()), **EXACT)


def test_defect_a_window_as_wide_as_the_text_is_full_attention() -> None:
    """And at every length, where others ask that it be a multiple of the window."""
    plain = MultiHeadAttention(16, 2).double().eval()
    for n in (1, 2, 3, 31, 32, 33, 97):
        module = made(n, n)
        plain.load_state_dict({k: v for k, v in module.state_dict().items() if "global" not in k})
        torch.testing.assert_close(module(states(2, n)), plain(states(2, n)), **EXACT)


@pytest.mark.parametrize("n", [1, 31, 33, 100, 127, 128, 129])
def test_defect_any_length_whatever_the_window(n: int) -> None:
    """`assert seqlen % (w*2) == 0`: a text is what the same text at the next multiple is."""
    module, w = made(16, 16), 32
    x, marked = states(2, n), marks(2, n)
    more = -n % (2 * w)
    wide = torch.cat([x, torch.randn(2, more, 16, dtype=torch.float64)], 1)
    real = lengths_mask([n, n], n + more)
    both = torch.cat([marked, torch.ones(2, more, dtype=torch.bool)], 1)
    padded = module(wide, masks.keys(real) & masks.global_tokens(both & real))[:, :n]
    torch.testing.assert_close(module(x, masks.global_tokens(marked)), padded, **EXACT)


@pytest.mark.parametrize("n", [127, 128, 129, 1025])
def test_defect_gradients_are_finite_at_every_length(n: int) -> None:
    """NaN at 1,025 where a block mask and a score rule met."""
    module = made(8, 8).float()
    x = states(1, n).float().requires_grad_()
    real = lengths_mask([n - 3], n)
    module(x, masks.keys(real) & masks.global_tokens(marks(1, n)))[real].square().sum().backward()
    grads = [x.grad, *(p.grad for p in module.parameters())]
    assert all(g is not None and g.isfinite().all() for g in grads)


@torch.no_grad()
def test_defect_a_shorter_input_after_a_longer_one_has_a_mask_of_its_own() -> None:
    module, x = made(), states(1, 64)
    alone = module(x[:, :20])
    module(x)
    assert torch.equal(module(x[:, :20]), alone)


@pytest.mark.parametrize("n", [127, 128, 129, 300])
@torch.no_grad()
def test_defect_every_way_of_computing_has_the_same_mask(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule, the rule made dense, and blocks of several sizes."""
    module, x, marked = made(7, 5), states(2, n), masks.global_tokens(marks(2, n))
    parts, rule = parts_of(module, x, marked)
    whole = masks.dense(rule.rows(n, n, x.device))
    wanted = attention.attend(parts.local, whole)
    torch.testing.assert_close(attention.attend(parts.local, rule), wanted, **EXACT)
    monkeypatch.setattr(attention, "LONG", 1)
    for rows in (1, 16, 128, 256):
        monkeypatch.setattr(blocked, "ROWS", rows)
        torch.testing.assert_close(attention.attend(parts.local, rule), wanted, **EXACT)


# -------------------------------------------------------------------- looking, changing, refusing


@torch.no_grad()
def test_a_trace_shows_the_whole_matrix_with_the_rows_of_global_tokens() -> None:
    module, n = made(2, 2), 12
    x, marked = states(2, n), marks(2, n)
    holder = torch.nn.ModuleDict({"self_attn": module})
    mask = masks.global_tokens(marked)
    with record(holder) as trace:
        out = module(x, mask)
    place = trace[trace.places()[0]]
    matrix = place.weights()
    assert matrix.shape == (2, 2, n, n)
    seen = module.visible(mask).rows(n, n, x.device)
    assert ((matrix > 0) == seen).all()
    row = module.q_global(x[0, 0]).view(2, 1, 8) @ module.k_global(x[0]).view(n, 2, 8).permute(
        1, 2, 0
    )
    torch.testing.assert_close(matrix[0, :, 0], (row[:, 0] / 8**0.5).softmax(-1), **EXACT)
    joined = module.o_proj(place.output().transpose(1, 2).flatten(2))
    torch.testing.assert_close(joined, out, **EXACT)
    some = torch.tensor([5, 0, n - 1])
    torch.testing.assert_close(place.output(some), place.output()[:, :, some], **EXACT)


def test_a_trace_keeps_no_graph() -> None:
    module = made()
    holder = torch.nn.ModuleDict({"self_attn": module})
    with record(holder) as trace:
        module(states(1, 9), masks.global_tokens(marks(1, 9)))
    parts = trace[trace.places()[0]].parts
    assert not any(x.requires_grad for x in parts if isinstance(x, Tensor))


@torch.no_grad()
def test_a_token_that_is_hidden_and_a_head_that_is_off() -> None:
    module, n = made(), 12
    x, marked = states(1, n), masks.global_tokens(marks(1, n))
    holder = torch.nn.ModuleDict({"self_attn": module})
    with record(holder, [TokenHidden(None, [5])]) as trace:
        out = module(x, marked)
    (name,) = trace.places()
    assert (trace[name].weights()[..., 5] == 0).all()
    real = torch.arange(n)[None] != 5
    torch.testing.assert_close(out, module(x, marked & masks.keys(real)), **EXACT)
    with record(holder, [HeadOff(name, [0, 1])]):
        off = module(x, marked)
    torch.testing.assert_close(off, module.o_proj.bias.expand(1, n, -1), **EXACT)


@pytest.mark.parametrize("heads", [None, [1]])
def test_gradients_of_weights_go_through_the_values_of_each_row(heads: list[int] | None) -> None:
    module, x = made(), states(2, 12)
    holder = torch.nn.ModuleDict({"self_attn": module})
    marked = masks.global_tokens(marks(2, 12)) & masks.keys(lengths_mask([12, 9], 12))
    with record(holder) as trace:
        module(x, marked).square().sum().backward()
    place = trace[trace.places()[0]]
    matrix = place.weights().requires_grad_()
    (wanted,) = torch.autograd.grad(
        module.mix(matrix, place.parts, place.mask), matrix, place.gradient
    )
    wanted = wanted.masked_fill(matrix == 0, 0)
    for rows in (None, torch.tensor([6, 0, 11])):
        found = weight_gradients(place, heads, rows)
        cut = wanted if rows is None else wanted[:, :, rows]
        torch.testing.assert_close(found, cut if heads is None else cut[:, heads], **EXACT)


def test_what_it_cannot_honour_is_refused() -> None:
    module, x = made(), states(1, 6)
    marked = masks.global_tokens(marks(1, 6))
    with pytest.raises(ValueError, match="cannot honour a memory"):
        module(x, None, x)
    with pytest.raises(ValueError, match="cannot honour rotary"):
        module(x, rotation=Rotary(8).double()(torch.arange(6)[None]))
    with pytest.raises(ValueError, match="cannot honour a bias"):
        module(x, marked, bias=torch.zeros(1, 1, 6, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match="join their marks"):
        module(x, marked & marked)
    cache = KeyValueCache(12)
    module(x, masks.causal(), cache=cache)
    with pytest.raises(ValueError, match="step by step"):
        module(x, masks.global_tokens(marks(1, 12)), cache=cache)
    with pytest.raises(ValueError, match="0 or more keys"):
        WindowAttention(16, 2, left=-1, right=0)
    with pytest.raises(ValueError, match="1 or more apart"):
        masks.window(2, 2, step=0)


@torch.no_grad()
def test_a_traced_graph_gives_the_same() -> None:
    module, x = made(), states(2, 20)
    traced = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(traced(x, None), module(x, None))
    marked = masks.global_tokens(marks(2, 20))
    broken = torch.compile(module, backend="eager")  # which tokens are global is data
    torch.testing.assert_close(broken(x, marked), module(x, marked), **EXACT)


def test_global_tokens_joined_to_another_window_are_refused() -> None:
    layer = WindowAttention(8, 2, left=2, right=2)
    marked = torch.tensor([[True, False, False]])
    with pytest.raises(ValueError, match="the window is the layer's own"):
        layer.visible(masks.window(2, 2) | masks.global_tokens(marked))
