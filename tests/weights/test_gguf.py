"""Llamas from .gguf files beside transformers' own loading of them; files that are broken."""

import struct
from pathlib import Path

import gguf
import pytest
import torch
import transformers

from everyhead import load
from everyhead.errors import UserError
from everyhead.weights.folder import load_model, save
from everyhead.weights.gguf import open_gguf
from tests.weights.gguf_files import llama, write

IDS = torch.tensor([[2, 9, 33, 7, 3], [59, 40, 3, 0, 0]])
KINDS = ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "BF16", "Q5_0", "Q5_1"]


def theirs(path: Path) -> transformers.LlamaForCausalLM:
    return transformers.LlamaForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_numbers_of_every_kind_are_theirs(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "small.gguf", llama(), kind)
    ours, tokenizer = load(path)
    assert tokenizer is None
    wanted = theirs(path)(IDS).logits
    torch.testing.assert_close(ours(IDS), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(load_model(str(path))(IDS), ours(IDS))


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"num_key_value_heads": 4, "rms_norm_eps": 1e-3},
        {"num_key_value_heads": 1, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
        {"attention_bias": True, "mlp_bias": True},
    ],
)
@torch.no_grad()
def test_a_float32_file_is_the_model_that_it_was_made_of(
    changes: dict[str, object], tmp_path: Path
) -> None:
    model = llama(**changes)
    ours, _ = open_gguf(write(tmp_path / "small.gguf", model))
    torch.testing.assert_close(ours(IDS), model(IDS).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_what_was_opened_is_written_as_a_folder(tmp_path: Path) -> None:
    ours, _ = open_gguf(write(tmp_path / "small.gguf", llama(tie_word_embeddings=True), "Q4_1"))
    save(ours, None, tmp_path / "folder")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "folder").eval()
    torch.testing.assert_close(again(IDS).logits, ours(IDS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("factor", [8.0, 32.0])
@torch.no_grad()
def test_llama3s_divisors_are_understood(factor: float, tmp_path: Path) -> None:
    """llama.cpp's converter stores what the rule divides each pair's angle by."""
    rule = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
    # 128 channels a head, so that slow pairs are there and are stretched
    wide = {"hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = llama(**wide, rope_parameters={"rope_theta": 5e5, **rule})
    rotary = model.model.rotary_emb
    plain, _ = rotary.compute_default_rope_parameters(model.config)
    divisors = plain / rotary.inv_freq
    assert float(divisors.max()) == pytest.approx(factor) and float(divisors.min()) == 1.0
    path = write(tmp_path / "small.gguf", model)
    with_divisors = added(path, "rope_freqs.weight", divisors)
    ours, _ = open_gguf(with_divisors)
    ids = torch.arange(60).repeat(1, 1)
    torch.testing.assert_close(ours(ids), model(ids).logits, rtol=1e-5, atol=1e-5)
    odd = added(path, "rope_freqs.weight", divisors * torch.linspace(1, 2, 64))
    with pytest.raises(UserError, match="by other numbers than Llama 3's"):
        open_gguf(odd)


def added(path: Path, name: str, tensor: torch.Tensor) -> Path:
    """A copy of the file with one tensor more."""
    reader = gguf.GGUFReader(path)
    copy = path.with_name("more.gguf")
    writer = gguf.GGUFWriter(copy, "llama")
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            writer.add_key_value(key, field.contents(), field.types[0])
    for each in reader.tensors:
        writer.add_tensor(each.name, each.data)
    writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return copy


@pytest.mark.parametrize("kind", ["linear", "yarn"])
@torch.no_grad()
def test_other_scalings_are_read(kind: str, tmp_path: Path) -> None:
    told = {"rope_type": kind, "factor": 4.0, "rope_theta": 1e4}
    more = {"original_max_position_embeddings": 16} if kind == "yarn" else {}
    model = llama(rope_parameters={**told, **more})
    values = {
        "llama__rope__scaling__type": kind,
        "llama__rope__scaling__factor": 4.0,
        "llama__rope__scaling__original_context_length": 16,
    }
    ours, _ = open_gguf(write(tmp_path / "small.gguf", model, **values))
    torch.testing.assert_close(ours(IDS), model(IDS).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spelling", ["scaling__factor", "scale_linear"])
@torch.no_grad()
def test_a_factor_without_a_kind_is_linear(spelling: str, tmp_path: Path) -> None:
    """As llama.cpp reads it, which takes linear where the kind is left out."""
    model = llama(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4})
    ours, _ = open_gguf(write(tmp_path / "small.gguf", model, **{f"llama__rope__{spelling}": 4.0}))
    torch.testing.assert_close(ours(IDS), model(IDS).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_yarns_own_numbers_are_read(tmp_path: Path) -> None:
    told = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "beta_fast": 3.0,
            "beta_slow": 0.1, "original_max_position_embeddings": 64}  # fmt: skip
    model = llama(rope_parameters=told, max_position_embeddings=256)
    values = {
        "llama__rope__scaling__type": "yarn",
        "llama__rope__scaling__factor": 4.0,
        "llama__rope__scaling__original_context_length": 64,
    }
    own = {f"llama__rope__scaling__yarn_{name}": told[name] for name in ("beta_fast", "beta_slow")}
    ids = torch.arange(60)[None]
    wanted = model(ids).logits
    ours, _ = open_gguf(write(tmp_path / "small.gguf", model, **values, **own))
    torch.testing.assert_close(ours(ids), wanted, rtol=1e-5, atol=1e-5)
    without, _ = open_gguf(write(tmp_path / "without.gguf", model, **values))
    assert (without(ids) - wanted).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"llama__rope__scaling__attn_factor": 1.5}, "rope.scaling.attn_factor 1.5"),
        ({"llama__rope__scaling__yarn_ext_factor": 0.5}, "rope.scaling.yarn_ext_factor 0.5"),
        ({"llama__block_count": None}, "lacks llama.block_count"),
        ({"llama__expert_count": 8}, "mixture of experts"),
        ({"llama__rope__dimension_count": 8}, "turns 8 channels of each head's 16"),
        ({"llama__rope__scaling__type": "longrope"}, "rotary scaling 'longrope'"),
        ({"llama__attention__head_count": 5}, "does not divide into 5 heads"),
        ({"llama__block_count": 3}, "missing: blk.2.attn_q.weight"),
        ({"llama__feed_forward_length": 48}, "wrong shape"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer of type 'bert'"),
        ({"tokenizer__ggml__model": "gpt2"}, "no whole tokenizer"),
    ],
)
def test_what_it_cannot_be_is_named(
    values: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=sentence):
        load(write(tmp_path / "small.gguf", llama(), **values))


