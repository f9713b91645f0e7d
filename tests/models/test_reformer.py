"""Reformer: against a plain loop over the whole model; its memory, its cache, its two chunkings."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import everyhead
from everyhead.generation.prompted_beam import prompted_beam
from everyhead.layers import chunked, masks, replay
from everyhead.layers.lsh import LshAttention, PublishedLshAttention
from everyhead.layers.reread import RereadCache
from everyhead.models.reformer import PRESETS, Reformer, ReformerConfig
from tests.layers.test_local import seen
from tests.layers.test_lsh import by_one_query

SMALL = {"vocab_size": 23, "d_model": 16, "n_heads": 2, "d_ff": 24, "max_len": 1100}
SMALL |= {"attn_layers": ("lsh", "local"), "local_chunk": 4, "lsh_chunk": 3, "n_buckets": 4}
SMALL |= {"n_rounds": 2, "dropout": 0.0, "local_dropout": 0.0}
NEAR = {"rtol": 1e-5, "atol": 1e-5}
FORMS = {"within-buckets": {}, "published": {"chunking": "published", "hash_seed": 1}}
BOTH = pytest.mark.parametrize("form", FORMS)


def model(form: str = "within-buckets", **choices: object) -> Reformer:
    torch.manual_seed(0)
    made = Reformer(ReformerConfig(**{**SMALL, **FORMS[form], **choices}))
    with torch.no_grad():
        for p in made.parameters():
            p.mul_(8) if p.dim() > 1 else p.add_(0.2 * torch.randn_like(p))
        for table in made.positions.parameters():
            table.div_(8)
    return made.eval()


def rows(n: int, length: int) -> Tensor:
    return torch.randint(0, 23, (n, length), generator=torch.Generator().manual_seed(3))


def padded(ids: Tensor, left: int, right: int) -> tuple[Tensor, Tensor]:
    real = F.pad(torch.ones_like(ids, dtype=torch.bool), (left, right), value=False)
    return F.pad(ids, (left, right), value=7), real


def plain(made: Reformer, ids: Tensor) -> Tensor:
    """The logits by the equations: two streams, and attention one query at a time."""
    n, real = ids.shape[1], torch.ones_like(ids, dtype=torch.bool)
    grid = [made.positions.tables[0][:, None], made.positions.tables[1][None]]
    wide = torch.cat([t.expand(*made.config.axial_shape, -1) for t in grid], -1)
    x1 = x2 = made.token_embed.weight[ids] + wide.flatten(0, 1)[:n]
    for block in made.decoder.blocks:
        own, y = block.self_attn, block.self_attn_norm(x2)
        if isinstance(own, LshAttention):
            x1 = x1 + by_one_query(own, y, real, causal=True)
        else:
            q, k, v = (
                (y @ m.weight.T).unflatten(-1, (2, 8)).transpose(1, 2)
                for m in (own.q_proj, own.k_proj, own.v_proj)
            )
            scores = q @ k.transpose(-2, -1) / 8**0.5
            hidden = ~seen(real, own.chunk, own.look, causal=True)
            out = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
            x1 = x1 + out.transpose(1, 2).flatten(2) @ own.o_proj.weight.T
        x2 = x2 + block.feed_forward(block.feed_forward_norm(x1))
    both = torch.cat([x1, x2], -1)
    norm, head = made.decoder.norm, made.output_head
    return F.layer_norm(both, (32,), norm.weight, norm.bias, 1e-12) @ head.weight.T + head.bias


@torch.no_grad()
def test_logits_are_the_equations() -> None:
    made, ids = model(n_layers=4).double(), rows(2, 17)
    torch.testing.assert_close(made(ids), plain(made, ids), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------- known defects of the family


@BOTH
def test_defect_no_length_has_to_be_divisible_by_anything(form: str) -> None:
    """Forwards and backwards, which transformers' refuses in training."""
    made = model(form).train()
    for n in (1, 2, 3, 4, 5, 11, 63, 64, 65, 127, 128, 129, 1000, 1025):
        made.zero_grad()
        logits = made(rows(1, n))
        assert logits.shape == (1, n, 23) and bool(logits.isfinite().all())
        logits.square().sum().backward()
        assert all(bool(p.grad.isfinite().all()) for p in made.parameters())
    with pytest.raises(ValueError, match="max_len 1100"):
        made(rows(1, 1101))


