"""The laws on models that are right: no false alarm; where published ones break one, proof."""

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn

import everyhead
from everyhead.errors import UserError
from everyhead.inspection.check_compare import differ
from everyhead.inspection.checks import LAWS, check
from everyhead.inspection.subjects import Batch, Side, Subject
from tests.inspection.twelve import CLIP_TEXT, LLAMA, TWELVE, build
from tests.laws.families import FAMILIES
from tests.laws.families import build as build_own

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

# What published code does, each shown below by calling transformers and nothing else.
REAL = {
    **{name: {"padding-left"} for name in ("bert", "gpt2", "bart", "marian", "clip", "roberta")},
    "t5": {"empty-row"},
}
PICTURES = {"repeat", "batch", "save-load"}  # all that can be said of a model of pictures


@pytest.mark.slow
@pytest.mark.parametrize("name", TWELVE)
def test_no_false_alarm_on_twelve_architectures(name: str):
    findings = {f.law: f for f in everyhead.check(build(name))}
    wrong = {law: f.sentence for law, f in findings.items() if f.verdict == "fail"}
    assert set(wrong) == REAL.get(name, set()), wrong
    held = {law for law, f in findings.items() if f.verdict == "pass"}
    assert held >= PICTURES if name == "vit" else held >= PICTURES | {"padding-right"}
    written = ("gpt2", "llama", "qwen", "mistral", "gemma2", "t5", "bart", "marian")
    assert ({"future", "cache", "reorder", "greedy", "sum"} <= held) == (name in written)


@pytest.mark.parametrize("name", FAMILIES)
def test_everyheads_own_models_keep_all_laws(name: str):
    findings = everyhead.check(build_own(name))
    assert [f.law for f in findings] == [*LAWS, "resume"]
    others = {f.law: f.verdict for f in findings if f.verdict != "pass"}
    untied = "untied" in name
    assert others == {"resume": "not applicable"} | ({"ties": "not applicable"} if untied else {})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_types_of_numbers_raise_no_alarm(dtype: torch.dtype):
    for model in (build_own("transformer-post").to(dtype), build("llama").to(dtype)):
        assert [f for f in everyhead.check(model) if f.verdict == "fail"] == []


def test_a_prepared_copy_keeps_the_laws_of_reading():
    findings = everyhead.check(everyhead.prepare(build_own("transformer-post")))
    others = {f.law for f in findings if f.verdict != "pass"}
    assert others == {"sum", "save-load", "ties", "resume"}
    assert {f.verdict for f in findings} == {"pass", "not applicable"}


# ------------------------------------------------------------- what is reported of published code


def padded_left(model: Any, ids: list[int], pad_id: int, **more: Any) -> tuple[Tensor, Tensor]:
    """The first output at the last token, alone and with one token of padding on the left."""
    alone, padded = torch.tensor([ids]), torch.tensor([[pad_id, *ids]])
    mask = torch.tensor([[0] + [1] * len(ids)])
    with torch.no_grad():
        first, second = model(alone, **more), model(padded, attention_mask=mask, **more)
    return pick(first), pick(second)


def pick(out: Any) -> Tensor:
    if "text_embeds" in out:
        return out["text_embeds"][0]
    if "pooler_output" in out:
        return out["pooler_output"][0]
    return out["logits"][0, -1]


@pytest.mark.parametrize("name", [n for n, laws in REAL.items() if laws == {"padding-left"}])
def test_left_padding_does_change_their_answers(name: str):
    """With nothing of everyhead's: so these alarms are true."""
    model, ids = build(name), [7, 30, 98]
    more: dict[str, Any] = {}
    if name == "clip":
        more = {"pixel_values": torch.zeros(1, 3, 16, 16)}
    if name in ("bart", "marian"):
        more = {"decoder_input_ids": torch.tensor([[1, 9]])}
    alone, padded = padded_left(model, ids, model.config.get_text_config().pad_token_id, **more)
    assert float((alone - padded).abs().max()) > 1e-2