def test_other_families_are_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "qwen2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="of the kind 'qwen2'"):
        load(tmp_path / "other.gguf")


def test_no_file_an_empty_one_and_others_are_sentences(tmp_path: Path) -> None:
    for content, sentence in (
        (None, "No such file"),
        (b"", "it is empty"),
        (b"GGUF", "no whole GGUF file"),
        (b"PK\x03\x04" + bytes(60), "does not begin with GGUF"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "cut off"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "cut off"),
    ):
        path = tmp_path / "broken.gguf"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            load(path)


def value(key: bytes, kind: int, content: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + content


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<IQ", 0, 2**62),  # an array that would never end
        struct.pack("<IQ", 8, 2**62),
        struct.pack("<IQ", 9, 3) + bytes(64),  # arrays of arrays
        struct.pack("<IQ", 77, 3) + bytes(64),
    ],
)
def test_arrays_that_lie_about_their_length_end_at_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + value(b"a", 9, content))
    with pytest.raises(UserError, match="no whole GGUF file"):
        load(path)


def test_a_file_cut_anywhere_or_with_a_byte_changed_is_a_sentence_or_a_model(
    tmp_path: Path,
) -> None:
    """Whatever the header says, nothing but UserError comes of it, and soon."""
    whole = write(tmp_path / "small.gguf", llama(num_hidden_layers=1), "Q4_0").read_bytes()
    path, header = tmp_path / "broken.gguf", whole.index(b"blk.0.ffn_norm") + 60
    for end in [*range(0, header, 23), header, len(whole) // 2, len(whole) - 40]:
        path.write_bytes(whole[:end])
        with pytest.raises(UserError):
            load(path)
    for place in range(4, header, 7):
        for byte in (0x00, 0x7F, 0xFF):
            path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
            try:
                load(path)
            except UserError as error:
                assert str(error).endswith((".", "?"))


def test_without_the_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "small.gguf", llama())
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    with pytest.raises(UserError, match=r"everyhead\[hf\]"):
        load(path)