@BOTH
@torch.no_grad()
def test_defect_padding_shares_no_bucket_and_moves_no_chunk(form: str) -> None:
    """Any amount of it, left, right, in batches: also with chunks that lie as published."""
    made, ids = model(form), rows(1, 21)
    alone = made(ids)
    for left, right in ((6, 0), (0, 6), (60, 0), (0, 60), (5, 7)):
        wide, real = padded(ids, left, right)
        both = torch.cat([wide, rows(1, wide.shape[1])]), torch.cat([real, real | True])
        torch.testing.assert_close(made(*both)[:1, left : left + 21], alone, **NEAR)
        nothing = made(wide, real & False)
        assert bool(nothing.isfinite().all())


def test_defect_hashes_are_those_of_the_forward_pass_in_its_recomputation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, ids, hashed = model(n_layers=4).double(), rows(2, 19), chunked.hashed

    def gradients(turned: bool) -> list[Tensor]:
        calls = []

        def once(k: Tensor, rotations: Tensor, factors: tuple[int, ...]) -> Tensor:
            calls.append(1)  # asked a second time, every token would be in another bucket
            again = turned and len(calls) > 2
            return hashed(k, rotations.flip(1) if again else rotations, factors)

        monkeypatch.setattr(chunked, "hashed", once)
        made.zero_grad()
        made(ids).square().sum().backward()
        assert len(calls) == 2  # of two layers, and no more in backward
        return [p.grad.clone() for p in made.parameters()]

    for a, b in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(a, b)


def test_gradients_are_those_of_plain_autograd_with_dropout_and_pieces() -> None:
    given = {"dropout": 0.2, "local_dropout": 0.3, "lsh_dropout": 0.1, "feed_forward_chunk": 5}
    made, ids = model(n_layers=4, **given).double().train(), rows(2, 19)
    real = torch.arange(19) >= torch.tensor([[0], [4]])

    def kept(x: Tensor) -> Tensor:
        """The stack's blocks, one after the other."""
        y = torch.cat([x, x], -1)
        for block in made.decoder.blocks:
            y = block(y, masks.causal() & masks.keys(real))
        return made.decoder.last_dropout(made.decoder.norm(y))

    grads = []
    for backwards in (True, False):
        made.zero_grad()
        x = made.token_embed.weight[ids].detach().requires_grad_()
        torch.manual_seed(5)
        rule = masks.causal() & masks.keys(real)
        out = made.decoder(x, rule) if backwards else kept(x)
        out[real].square().sum().backward()
        grads.append([out.detach(), x.grad, *(p.grad for p in made.decoder.parameters())])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@BOTH
def test_memory_is_flat_in_depth(form: str) -> None:
    """What backward is given of the activations; of hashes two bytes a token, head and round."""

    def saved(n_layers: int) -> tuple[int, int]:
        made = model(form, n_layers=n_layers).train()
        own = {p.data_ptr() for p in made.parameters()}
        found: dict[int, int] = {}

        def pack(x: Tensor) -> Tensor:
            if x.data_ptr() not in own:
                found[x.data_ptr()] = x.numel() * x.element_size()
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x), replay.kept() as outer:
            logits = made(rows(2, 40))
        stack = next(f for f in _nodes(logits.grad_fn) if hasattr(f, "first"))
        decisions = [d for once in stack.first for d in once.decisions]
        assert not outer
        return sum(found.values()), sum(d.numel() * d.element_size() for d in decisions)

    kept = [saved(n) for n in (2, 4, 16)]
    assert kept[0][0] == kept[1][0] == kept[2][0]
    assert [n for _, n in kept] == [layers * 2 * (2 * 2 * 2 * 40) for layers in (1, 2, 8)]


def _nodes(node: object) -> list[object]:
    found, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        if each is not None and each not in found:
            found.append(each)
            waiting += [one for one, _ in getattr(each, "next_functions", ())]
    return found


