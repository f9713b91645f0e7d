"""Ten planted bugs: each is found by the law that speaks of it, with its smallest input."""

from typing import Any

import pytest
import torch
from torch import Tensor

from everyhead.inspection.checks import check
from everyhead.inspection.verdicts import Finding
from everyhead.layers.cache import DecoderCache
from tests.inspection import planted
from tests.inspection.twelve import build
from tests.laws.families import build as build_own

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out


def failing(model: Any, *laws: str) -> dict[str, Finding]:
    return {f.law: f for f in check(model, laws=laws or None) if f.verdict == "fail"}


def tokens(finding: Finding) -> list[int]:
    """How many tokens each row of the smallest input has on its last side."""
    return [len(list(row.values())[-1]) for row in finding.smallest["rows"]]


def test_opposite_mask_polarity():
    found = failing(planted.as_class(planted.OppositePolarity, "bert"))
    assert (
        {"padding-right", "padding-left"}
        <= set(found)
        <= {*("padding-right", "padding-left", "under-padding", "empty-row", "sum")}
    )
    smallest = found["padding-right"].smallest
    assert tokens(found["padding-right"]) == [1] and smallest["padding"] == {"on": "right"}
    assert found["padding-right"].layer == "bert.encoder.layer.0"


def test_top_left_causal_beside_a_cache():
    assert set(failing(planted.with_attention("right", "llama", planted.right_attention))) == set()
    found = failing(planted.with_attention("top-left", "llama", planted.top_left))
    assert "future" not in found and "cache" in found
    smallest = found["cache"].smallest
    assert tokens(found["cache"]) == [2] and smallest["chunk"] == 1 and smallest["token"] == 1
    assert found["cache"].layer == "model.layers.0"


def test_positions_that_are_not_shifted_under_left_padding():
    assert set(failing(planted.opt())) == set()
    found = failing(planted.opt(planted.PositionsFromZero))
    assert {"padding-left"} <= set(found) <= {"padding-left", "greedy"}
    smallest = found["padding-left"].smallest
    assert tokens(found["padding-left"]) == [1]
    assert smallest["padding"] == {"on": "left", "tokens": 1}
    assert found["padding-left"].layer == "before model.decoder.layers.0"


def test_dropout_left_on():
    findings = {f.law: f for f in check(planted.dropping())}
    found = findings["repeat"]
    assert found.verdict == "fail" and found.layer == "before encoder.0"
    assert len(found.smallest["rows"]) == 1 and tokens(found) <= [4]
    others = [f for law, f in findings.items() if law not in ("repeat", "ties")]
    assert {f.verdict for f in others} == {"not applicable"}
    assert all("repeat" in f.sentence for f in others)


@pytest.mark.slow
def test_a_large_negative_number_in_a_wholly_masked_row():
    """-1e9, or the type's least number as transformers' eager attention has it."""
    assert "empty-row" not in failing(build("bart", attn_implementation="sdpa"))
    found = failing(build("bart", attn_implementation="eager"))
    assert set(found) == {"padding-left", "empty-row"}  # BART's positions count the padding
    smallest = found["empty-row"].smallest
    assert smallest["rows"][-1]["source"] == [] and tokens(found["empty-row"]) == [1]
    assert smallest["padding"] == {"on": "right", "source": 1}


def test_padding_in_the_mean():
    found = failing(planted.bert_model())
    assert {"padding-right", "padding-left"} <= set(found)
    finding = found["padding-right"]
    assert finding.smallest["output"] == "pooler_output" and tokens(finding) == [1]
    assert finding.smallest["padding"] == {"on": "right", "tokens": 1}
    assert finding.layer == "after encoder.layer.1"


def test_a_head_untied_by_loading():
    found = failing(planted.as_class(planted.UntiedByLoading, "gpt2"))
    assert set(found) == {"padding-left", "ties"}  # GPT-2's positions count the padding
    assert "lm_head.weight" in found["ties"].sentence and "after save and load" in (
        found["ties"].sentence
    )


def test_a_head_that_is_not_tied_although_the_configuration_says_so():
    model = build("gpt2")
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert "but they are two tensors" in failing(model, "ties")["ties"].sentence


def test_a_cache_that_is_not_reordered(monkeypatch: pytest.MonkeyPatch):
    from transformers.cache_utils import DynamicLayer

    monkeypatch.setattr(DynamicLayer, "reorder_cache", lambda self, index: None)
    found = failing(build("llama"))
    assert set(found) == {"reorder"}
    smallest = found["reorder"].smallest
    assert smallest["moved_after"] == 1 and smallest["order"] == [1, 0]
    assert tokens(found["reorder"]) == [2, 2]


def test_a_cache_of_ours_that_is_not_reordered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(DecoderCache, "reorder", lambda self, index: None)
    found = failing(build_own("transformer-pre-learned"))
    assert set(found) == {"reorder"} and found["reorder"].smallest["moved_after"] == 1


