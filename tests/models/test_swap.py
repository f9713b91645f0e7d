"""Another attention in a model's place: each method against its oracle, in every family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import everyhead
from everyhead import Exact, Lsh, RandomFeatures, Window, prepare, swap
from everyhead.layers.inference import JointSlidingAttention
from everyhead.layers.masks import Mask, dense
from everyhead.layers.multi_head import MultiHeadAttention
from everyhead.models.bert import Bert, BertConfig
from everyhead.models.gpt2 import GPT2, GPT2Config
from everyhead.models.llama import Llama, LlamaConfig
from everyhead.models.performer import Performer, PerformerConfig
from everyhead.models.recurrent import Recurrent, RecurrentConfig
from everyhead.models.t5 import T5, T5Config
from everyhead.models.transformer import Transformer, TransformerConfig
from everyhead.models.vision_text import VisionText, VisionTextConfig
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig

NEAR = {"rtol": 1e-5, "atol": 1e-5}
SIZES: dict[str, Any] = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 2}
HALVES = {"n_encoder_layers": 2, "n_decoder_layers": 2, "d_ff": 48}


def gpt2() -> GPT2:
    return GPT2(GPT2Config(**SIZES, max_len=40, dropout=0, attention_dropout=0))


def llama() -> Llama:
    return Llama(LlamaConfig(**SIZES, n_kv_heads=2, d_ff=48, max_len=40))


def bert() -> Bert:
    return Bert(BertConfig(**SIZES, d_ff=48, max_len=40))


def vit() -> VisionTransformer:
    sizes = {"d_model": 32, "n_heads": 4, "n_layers": 2, "d_ff": 48}
    picture = {"image_size": 16, "patch_size": 4, "n_channels": 1, "n_classes": 5}
    return VisionTransformer(VisionTransformerConfig(**sizes, **picture))


def transformer() -> Transformer:
    return Transformer(
        TransformerConfig(vocab_size=23, d_model=32, n_heads=4, max_len=40, **HALVES)
    )


def t5() -> T5:
    sizes = {"d_model": 32, "n_heads": 4, "d_head": 12, "n_buckets": 8, "max_distance": 12}
    return T5(T5Config(vocab_size=23, pad_id=22, eos_id=0, **sizes, **HALVES))


def ids(n: int = 12, rows: int = 2, seed: int = 3) -> Tensor:
    return torch.randint(1, 22, (rows, n), generator=torch.Generator().manual_seed(seed))


INPUTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "gpt2": (gpt2, lambda: (ids(),)),
    "llama": (llama, lambda: (ids(),)),
    "bert": (bert, lambda: (ids(),)),
    "vit": (vit, lambda: (torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(1)),)),
    "transformer": (transformer, lambda: (ids(9), ids(12, seed=4))),
    "t5": (t5, lambda: (ids(9), ids(12, seed=4))),
}
sweep = pytest.mark.parametrize("family", INPUTS)


def built(family: str) -> nn.Module:
    """In eval; attention sharp, so that a key more or less is seen."""
    torch.manual_seed(0)
    model = INPUTS[family][0]().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() < 2:
                p.add_(0.3 * torch.randn_like(p))
            elif "_attn.q_proj" in name or "_attn.k_proj" in name:
                p.mul_(4 if family in ("transformer", "t5", "vit") else 12)
    return model


def result(model: nn.Module, family: str) -> Tensor:
    with torch.no_grad():
        return model.hidden(*INPUTS[family][1]())


class DenseWindow(MultiHeadAttention):
    """The oracle: the mask written out number by number."""

    size, first = 0, 0

    def visible(self, mask: Mask | None) -> Mask:
        n, rules = self.n, () if mask is None else mask.rules
        near = [[abs(i - j) < self.size or j < self.first for j in range(n)] for i in range(n)]
        return Mask((*rules, *dense(torch.tensor(near)).rules))

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Tensor:
        self.n = x.shape[1]
        return super().forward(x, *args, **named)


def with_dense_window(model: nn.Module, size: int, first: int) -> nn.Module:
    for part in model.modules():
        if isinstance(own := getattr(part, "self_attn", None), MultiHeadAttention):
            own.__class__, own.size, own.first = DenseWindow, size, first
    return model


# ------------------------------------------------------------------------- Window and Exact


@pytest.mark.parametrize(("size", "first"), [(1, 0), (4, 0), (3, 2)])
@sweep
def test_a_window_is_the_dense_mask(family: str, size: int, first: int) -> None:
    plain = result(built(family), family)
    wanted = result(with_dense_window(built(family), size, first), family)
    found = result(swap(built(family), Window(size, first=first)), family)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=2e-6)
    assert (plain - wanted).abs().max() > 1e-2  # the mask hides something


@pytest.mark.parametrize("method", [Window(17), Window(1, first=17), Window(40, first=3), Exact()])
@sweep
def test_a_window_as_wide_as_the_text_and_exact_are_the_model(family: str, method: Any) -> None:
    plain = result(built(family), family)
    torch.testing.assert_close(
        result(swap(built(family), method), family), plain, rtol=1e-6, atol=1e-6
    )


@sweep
def test_exact_undoes_another_method_and_methods_follow_one_another(family: str) -> None:
    model = built(family)
    plain, own = result(model, family), list(model.modules())
    swap(swap(model, Window(2)), Window(3))
    assert torch.equal(result(model, family), result(swap(built(family), Window(3)), family))
    swap(model, Exact())
    assert torch.equal(result(model, family), plain)
    assert all(a is b for a, b in zip(model.modules(), own, strict=True))


@sweep
def test_prepared_keeps_the_window(family: str) -> None:
    model = swap(built(family), Window(3, first=1))
    faster = prepare(model)
    torch.testing.assert_close(result(faster, family), result(model, family), **NEAR)
    own = [m.self_attn for m in faster.modules() if hasattr(m, "self_attn")]
    assert own and all(isinstance(each, JointSlidingAttention) for each in own)


@pytest.mark.parametrize("method", [Window(3), RandomFeatures(16), Lsh(2, chunk=4)])
def test_cross_attention_stays_exact_and_parameters_are_shared(method: Any) -> None:
    model = built("transformer")
    before = dict(model.named_parameters())
    cross = [block.cross_attn for block in model.decoder.blocks]
    swap(model, method)
    assert [block.cross_attn for block in model.decoder.blocks] == cross
    assert all(type(each) is MultiHeadAttention for each in cross)
    after = dict(model.named_parameters())
    assert after.keys() == before.keys() and all(after[n] is before[n] for n in before)


# ----------------------------------------------------------------- random features and hashing


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "vit", "transformer"])
def test_the_error_of_random_features_falls_as_they_grow(family: str) -> None:
    torch.manual_seed(0)
    plain, errors = INPUTS[family][0]().eval(), []
    wanted = result(plain, family)
    for n_features in (8, 64, 512):
        several = [
            (result(swap(plain, RandomFeatures(n_features, seed=seed)), family) - wanted).norm()
            for seed in range(5)
        ]
        errors.append(float(torch.stack(several).mean()))
    assert errors[0] > errors[1] > errors[2] and errors[2] < errors[0] / 3, errors


def test_a_seed_gives_the_same_features_and_another_others() -> None:
    found = [result(swap(built("gpt2"), RandomFeatures(16, seed=s)), "gpt2") for s in (1, 1, 2)]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_in_lsh_the_query_map_serves_both_and_the_key_map_stays_unused(family: str) -> None:
    model = swap(built(family), Lsh(2, n_rounds=2, chunk=4))
    before = result(model, family)
    assert (before - result(built(family), family)).abs().max() > 1e-2
    for part in model.modules():
        if isinstance(own := getattr(part, "self_attn", None), MultiHeadAttention):
            own.k_proj.weight.data.mul_(-3)
    assert torch.equal(result(model, family), before)


def test_with_one_bucket_lsh_is_full_attention_by_shared_queries() -> None:
    model = swap(built("bert"), Lsh(1, n_rounds=1, chunk=64))
    other, x = model.encoder.blocks[0].self_attn, torch.randn(1, 9, 32)
    q, v = (m(x).view(1, 9, 4, 8).transpose(1, 2) for m in (other.q_proj, other.v_proj))
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).transpose(-2, -1)
    scores = scores.masked_fill(torch.eye(9, dtype=torch.bool), float("-inf"))
    wanted = other.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(other(x), wanted, **NEAR)


# ------------------------------------------------------------------------------- refusals


def performer() -> Performer:
    return Performer(PerformerConfig(**SIZES, max_len=40, n_features=16))


def vision_text() -> VisionText:
    sizes = {"vocab_size": 23, "d_model": 32, "n_heads": 4, "n_layers": 1, "d_ff": 48}
    return VisionText(VisionTextConfig(image_size=8, patch_size=4, n_channels=1, **sizes))


@pytest.mark.parametrize(
    ("make", "method", "sentence"),
    [
        (t5, RandomFeatures(8), "cannot honour the relative positions that T5 adds to its scores"),
        (t5, Lsh(2), "Lsh cannot honour the relative positions that T5 adds to its scores"),
        (llama, Lsh(2), "Lsh cannot honour the rotary positions of Llama"),
        (performer, Window(4), "takes the place of exact attention, not of FavorAttention"),
        (performer, Exact(), "takes the place of exact attention, not of FavorAttention"),
        (vision_text, Window(4), "reads a picture before its words"),
        (lambda: Recurrent(RecurrentConfig(vocab_size=9, d_model=8, n_layers=1)), Window(4),
         "Recurrent has no self-attention"),
        (lambda: prepare(gpt2()), Window(4), "swap first, and prepare it then"),
    ],
)  # fmt: skip
def test_what_a_method_cannot_honour_is_refused_and_nothing_changed(
    make: Callable[[], nn.Module], method: Any, sentence: str
) -> None:
    model = make()
    before = list(model.modules())
    with pytest.raises(ValueError, match=sentence):
        swap(model, method)
    assert all(a is b for a, b in zip(model.modules(), before, strict=True))


def test_lsh_refuses_shared_keys_and_numbers_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="4 heads share 2 keys"):
        Lsh(2).of(MultiHeadAttention(32, 4, n_kv_heads=2))
    for wrong in ({"n_buckets": 3}, {"n_rounds": 0}, {"chunk": 0}):
        with pytest.raises(ValueError, match=r"even|at least"):
            Lsh(**wrong)
    for features in ({"n_features": 0}, {"kernel": "cosine"}):
        with pytest.raises(ValueError, match="softmax or relu"):
            RandomFeatures(**features)


# ---------------------------------------------------------------------------------- the laws

METHODS = [Window(4), Window(2, first=2), RandomFeatures(16), Lsh(2, n_rounds=2, chunk=4)]


def pairs(families: list[str]) -> list[Any]:
    return [
        pytest.param(f, m, id=f"{f}-{m}")
        for f in families
        for m in METHODS
        if not (f == "llama" and isinstance(m, Lsh))
    ]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(("family", "method"), pairs(["gpt2", "llama", "bert"]))
def test_law_3_padding_never_changes_an_answer(family: str, method: Any, left: bool) -> None:
    model = swap(built(family), method)
    lengths = torch.tensor([12, 7, 1])
    place = torch.arange(15)
    begin = 15 - lengths if left else torch.zeros_like(lengths)
    real = (place >= begin[:, None]) & (place < (begin + lengths)[:, None])
    with torch.no_grad():
        found = model.hidden(ids(15, 3), real)
        for b in range(3):
            alone = model.hidden(ids(15, 3)[b : b + 1, real[b]])
            torch.testing.assert_close(found[b, real[b]], alone[0], **NEAR)


@pytest.mark.parametrize(("family", "method"), pairs(["gpt2", "llama"]))
def test_law_4_the_future_is_never_seen(family: str, method: Any) -> None:
    model = swap(built(family), method)
    text = ids(20)
    with torch.no_grad():
        before = model.hidden(text)
        for t in (0, 3, 11, 18):
            changed = text.clone()
            changed[:, t + 1 :] = (changed[:, t + 1 :] + 7) % 22
            assert torch.equal(model.hidden(changed)[:, : t + 1], before[:, : t + 1])


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("family", ["transformer", "t5"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_law_5_a_decoders_cache_and_its_beams_change_nothing(
    method: Any, family: str, prepared: bool, beams: int
) -> None:
    if family == "t5" and not isinstance(method, Window):
        method = Window(3)
    model = swap(built(family), method)
    reader = prepare(model) if prepared else model
    source, history = ids(9), ids(3, seed=5)
    with torch.no_grad():
        memory = reader.encode(source)
        cache = reader.cache(memory, 20, beams=beams)
        for x in history.split(1, 1):
            reader.decode(x, memory, cache=cache)
        for step in range(8):
            order = torch.arange(2) if beams == 1 else torch.arange(6) // 3
            if step and beams > 1:
                order = torch.tensor([1, 1, 0, 5, 3, 4])
            cache.reorder(order)
            history = torch.cat([history[order], ids(1, len(order), seed=step)], 1)
            found = reader.decode(history[:, -1:], memory, cache=cache)
            rows = source.repeat_interleave(len(order) // 2, 0)
            wanted = model.hidden(rows, history)[:, -1:]
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_law_9_record_shows_the_methods_matrix(method: Any) -> None:
    model, text = swap(built("gpt2"), method), ids()
    with everyhead.record(model) as trace, torch.no_grad():
        looked = model.hidden(text)
    assert torch.equal(looked, result(model, "gpt2"))
    place = trace["decoder.1.self_attn"]
    weights, layer = place.weights(), model.decoder.blocks[1].self_attn
    if isinstance(method, Window):
        i, j = torch.arange(12)[:, None], torch.arange(12)
        hidden = ((i - j >= method.size) & (j >= method.first)) | (j > i)
        assert (weights[:, :, hidden] == 0).all() and (weights[:, :, ~hidden] > 0).all()
    mixed = layer.mix(weights, place.parts, place.mask)
    torch.testing.assert_close(mixed, layer.attend(place.parts, place.mask), **NEAR)


# --------------------------------------------------------------------- on disk and in training


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_law_7_it_is_saved_as_the_model_it_was(method: Any, tmp_path: Path) -> None:
    model = swap(built("gpt2"), method)
    everyhead.save(model, None, tmp_path / "swapped")
    everyhead.save(built("gpt2"), None, tmp_path / "plain")
    for file in (tmp_path / "plain").iterdir():
        assert file.read_bytes() == (tmp_path / "swapped" / file.name).read_bytes()
    from everyhead.weights.folder import load_model

    again = load_model(tmp_path / "swapped", attention=method)
    assert torch.equal(result(again, "gpt2"), result(model, "gpt2"))
    assert torch.equal(
        result(load_model(tmp_path / "swapped"), "gpt2"), result(built("gpt2"), "gpt2")
    )
    with pytest.raises(everyhead.UserError, match=r"cannot be opened with Lsh.*no self-attention"):
        everyhead.save(Recurrent(RecurrentConfig(vocab_size=9, d_model=8)), None, tmp_path / "r")
        load_model(tmp_path / "r", attention=Lsh(2))


def test_what_a_folder_does_not_tell_of_is_said(tmp_path: Path) -> None:
    told = everyhead.save(swap(built("gpt2"), Window(4, first=1)), None, tmp_path)
    assert told == [
        "The folder does not tell of Window(size=4, first=1): load it with "
        "attention=Window(size=4, first=1)."
    ]
    assert everyhead.save(swap(swap(built("gpt2"), Window(4)), Exact()), None, tmp_path) == []


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_check_finds_no_law_broken(family: str, method: Any) -> None:
    found = everyhead.check(swap(built(family), method))
    assert [f.law for f in found if f.verdict == "fail"] == []
    assert sum(f.verdict == "pass" for f in found) >= 8


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_state_dict_goes_from_one_to_the_other_and_a_step_trains_the_same_tensors(
    method: Any,
) -> None:
    plain, model = built("gpt2"), swap(built("gpt2"), method)
    model.load_state_dict(plain.state_dict(), strict=True)
    plain.load_state_dict(model.state_dict(), strict=True)
    model.train().hidden(ids()).square().sum().backward()
    for name, p in model.named_parameters():
        unused = name.startswith("output_head") or (isinstance(method, Lsh) and "k_proj" in name)
        assert unused or (p.grad is not None and p.grad.isfinite().all()), name


def test_what_stood_aside_takes_the_mode_of_its_place() -> None:
    config = GPT2Config(vocab_size=31, d_model=16, n_heads=2, n_layers=2, max_len=16)
    model = GPT2(config.model_copy(update={"attention_dropout": 0.5})).train()
    ids = torch.arange(12)[None]
    swap(model, Window(8)).eval()
    swap(model, Exact())
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model(ids), model(ids))
    swap(model, Window(8)).train()
    swap(model, Exact())
    assert all(block.self_attn.training for block in model.decoder.blocks)
