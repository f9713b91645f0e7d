"""bf16 by the processor's name, float32 by choice."""

from contextlib import nullcontext

import pytest
import torch

from everyhead.training.precision import autocast, has_fast_bf16, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("avx512", "amx", "expected"),
    [(False, False, "fp32"), (True, False, "bf16"), (False, True, "bf16"), (True, True, "bf16")],
)
def test_auto_follows_the_processors_instruction_sets(monkeypatch, avx512, amx, expected):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert resolve_precision("auto", CPU) == expected


def test_a_pytorch_without_these_questions_means_no(monkeypatch):
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
    assert not has_fast_bf16(CPU)


@pytest.mark.parametrize("wish", ["fp32", "bf16"])
def test_a_choice_is_kept_whatever_the_processor(monkeypatch, wish):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: wish == "fp32")
    assert resolve_precision(wish, CPU) == wish


def test_another_word_is_an_error_that_lists_the_words():
    with pytest.raises(ValueError, match="no precision 'fp16'; there are auto, fp32, bf16"):
        resolve_precision("fp16", CPU)


def test_autocast_makes_products_bf16_and_nothing_for_float32():
    a = torch.ones(2, 2)
    with autocast("bf16", CPU):
        assert (a @ a).dtype == torch.bfloat16
    with autocast("fp32", CPU):
        assert (a @ a).dtype == torch.float32
    assert isinstance(autocast("fp32", CPU), nullcontext)
