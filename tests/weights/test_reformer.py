"""Reformer in Hugging Face's folders, both ways: hashed and local layers, seeds, axes, lengths."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from everyhead.errors import UserError
from everyhead.layers.lsh import LshAttention, PublishedLshAttention
from everyhead.models.reformer import PRESETS, Reformer, ReformerConfig
from everyhead.weights.folder import load_model, save_model
from everyhead.weights.reformer import CHUNKS, UNSEEDED
from tests.models.decoders import batch, stirred
from tests.weights.published import config_of, listed


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Their remarks on a config are not what is tested here."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)


SMALL = {
    "vocab_size": 60,
    "hidden_size": 24,
    "num_attention_heads": 3,
    "attention_head_size": 10,
    "feed_forward_size": 40,
    "max_position_embeddings": 144,
    "axial_pos_shape": (8, 18),
    "axial_pos_embds_dim": (6, 18),
    "attn_layers": ["local", "lsh"],
    "local_attn_chunk_length": 8,
    "lsh_attn_chunk_length": 4,
    "num_buckets": [2, 4],
    "num_hashes": 2,
    "hash_seed": 3,
    "is_decoder": True,
}
CHOICES = {
    "mixed": {},
    "longer-hashed-chunks": {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 8},
    "hashed": {"attn_layers": ["lsh", "lsh", "lsh"], "num_buckets": 6, "num_hashes": 1},
    "local": {"attn_layers": ["local", "local"], "num_buckets": None},
    "learned": {
        "axial_pos_embds": False,
        "chunk_size_feed_forward": 1,
        "hidden_act": "gelu",
        "lsh_num_chunks_before": 2,
        "local_num_chunks_before": 0,
    },
}
EVERY = pytest.mark.parametrize("name", CHOICES)
LENGTHS = (1, 3, 4, 5, 7, 8, 9, 16, 31, 64, 100, 139, 144)


def theirs(**choices: object) -> transformers.ReformerModelWithLMHead:
    torch.manual_seed(3)
    config = transformers.ReformerConfig(**{**SMALL, **choices})
    return stirred(transformers.ReformerModelWithLMHead(config), 3.0)


def opened(folder: Path, **changes: object) -> tuple[Reformer, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(folder, changes=changes or None)
    return model, [str(each.message) for each in caught]


def pair(folder: Path, **choices: object) -> tuple[Reformer, transformers.ReformerModelWithLMHead]:
    model = theirs(**choices)
    model.save_pretrained(folder)
    return opened(folder)[0], model


def rows(n: int) -> torch.Tensor:
    return torch.randint(0, 60, (2, n), generator=torch.Generator().manual_seed(n))


def seeded_as_theirs(model: Reformer) -> None:
    """In float64 torch draws other numbers for a seed."""
    for part in model.modules():
        if isinstance(part, LshAttention):
            torch.manual_seed(3)
            part.rotations.copy_(torch.randn(part.rotations.shape, dtype=torch.float64))


@EVERY
@torch.no_grad()
def test_equal_logits_at_every_length(name: str, tmp_path: Path) -> None:
    ours, model = pair(tmp_path, **CHOICES[name])
    model.double(), ours.double()
    seeded_as_theirs(ours)
    for n in LENGTHS:
        wanted = model(rows(n), use_cache=False).logits
        torch.testing.assert_close(ours(rows(n)), wanted, rtol=1e-9, atol=1e-9)


@EVERY
@torch.no_grad()
def test_equal_logits_in_float32_with_hashes_of_the_same_seed(name: str, tmp_path: Path) -> None:
    """A token that sees itself alone has a score of −10⁵ there, in steps of 0.008 in float32."""
    ours, model = pair(tmp_path, **CHOICES[name])
    for n in LENGTHS:
        apart = (ours(rows(n)) - model(rows(n), use_cache=False).logits).abs()
        assert float(apart.median()) < 2e-5 and float(apart.max()) < 5e-3
    if name == "local":
        assert float(apart.max()) < 1e-5
    for part in (p for p in ours.modules() if isinstance(p, LshAttention)):
        part.seed(4)
    if name != "local":
        assert float((ours(rows(144)) - model(rows(144)).logits).abs().max()) > 2e-2


@torch.no_grad()
def test_equal_logits_at_the_size_that_was_published(tmp_path: Path) -> None:
    c = ReformerConfig(**PRESETS["crime-and-punishment"], chunking="published", hash_seed=5)
    torch.manual_seed(0)
    ours = Reformer(c).eval()
    assert save_model(ours, tmp_path) == []
    make = transformers.ReformerModelWithLMHead
    model = make.from_pretrained(tmp_path).eval()
    for n in (63, 500, 1000):
        ids = torch.randint(0, 320, (1, n))
        wanted = model(ids, use_cache=False).logits
        torch.testing.assert_close(ours(ids), wanted, rtol=1e-5, atol=1e-5)


@EVERY
@torch.no_grad()
def test_a_padded_batch_is_their_rows_one_by_one(name: str, tmp_path: Path) -> None:
    ours, model = pair(tmp_path, **CHOICES[name])
    model.double(), ours.double()
    seeded_as_theirs(ours)
    for left in (False, True):
        ids, real = batch(60, (21, 1, 16), left=left, extra=3)
        found = ours(ids, real)
        for i in range(3):
            alone = model(ids[i : i + 1, real[i]], use_cache=False).logits[0]
            torch.testing.assert_close(found[i, real[i]], alone, rtol=1e-9, atol=1e-9)


@EVERY
def test_equal_gradients(name: str, tmp_path: Path) -> None:
    """In training, where their length must fit; nothing is dropped."""
    dropped = ("hidden", "local_attention_probs", "lsh_attention_probs")
    choices = CHOICES[name] | {f"{what}_dropout_prob": 0.0 for what in dropped}
    ours, model = pair(tmp_path, **choices, axial_pos_shape=(4, 8))
    model.double().train(), ours.double().train()
    with torch.no_grad():
        seeded_as_theirs(ours)
    share = torch.randn(2, 32, 60, dtype=torch.float64)
    (model(rows(32)).logits * share).sum().backward()
    (ours(rows(32)) * share).sum().backward()
    found = ours.decoder.blocks[-1]
    layer = model.reformer.encoder.layers[len(ours.decoder.blocks) - 1]
    for mine, other in (
        (ours.token_embed.weight, model.reformer.embeddings.word_embeddings.weight),
        (ours.output_head.bias, model.lm_head.decoder.bias),
        (found.self_attn.v_proj.weight, layer.attention.self_attention.value.weight),
        (found.feed_forward.up_proj.weight, layer.feed_forward.dense.dense.weight),
    ):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-8)


@EVERY
@torch.no_grad()
def test_theirs_opens_here_and_ours_there(name: str, tmp_path: Path) -> None:
    model = theirs(**CHOICES[name])
    model.save_pretrained(tmp_path / "theirs")
    ours, said = opened(tmp_path / "theirs")
    assert said == ([] if name == "local" else [CHUNKS])
    kinds = {type(part) for part in ours.modules() if isinstance(part, LshAttention)}
    assert kinds == (set() if name == "local" else {PublishedLshAttention})
    assert save_model(ours, tmp_path / "ours") == []
    make = transformers.ReformerModelWithLMHead
    again, report = make.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    told = model(rows(64), use_cache=False).logits
    assert torch.equal(again.eval()(rows(64), use_cache=False).logits, told)
    files = [load_file(tmp_path / side / "model.safetensors") for side in ("ours", "theirs")]
    assert files[0].keys() == files[1].keys()
    for key in files[0].keys() - {"lm_head.bias"}:  # which their code does not use
        assert torch.equal(files[0][key], files[1][key])
    back, _ = opened(tmp_path / "ours")
    assert back.config == ours.config and torch.equal(back(rows(50)), ours(rows(50)))


@torch.no_grad()
def test_every_config_comes_back_as_it_was(tmp_path: Path) -> None:
    shared = {"vocab_size": 31, "d_model": 24, "n_heads": 3, "d_head": 5, "d_ff": 40}
    shared |= {"max_len": 50, "local_chunk": 3, "local_before": 2, "dropout": 0.2}
    shared |= {"local_dropout": 0.3, "lsh_dropout": 0.4, "activation": "gelu", "norm_eps": 1e-5}
    shared |= {"bos_id": 1, "eos_id": 2, "pad_id": 3, "lsh_chunk": 5, "lsh_before": 3}
    shared |= {"axial_std": 0.5, "feed_forward_chunk": 4, "n_rounds": 3, "hash_seed": 9}
    for name, more in {
        "published": {"chunking": "published", "n_buckets": (2, 4)},
        "learned": {"chunking": "published", "positions": "learned", "n_buckets": 8},
        "local": {"attn_layers": ("local",), "hash_seed": None},
        "own": {"n_buckets": 1, "hash_seed": None},
    }.items():
        model = stirred(Reformer(ReformerConfig(**{**shared, **more})))
        told = save_model(model, tmp_path / name)
        found, _ = opened(tmp_path / name)
        assert found.config == model.config, name
        assert torch.equal(found(rows(40) % 31), model(rows(40) % 31))
        assert bool(told) == (name == "own")


@torch.no_grad()
def test_the_same_weights_open_without_the_published_chunks(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    ours, said = opened(tmp_path, chunking="within-buckets")
    assert said == [] and not ours.exempt
    changed = torch.cat([rows(64)[:, :-1], (rows(64)[:, -1:] + 1) % 60], 1)
    assert torch.equal(ours(changed)[:, :-1], ours(rows(64))[:, :-1])
    assert torch.equal(opened(tmp_path, chunking="within-buckets")[0](rows(64)), ours(rows(64)))
    assert "no later token moves" in save_model(ours, tmp_path / "ours")[0]


@torch.no_grad()
def test_no_seed_is_seed_0_and_is_told(tmp_path: Path) -> None:
    model = theirs(hash_seed=None)
    model.save_pretrained(tmp_path)
    ours, said = opened(tmp_path)
    assert said == [CHUNKS, UNSEEDED] or said == [UNSEEDED, CHUNKS]
    assert torch.equal(ours(rows(64)), opened(tmp_path)[0](rows(64)))
    assert ours.config.hash_seed == 0
    assert not torch.equal(model(rows(64)).logits, model(rows(64)).logits)  # as theirs differ


def test_rotations_that_the_folder_cannot_say_are_not_lost_in_silence(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    ours, _ = opened(tmp_path)
    ours.train().redraw()
    with pytest.raises(UserError, match="rotations are others than those of hash_seed 3"):
        save_model(ours, tmp_path / "ours")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"is_decoder": False}, "is_decoder false"),
        ({"num_buckets": None}, "num_buckets null"),
        ({"lsh_num_chunks_after": 1}, "lsh_num_chunks_after 1"),
        ({"local_num_chunks_after": 1}, "local_num_chunks_after 1"),
        ({"hidden_act": "mish"}, "hidden_act 'mish'"),
        ({"attn_layers": ["local", "full"]}, "attn_layers"),
        ({"axial_pos_embds_dim": [6, 19]}, "must add up to d_model 24"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings true"),
        ({"architectures": ["ReformerForMaskedLM"]}, "ReformerModelWithLMHead"),
    ],
)
def test_what_it_cannot_be_is_named(
    change: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    theirs().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(values | change), encoding="utf-8")
    with pytest.raises(UserError, match=sentence):
        load_model(tmp_path)


def test_tensors_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["reformer.encoder.layers.0.attention.other"] = torch.ones(2)
    tensors["reformer.embeddings.position_embeddings.weights.1"] = torch.ones(1, 19, 18)
    del tensors["reformer.encoder.layers.1.attention.self_attention.query_key.weight"]
    save_file(tensors, path)
    with pytest.raises(UserError) as caught:
        load_model(tmp_path)
    for part in (
        "unexpected: reformer.encoder.layers.0.attention.other",
        "missing: reformer.encoder.layers.1.attention.self_attention.query_key.weight",
        "weights.1 is (1, 19, 18), not (1, 18, 18)",
    ):
        assert part in str(caught.value)


def test_the_bias_of_older_files_is_found_by_its_only_name(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors["lm_head.bias"] = tensors.pop("lm_head.decoder.bias")
    save_file(tensors, path)
    assert torch.equal(opened(tmp_path)[0].output_head.bias, tensors["lm_head.bias"])


def test_a_grid_smaller_than_the_longest_text_ends_the_text(tmp_path: Path) -> None:
    theirs(max_position_embeddings=500).save_pretrained(tmp_path)
    assert opened(tmp_path)[0].config.max_len == 144


def test_the_published_list_is_their_classes() -> None:
    config = transformers.ReformerConfig(**config_of("reformer-enwik8"))
    with torch.device("meta"):
        model = transformers.ReformerModelWithLMHead(config)
    names = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {n: shape for n, _, shape in listed("reformer-enwik8") if "mask_value" not in n}
    assert found == names


@pytest.mark.parametrize("wrong", [{"axial_pos_shape": 5}, {"attn_layers": 5}])
def test_a_config_of_another_form_is_a_sentence(wrong: dict[str, int], tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text(encoding="utf-8")) | wrong
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=r"another form|config\.json"):
        load_model(tmp_path)
