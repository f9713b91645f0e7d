"""Published checkpoints open: every name of theirs is used, or known, or named in a warning.

The lists are of the real files (tests/weights/keys); numbers are random, widths reduced.
"""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.tensors import read_safetensors, write_tensors
from everyhead.weights import load_model, save_model
from everyhead.weights.reformer import CHUNKS

from .published import SAME, SIZES, config_of, listed, write_reduced

# Tensors of the published file, what is no weight among them, what a warning names, the class.
EXPECTED: dict[str, tuple[int, str, str, str]] = {
    "gpt2": (160, r"h\.\d+\.attn\.bias", "", "GPT2"),
    "bert-base-uncased": (206, "", r"pooler\.dense|seq_relationship", "Bert"),
    "bert-base-chinese": (207, "", r"pooler\.dense|seq_relationship", "Bert"),
    "t5-small": (134, r"decoder\.block\.0\.layer\.1\.Enc.*bias.weight", "", "T5"),
    "flan-t5-base": (284, "", "", "T5"),
    "vit-base-patch16-224": (200, "", "", "VisionTransformer"),
    "clip-vit-base-patch32": (400, r".*position_ids", "", "Clip"),
    "opus-mt-en-zh": (258, r".*embed_positions\.weight", "", "Transformer"),
    "Llama-3.2-1B": (146, "", "", "Llama"),
    "longformer-base-4096": (279, r".*position_ids", r"pooler\.dense", "Longformer"),
    "reformer-enwik8": (179, r".*mask_value_float\d+", "", "Reformer"),
    "SmolLM2-135M": (272, "", "", "Llama"),
}
ALWAYS_SAID = {"reformer-enwik8": CHUNKS}


def opened(folder: Path) -> tuple[Any, str]:
    """The model, and all warnings together."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = load_model(folder)
    return model, " ".join(str(each.message) for each in caught)


def energy(tensors: Any) -> float:
    """Σ x²: unchanged by whatever is transposed, split, joined or permuted on the way."""
    return sum(float(t.double().square().sum()) for t in tensors)


def own_energy(model: torch.nn.Module) -> float:
    biases = (t[t.isfinite()] for n, t in model.named_buffers() if n.endswith("head.bias"))
    return energy(p.detach() for p in model.parameters()) + energy(biases)


def used(tensors: dict[str, Tensor], checkpoint: str) -> dict[str, Tensor]:
    """What the model must hold: no buffers, no spare heads, tied tensors once."""
    _, buffer, spare, _ = EXPECTED[checkpoint]
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        known = buffer and re.fullmatch(buffer, name)
        if known or (spare and re.search(spare, name)):
            continue
        if not any(t.shape == tensor.shape and torch.equal(t, tensor) for t in found.values()):
            found[name] = tensor
    return found


@pytest.mark.parametrize("checkpoint", SIZES)
def test_every_published_tensor_is_used_or_known(checkpoint: str, tmp_path: Path) -> None:
    count, _, spare, family = EXPECTED[checkpoint]
    tensors = write_reduced(checkpoint, tmp_path)
    assert len(tensors) == count
    model, said = opened(tmp_path)
    assert type(model).__name__ == family
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert ("has no use for" in said) == bool(spare), said
    for part in spare.replace("\\", "").split("|") if spare else ():
        assert part in said
    kept = used(tensors, checkpoint)
    bias = kept.pop("final_logits_bias", None)
    if bias is not None:  # padding's logit is closed
        kept["bias"] = bias[0, :-1]
    assert own_energy(model) == pytest.approx(energy(kept.values()), rel=1e-6)


@pytest.mark.parametrize("checkpoint", SIZES)
def test_what_was_opened_is_saved_and_comes_back(checkpoint: str, tmp_path: Path) -> None:
    write_reduced(checkpoint, tmp_path / "published")
    model, _ = opened(tmp_path / "published")
    assert save_model(model, tmp_path / "ours") in ([], _remarks(checkpoint, model))
    again, said = opened(tmp_path / "ours")
    assert said == ALWAYS_SAID.get(checkpoint, "")
    first, second = model.state_dict(), again.state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def _remarks(checkpoint: str, model: Any) -> list[str]:
    """Marian's own padding row is random here, which CTranslate2 would drop."""
    from everyhead.weights.folder import kind_of_model

    remarks = kind_of_model(model).remarks
    return remarks(model) if checkpoint == "opus-mt-en-zh" and remarks else []


@pytest.mark.parametrize("checkpoint", SIZES)
def test_one_more_or_one_less_tensor_is_named(checkpoint: str, tmp_path: Path) -> None:
    tensors = write_reduced(checkpoint, tmp_path)
    for file in tmp_path.glob("*.bin"):
        file.unlink()
    lost = next(name for name in tensors if re.search(r"[.]\d+[.].*weight", name))
    write_tensors(
        tmp_path / "model.safetensors",
        {n: t for n, t in tensors.items() if n != lost} | {"other.weight": torch.zeros(2)},
    )
    with pytest.raises(UserError) as caught:
        load_model(tmp_path)
    text = str(caught.value)
    assert "missing: " in text and "unexpected: " in text and "other.weight" in text
    assert lost.split(".")[-2] in text


@pytest.mark.parametrize(
    ("checkpoint", "prefix"),
    [
        ("gpt2", "transformer."),
        ("bert-base-uncased", "bert."),
        ("vit-base-patch16-224", "vit."),
        ("longformer-base-4096", "longformer."),
    ],
)
def test_the_prefix_of_the_base_model_may_be_there_or_not(
    checkpoint: str, prefix: str, tmp_path: Path
) -> None:
    write_reduced(checkpoint, tmp_path)
    model, _ = opened(tmp_path)
    tensors = read_safetensors(tmp_path / "model.safetensors")
    outside = ("cls.", "classifier.", "lm_head.")
    if any(name.startswith(prefix) for name in tensors):
        other = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    else:
        other = {
            name if name.startswith(outside) else prefix + name: tensor
            for name, tensor in tensors.items()
        }
    assert other.keys() != tensors.keys()
    write_tensors(tmp_path / "model.safetensors", other)
    again, _ = opened(tmp_path)
    first, second = model.state_dict(), again.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("checkpoint", SIZES)
def test_the_lists_are_of_the_published_size(checkpoint: str) -> None:
    """Parameters of the lists in full size are those of the model with the published config."""
    from everyhead.inspection.weightless import Unmade
    from everyhead.weights.opening import kind_for

    values = config_of(checkpoint)
    kind = kind_for(values, checkpoint)
    with Unmade():
        model = MODELS[kind.family].model(kind.config(values, checkpoint))
    _, buffer, spare, _ = EXPECTED[checkpoint]
    names = {name for name, _, _ in listed(checkpoint)}
    tied = ("embed_tokens.weight", *(name for name, first in SAME.items() if first in names))
    total = 0
    for name, _, shape in listed(checkpoint):
        again = name.endswith(tied) and not name.startswith("model.embed_tokens")
        unused = (buffer and re.fullmatch(buffer, name)) or (spare and re.search(spare, name))
        if not again and not unused and name != "final_logits_bias":
            total += torch.Size(shape).numel()
    assert sum(p.numel() for p in model.parameters()) == total