def test_a_loss_whose_normaliser_counts_pads():
    found = failing(planted.as_class(planted.LossCountingPads, "gpt2"))
    assert set(found) == {"padding-left", "sum"}
    smallest = found["sum"].smallest
    assert tokens(found["sum"]) == [2] and smallest["padding"] == {"on": "right", "tokens": 1}


def test_an_attention_whose_normaliser_counts_pads():
    healthy = failing(planted.with_attention("both-ways", "bert", planted.both_ways))
    assert set(healthy) == {"padding-left"}
    found = failing(planted.with_attention("counting", "bert", planted.counting_pads))
    assert "padding-right" in found
    assert tokens(found["padding-right"]) == [1]
    assert found["padding-right"].smallest["padding"] == {"on": "right", "tokens": 1}
    assert found["padding-right"].layer == "bert.encoder.layer.0"


def test_a_leak_by_one():
    found = failing(planted.with_attention("leak", "llama", planted.leak_by_one))
    finding = found["future"]
    assert finding.smallest["changed_token"] == 1 and finding.smallest["token"] == 0
    assert tokens(finding) == [2] and finding.layer == "model.layers.0"


@pytest.mark.parametrize("layer", [0, 1])
def test_a_leak_is_traced_to_its_layer(layer: int):
    """A later token is mixed into one layer's output alone."""
    model = build_own("transformer-pre-learned")

    def leak(_: torch.nn.Module, __: object, out: Tensor) -> Tensor:
        return out + 1e-3 * out.sum(1, keepdim=True)

    model.decoder.blocks[layer].register_forward_hook(leak)
    assert failing(model, "future")["future"].layer == f"decoder.{layer}"


def test_rows_that_see_each_other():
    model = build("llama")

    def mix(_: torch.nn.Module, __: object, out: Tensor) -> Tensor:
        return out + 1e-3 * out.flip(0)

    model.model.layers[1].register_forward_hook(mix)
    found = failing(model, "batch")["batch"]
    assert tokens(found) == [1, 1] and found.layer == "model.layers.1"


def test_padding_that_is_read_by_its_id():
    """Where something is hidden it is told by the padding's id, not by the mask."""
    model = build("bert")
    plain = model.forward

    def by_id(input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        mask = None if attention_mask is None else (input_ids != 0).long()
        return plain(input_ids, attention_mask=mask, **more)

    model.forward = by_id
    assert failing(model, "padding-right") == {}
    found = failing(model, "under-padding")["under-padding"]
    assert tokens(found) == [1] and found.smallest["under_padding"] == "other ids"


def test_nan_that_leaks_from_the_padding():
    """A model of ours that fills nothing: what the padding holds reaches everybody."""
    model = build_own("transformer-pre-learned")

    def mean(_: torch.nn.Module, __: object, out: Tensor) -> Tensor:
        return out + 0 * out.sum() if out.dim() == 3 else out

    model.encoder.blocks[0].register_forward_hook(mean)
    assert failing(model, "padding-right", "nan-padding") == {}  # rows are zeroed at the entry
    plain = model._embed

    def unzeroed(*given: Any, **more: Any) -> Tensor:
        x = plain(*given, **more)
        return x if not model.spoil else x + 0 * model.target_embed(given[2]).sum()

    model.spoil, model._embed = True, unzeroed
    assert set(failing(model, "padding-right", "nan-padding")) == {"nan-padding"}


def test_a_search_that_takes_the_second_best():
    model = build("llama")
    plain = model.generate
    model.generate = lambda *a, **k: (plain(*a, **k) + 1) % 99
    found = failing(model, "greedy")["greedy"]
    assert tokens(found) == [1] and found.smallest["new_tokens"] == 1


def test_a_tensor_that_comes_back_as_another():
    class Rounding(type(build("llama"))):
        @classmethod
        def from_pretrained(cls, *given: Any, **more: Any) -> Any:
            model = super().from_pretrained(*given, **more)
            model.lm_head.weight.data = model.lm_head.weight.data.half().float()
            return model

    found = failing(planted.as_class(Rounding, "llama"), "save-load")
    assert "lm_head.weight" in found["save-load"].sentence


def test_a_causal_mask_that_is_lost_where_a_padding_mask_comes():
    """`is_causal=mask is None`: right alone, and the future is seen as soon as a mask is given."""
    model = build("llama")
    plain = model.forward

    def either(input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any) -> Any:
        if attention_mask is not None and attention_mask.dim() == 2 and len(input_ids[0]) > 1:
            attention_mask = attention_mask.bool()[:, None, None].expand(
                -1, 1, len(input_ids[0]), -1
            )
        return plain(input_ids, attention_mask=attention_mask, **more)

    model.forward = either
    finding = failing(model, "future")["future"]
    assert tokens(finding) == [2] and finding.smallest["padding"] == {"on": "right"}