@torch.no_grad()
def test_defect_the_published_chunks_see_the_future_and_ours_do_not() -> None:
    moved = {}
    for form in FORMS:
        made, ids = model(form), rows(1, 50).expand(23, -1).clone()
        ids[:, -1] = torch.arange(23)  # every last token there is
        before = made(ids)[:, :-1]
        moved[form] = float((before - before[:1]).abs().max())
    assert moved["within-buckets"] == 0 < 1e-3 < moved["published"]


# --------------------------------------------------------------------------- checks and decoding


@pytest.mark.filterwarnings("ignore:This Reformer is opened")
def test_the_laws_hold_and_the_published_form_says_which_it_does_not_have() -> None:
    found = {f.law: f for f in everyhead.check(model(max_len=128))}
    assert {f.verdict for f in found.values()} == {"pass", "not applicable"}
    assert all(found[law].verdict == "pass" for law in ("future", "cache", "reorder"))
    published = model("published", max_len=128)
    found = {f.law: f for f in everyhead.check(published)}
    assert {f.verdict for f in found.values()} == {"pass", "not applicable"}
    for law in ("future", "cache", "reorder"):
        assert found[law].verdict == "not applicable"
        assert "sees the future" in found[law].sentence and "within-buckets" in found[law].sentence


def test_what_the_published_form_is_excused_from_it_would_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Reformer, "exempt", {})
    made = model("published", max_len=128)
    found = everyhead.check(made, laws=["padding-left", "batch", "future", "cache"])
    assert [f.verdict for f in found] == ["pass", "pass", "fail", "fail"]


@BOTH
@torch.no_grad()
def test_written_token_by_token_it_is_the_text_read_anew_each_time(form: str) -> None:
    made, limit = model(form), 9
    for prompt in ([5, 3, 7, 1, 1, 20, 4], [2]):
        ids = list(prompt)
        for _ in range(limit):
            ids.append(int(made(torch.tensor([ids]))[0, -1].argmax()))
        cache, found = made.cache(40), list(prompt)
        logits = made.head(made.hidden(torch.tensor([prompt]), cache=cache))
        for _ in range(limit):
            found.append(int(logits[0, -1].argmax()))
            logits = made.head(made.hidden(torch.tensor([found[-1:]]), cache=cache))
        assert found == ids
        assert isinstance(cache, RereadCache) == (form == "published")


@BOTH
@torch.no_grad()
def test_beams_are_those_of_the_whole_text_each_time(form: str) -> None:
    """A plain beam search without a cache finds the same."""
    made = model(form, vocab_size=12, eos_id=0)
    prompt, width, steps = [5, 3, 7, 2, 2, 9], 3, 5
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(steps):
        grown = []
        for score, ids in beams:
            p = made(torch.tensor([prompt + ids]))[0, -1].log_softmax(-1).tolist()
            grown += [(score + each, [*ids, i]) for i, each in enumerate(p)]
        beams = sorted(grown, reverse=True)[:width]
    found = prompted_beam(made, [prompt, [2]], beam=width, limit=steps)
    assert list(found[0][0].ids) == beams[0][1]


@torch.no_grad()
def test_the_cache_of_ids_can_be_cropped_and_has_an_end() -> None:
    made, ids = model("published"), rows(2, 12)
    cache = made.cache(12)
    made.hidden(ids[:, :9], cache=cache)
    cache.crop(5)
    got = made.hidden(ids[:, 5:12], cache=cache)
    torch.testing.assert_close(got, made.hidden(ids)[:, 5:], **NEAR)
    with pytest.raises(ValueError, match="holds 12 positions and 13 are needed"):
        made.hidden(ids[:, :1], cache=cache)


@torch.no_grad()
def test_looked_at_there_are_the_matrices_and_the_states_of_both_streams() -> None:
    made, ids = model(), rows(2, 40)
    real = torch.arange(40) >= torch.tensor([[5], [0]])
    with everyhead.record(made) as whole:
        logits = made(ids, real)
    with everyhead.record(made) as steps:
        cache = made.cache(40)
        made.hidden(ids[:, :8], real[:, :8], cache=cache)
        for t in range(8, 40):
            made.hidden(ids[:, t : t + 1], cache=cache)
    for name in ("decoder.0.self_attn", "decoder.1.self_attn"):
        matrix, joined = whole[name].weights(), steps[name].weights()
        sums = matrix.sum(-1).transpose(1, 2)
        assert bool((sums[~real] == 0).all())
        torch.testing.assert_close(sums[real], torch.ones_like(sums[real]))
        mine, theirs = (x.transpose(1, 2)[real] for x in (joined, matrix))
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert whole.residual("decoder.0").shape == (2, 40, 32)
    torch.testing.assert_close(whole.logits("decoder.1")[real], logits[real], **NEAR)