@pytest.mark.parametrize("name", ["llama", "qwen", "mistral", "gemma2"])
def test_left_padding_does_not_change_those_of_the_others(name: str):
    torch.testing.assert_close(*padded_left(build(name), [7, 30, 98], 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_eager_attention_does_read_the_padding_of_an_empty_source(name: str):
    model, start = build(name, attn_implementation="eager"), torch.tensor([[0]])
    with torch.no_grad():
        one, other = (
            model(ids, attention_mask=torch.zeros_like(ids), decoder_input_ids=start).logits
            for ids in (torch.tensor([[5, 5]]), torch.tensor([[8, 9]]))
        )
    assert float((one - other).abs().max()) > 1e-2


def test_siglip_does_read_its_vector_at_the_padding():
    texts = {**CLIP_TEXT, "hidden_size": 32}
    torch.manual_seed(0)
    model = transformers.SiglipTextModel(transformers.SiglipTextConfig(**texts)).eval()
    assert not same_padded_right(model, "pooler_output", under=0)
    assert fails(model, "padding-right")


def test_gpt2_for_classification_does_find_the_last_token_by_the_paddings_id():
    kind, _, values = TWELVE["gpt2"]
    torch.manual_seed(0)
    config = transformers.GPT2Config(**values)
    model = transformers.GPT2ForSequenceClassification(config).eval()
    assert kind == "GPT2LMHeadModel" and same_padded_right(model, "logits", under=0)
    assert not same_padded_right(model, "logits", under=5)
    assert fails(model, "under-padding")


def same_padded_right(model: Any, output: str, under: int) -> bool:
    """Is one row what it is with a hidden token after it? By transformers alone."""
    with torch.no_grad():
        alone = model(torch.tensor([[7, 30, 98]]))[output]
        mask = torch.tensor([[1, 1, 1, 0]])
        padded = model(torch.tensor([[7, 30, 98, under]]), attention_mask=mask)[output]
    return torch.allclose(alone, padded, atol=1e-4)


def fails(model: Any, law: str) -> bool:
    return check(model, laws=[law])[0].verdict == "fail"


def test_mamba_in_chunks_is_not_mamba_in_one_pass():
    torch.manual_seed(0)
    sizes = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    model = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).eval()
    ids = torch.tensor([[1, 8, 15, 22, 29, 36]])
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
        first = model(ids[:, :4], use_cache=True)
        second = model(ids[:, 4:], cache=first.cache, use_cache=True)
    assert float((second.logits - whole[:, 4:]).abs().max()) > 1e-4
    finding = check(model, laws=["cache"])[0]
    assert finding.verdict == "fail" and finding.smallest["chunk"] == 2


def test_gpt2_is_told_what_to_do_about_left_padding():
    finding = check(build("gpt2"), laws=["padding-left"])[0]
    assert "position_ids" in finding.sentence and finding.layer == "before transformer.h.0"
    assert finding.smallest["padding"] == {"on": "left", "tokens": 1}


def test_rounding_is_no_leak():
    """Experts compute the tokens that they are given: another token, another order of sums."""
    torch.manual_seed(0)
    config = transformers.MixtralConfig(**LLAMA, num_local_experts=4)
    model = transformers.MixtralForCausalLM(config).eval()
    finding = check(model, laws=["future"])[0]
    assert finding.verdict == "pass" and "rounding" in finding.sentence


# --------------------------------------------------------------------------------- the check itself


def test_the_model_and_the_random_state_come_back_as_they_were():
    model = build("gpt2").train()
    model.transformer.h[0].eval()
    modes = [part.training for part in model.modules()]
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    state, settings = torch.get_rng_state(), model.generation_config
    check(model)
    assert [part.training for part in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state) and model.generation_config is settings
    assert all(torch.equal(x, weights[name]) for name, x in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())


def test_findings_are_the_same_every_time():
    model = build("bert")
    assert check(model) == check(model)


def test_only_the_laws_that_are_named_are_tried():
    model = build_own("transformer-post")
    assert [f.law for f in check(model, laws=["cache", "future"])] == ["cache", "future"]
    with pytest.raises(UserError, match=r"no law 'futur'; there are repeat, .*future"):
        check(model, laws=["futur"])
    with pytest.raises(UserError, match=r"no law 'futur'; .*resume"):
        everyhead.check(model, laws=["futur"])


def test_what_nobody_can_read_is_refused():
    with pytest.raises(UserError, match="does not know how a Linear is read"):
        check(nn.Linear(2, 2))
    small = transformers.Wav2Vec2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    with pytest.raises(UserError, match="Wav2Vec2Model reads input_values; check feeds tokens"):
        check(transformers.Wav2Vec2Model(small))


def test_a_model_that_stops_is_a_finding_not_a_crash():
    model = build("llama")

    def stop(*_: Any) -> None:
        raise RuntimeError("no\nmore")

    model.model.layers[1].register_forward_hook(stop)
    for finding in check(model, laws=["batch", "repeat"]):
        assert finding.verdict == "fail" and finding.sentence.endswith("RuntimeError: no more")
        assert [len(row["tokens"]) for row in finding.smallest["rows"]] in ([1], [1, 1], [4, 4])

    def stop_at_padding(model: nn.Module, _: Any, given: dict[str, Any]) -> None:
        if given.get("attention_mask") is not None and not given["attention_mask"].all():
            raise RuntimeError("no\nmore")

    model = build("llama")
    model.register_forward_pre_hook(stop_at_padding, with_kwargs=True)
    finding = check(model, laws=["padding-right"])[0]
    assert finding.verdict == "fail" and finding.sentence.endswith("RuntimeError: no more")
    assert [len(row["tokens"]) for row in finding.smallest["rows"]] == [1]
    assert finding.smallest["padding"] == {"on": "right", "tokens": 1}


class Averages(Subject):
    """A model of one's own: each token's embedding, and their mean over what is real."""

    def __init__(self, model: nn.Embedding, *, honest: bool = True) -> None:
        self.model, self.honest, self.name = model, honest, "averages"
        self.sides = (Side("tokens", tuple(range(1, 20)), max_len=16),)

    def with_model(self, model: nn.Module) -> Subject:
        return Averages(model, honest=self.honest)

    def read(self, batch: Batch) -> dict[str, Tensor]:
        x, real = self.model(batch.ids["tokens"]), batch.real["tokens"]
        if real is None or not self.honest:
            return {"states": x, "mean": x.mean(1)}
        count = real.sum(1, keepdim=True).clamp_min(1)
        return {"states": x, "mean": x.masked_fill(~real[..., None], 0).sum(1) / count}


def test_a_family_of_ones_own_needs_only_to_say_how_it_is_read():
    torch.manual_seed(0)
    table = nn.Embedding(20, 4)
    findings = {f.law: f for f in check(Averages(table))}
    assert {f.verdict for f in findings.values()} == {"pass", "not applicable"}
    assert findings["padding-left"].verdict == findings["future"].verdict == "pass"
    dishonest = {f.law for f in check(Averages(table, honest=False)) if f.verdict == "fail"}
    assert {"padding-left", "padding-right"} <= dishonest


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 9e-6], True),
        ([1.0, 2.0], [1.0, 2.0 + 3e-5], False),
        ([1e6, 2.0], [1e6, 2.0 + 3e-5], True),  # sums of large terms are rounded as those are
        ([float("-inf"), 2.0], [float("-inf"), 2.0], True),
        ([float("-inf"), 2.0], [0.0, 2.0], False),
        ([float("nan"), 2.0], [float("nan"), 2.0], False),
        ([float("nan"), 2.0], [1.0, 2.0], False),
    ],
)
def test_what_counts_as_the_same(a: list[float], b: list[float], same: bool):
    assert (differ(torch.tensor(a), torch.tensor(b)) is None) == same