@torch.no_grad()
def test_looked_at_the_published_chunks_are_a_matrix_of_the_text_and_nothing_more() -> None:
    made, ids = model("published"), rows(2, 21)  # their code makes it 24
    with everyhead.record(made) as trace:
        hidden = made.hidden(ids)
    assert torch.equal(hidden, made.hidden(ids))
    for name in ("decoder.0.self_attn", "decoder.1.self_attn"):
        matrix = trace[name].weights()
        assert matrix.shape == (2, 2, 21, 21)
        torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 2, 21))
        own = made.get_submodule(name.replace("decoder.", "decoder.blocks."))
        fast = own.attend(trace[name].parts, trace[name].mask)
        torch.testing.assert_close(trace[name].output(), fast, **NEAR)
    wide, real = torch.cat([ids, ids], 1), torch.ones(2, 42, dtype=torch.bool)
    real[0, :5] = False
    with pytest.raises(ValueError, match="one length at a time"), everyhead.record(made):
        made.hidden(wide, real)


# ------------------------------------------------------------------------- numbers, start, saving


def test_layers_repeat_and_a_grid_is_found_for_any_length() -> None:
    c = ReformerConfig(n_layers=5, attn_layers=("local", "lsh"), d_model=64, max_len=1000)
    assert c.attn_layers == ("local", "lsh", "local", "lsh", "local")
    assert c.axial_shape == (32, 32) and c.axial_widths == (16, 48)
    assert (
        ReformerConfig(**PRESETS["crime-and-punishment"]).axial_shape
        == ReformerConfig(max_len=524_288).axial_shape
        == (512, 1024)
    )  # as published
    assert ReformerConfig(**c.model_dump()) == c
    for wrong in ({"axial_shape": (3, 4)}, {"axial_widths": (3, 4)}, {"attn_layers": ("full",)}):
        with pytest.raises(ValueError, match=r"has no place|must add up|'local' or 'lsh'"):
            ReformerConfig(**wrong)


def test_no_layer_hashes_and_nothing_is_published() -> None:
    c = ReformerConfig(**{**SMALL, "attn_layers": ("local",), "chunking": "published"})
    assert not c.published and c.chunking == "within-buckets"
    assert not Reformer(c).exempt
    kinds = {type(b.self_attn) for b in model("published").decoder.blocks}
    assert PublishedLshAttention in kinds and LshAttention not in kinds


@torch.no_grad()
def test_a_seed_tells_the_rotations_and_redrawn_it_is_another_model() -> None:
    made, other = model(hash_seed=4), model(hash_seed=4)
    rotations = made.decoder.blocks[0].self_attn.rotations
    generator = torch.Generator().manual_seed(4)
    assert torch.equal(rotations, torch.randn(rotations.shape, generator=generator))
    assert torch.equal(rotations, other.decoder.blocks[0].self_attn.rotations)
    ids = rows(2, 30)
    before = made(ids)
    made.train().redraw()
    assert not torch.allclose(made.eval()(ids), before, atol=1e-4)
    with pytest.raises(ValueError, match="fixed in eval"):
        made.redraw()


@torch.no_grad()
def test_its_folder_brings_the_rotations_back(tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = model()
    (note,) = everyhead.save(made, None, tmp_path)
    assert "no later token moves" in note
    from everyhead.weights.folder import load_model

    again = load_model(tmp_path)
    assert torch.equal(again(rows(2, 30)), made(rows(2, 30)))


def test_a_tiny_one_learns_a_batch_by_heart() -> None:
    torch.manual_seed(0)
    made = Reformer(ReformerConfig(**{**PRESETS["tiny"], "vocab_size": 23, "dropout": 0.0}))
    ids, adam = rows(4, 14), torch.optim.Adam(made.parameters(), lr=3e-3)
    for _ in range(90):
        loss = nn.functional.cross_entropy(made(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert float(loss.detach()) < 0.1
