"""What check feeds a model, and that it blames none for what it cannot feed; broken ones are found.

Beside every class that raised a false alarm stands one of its kind that is broken, and is told so.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import everyhead as library
from everyhead.errors import UserError
from everyhead.inspection.check_feeding import noise, vocabulary_of
from everyhead.inspection.checks import check
from everyhead.inspection.verdicts import Finding
from tests.cli.conftest import everyhead, refused
from tests.inspection.planted import with_attention
from tests.inspection.twelve import ENDS, LLAMA, PAIRS, PATCHES, TINY, build

pytestmark = pytest.mark.slow  # many models or pictures; `make test-fast` leaves them out

BERT = {**TINY, "intermediate_size": 64, "max_position_embeddings": 64}
STAGES = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
SEGMENTS = {
    "depths": [1] * 4,
    "hidden_sizes": [8] * 4,
    "num_attention_heads": [1] * 4,
    "decoder_hidden_size": 16,
}
XLNET = {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}
XLM = {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "pad_index": 0}


def detr() -> Any:
    sizes = {name: value for name, value in PAIRS.items() if "coder" in name or name == "d_model"}
    sizes.pop("decoder_start_token_id")
    backbone = hf.ResNetConfig(**STAGES, out_features=["stage2"])
    return hf.DetrForObjectDetection(
        hf.DetrConfig(**sizes, num_queries=5, backbone_config=backbone)
    )


def captioner() -> Any:
    text = hf.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=99, add_cross_attention=True)
    both = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**PATCHES), text)
    return hf.VisionEncoderDecoderModel(config=both)


def llava() -> Any:
    vision = {"model_type": "clip_vision_model", **PATCHES}
    text = {"model_type": "llama", **LLAMA}
    config = hf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=98)
    return hf.LlavaForConditionalGeneration(config)


def qwen2_vl() -> Any:
    vision = {"depth": 1, "embed_dim": 16, "hidden_size": 32, "num_heads": 2, "patch_size": 8}
    text = {**LLAMA, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    ids = {"image_token_id": 58, "video_token_id": 57}
    config = hf.Qwen2VLConfig(vision_config=vision, text_config=text, **ids)
    return hf.Qwen2VLForConditionalGeneration(config)


def many(kind: str, config: str, **values: Any) -> Any:
    return getattr(hf, kind)(getattr(hf, config)(**values))


MAKERS: dict[str, Callable[[], Any]] = {
    "segformer": lambda: many("SegformerForImageClassification", "SegformerConfig", **SEGMENTS),
    "segments": lambda: many("SegformerForSemanticSegmentation", "SegformerConfig", **SEGMENTS),
    "resnet": lambda: many("ResNetForImageClassification", "ResNetConfig", **STAGES),
    "detr": detr,
    "vilt": lambda: many("ViltModel", "ViltConfig", **PATCHES, vocab_size=99),
    "git": lambda: many("GitModel", "GitConfig", **BERT, vision_config=PATCHES),
    "captioner": captioner,
    "llava": llava,
    "qwen2-vl": qwen2_vl,
    "choices": lambda: many("BertForMultipleChoice", "BertConfig", **BERT),
    "canine": lambda: many(
        "CanineModel", "CanineConfig", **{k: v for k, v in BERT.items() if k != "vocab_size"}
    ),
    "bart alone": lambda: many("BartForCausalLM", "BartConfig", **PAIRS, is_decoder=True),
    "marian alone": lambda: many("MarianForCausalLM", "MarianConfig", **PAIRS, is_decoder=True),
    "bart judging": lambda: many("BartForSequenceClassification", "BartConfig", **PAIRS),
    "t5 judging": lambda: many(
        "T5ForSequenceClassification", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2,
        num_heads=4, vocab_size=99, **ENDS, decoder_start_token_id=0,
    ),
    "xlnet": lambda: many("XLNetLMHeadModel", "XLNetConfig", **XLNET, **ENDS),
    "xlm": lambda: many("XLMWithLMHeadModel", "XLMConfig", **XLM),
    "xlm causal": lambda: many("XLMWithLMHeadModel", "XLMConfig", **XLM, causal=True),
}  # fmt: skip


def make(name: str) -> Any:
    torch.manual_seed(0)
    model = MAKERS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def findings(model: Any, *laws: str) -> dict[str, Finding]:
    return {found.law: found for found in check(model, laws=laws or None)}


def failing(model: Any, *laws: str) -> set[str]:
    return {law for law, found in findings(model, *laws).items() if found.verdict == "fail"}


def stop(*_: Any) -> None:
    raise RuntimeError("no more")


# ---------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("name", ["segformer", "segments", "resnet", "detr"])
def test_a_config_without_a_size_of_pictures_is_no_failure(name: str):
    model = make(name)
    assert getattr(model.config, "image_size", None) is None
    found = findings(model)
    assert "fail" not in {f.verdict for f in found.values()}
    assert {"repeat", "batch", "save-load"} <= {n for n, f in found.items() if f.verdict == "pass"}


@pytest.mark.parametrize("name", ["segformer", "resnet"])
def test_a_broken_model_of_such_a_kind_is_still_found(name: str):
    model = make(name)
    next(p for p in model.children() if any(True for _ in p.parameters())).register_forward_hook(
        stop
    )
    found = findings(model, "repeat", "batch")
    assert {f.verdict for f in found.values()} == {"fail"}
    assert found["repeat"].sentence == "The model stopped with RuntimeError: no more"

    model = make(name)
    seen: list[None] = []

    def mixing(_: nn.Module, __: Any, out: Any) -> Any:
        seen.append(None)
        out.logits = out.logits + out.logits.mean(0, keepdim=True)
        return out

    model.register_forward_hook(mixing)
    assert "batch" in failing(model, "batch") and seen


def test_pictures_are_of_the_size_that_the_config_or_one_inside_it_says():
    like = (torch.device("cpu"), torch.float32)
    size = SimpleNamespace(image_size=[8, 12], num_channels=1)
    for config in (size, SimpleNamespace(vision_config=size), SimpleNamespace(encoder=size)):
        assert noise(config, [3, 4, 3], like).shape == (3, 1, 8, 12)
    same = noise(SimpleNamespace(), [3, 4, 3], like)
    assert same.shape == (3, 3, 224, 224) and torch.equal(same[0], same[2])
    assert not torch.equal(same[0], same[1])


def test_vilt_is_shown_a_picture_and_does_order_its_patches_by_chance():
    """By transformers alone: so this alarm is true, and nothing else can be compared."""
    model, ids = make("vilt"), torch.tensor([[7, 30, 98]])
    picture = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        orders = [model.embeddings.visual_embed(picture, torch.ones(1, 16, 16))[2] for _ in "12"]
        assert model(ids, pixel_values=picture).last_hidden_state.shape == (1, 3 + 17, 32)
    assert any(not torch.equal(a, b) for a, b in zip(*orders, strict=True))
    found = findings(model)
    assert {law for law, f in found.items() if f.verdict == "fail"} <= {"repeat"}
    assert "The model stopped" not in found["repeat"].sentence


def test_pictures_that_stand_in_a_cache_are_not_shown_to_it_again():
    found = findings(make("git"))
    assert "fail" not in {f.verdict for f in found.values()}
    assert "pictures stand in its cache" in found["cache"].sentence == found["reorder"].sentence


# --------------------------------------------------------------------------- what it cannot feed


@pytest.mark.parametrize(
    ("name", "given", "stopped"),
    [
        ("captioner", "noise as a picture", "You have to specify either input_ids"),
        ("llava", "ids and noise as a picture", "Image features and image tokens do not match"),
        ("qwen2-vl", "ids and noise as a picture", "NoneType"),
        ("choices", "ids", "is invalid for input of size"),
    ],
)
def test_what_check_cannot_feed_is_refused_and_not_blamed(name: str, given: str, stopped: str):
    model = make(name)
    with pytest.raises(UserError) as caught:
        check(model)
    words = str(caught.value)
    assert words.startswith(f"check does not know how to feed a {type(model).__name__}: given")
    assert f"given {given}, a new one stops as this one does" in words and stopped in words
    with pytest.raises(UserError, match="how to feed"):
        library.check(model, laws=["save-load"])


@pytest.mark.parametrize("name", ["llama", "bert", "vit", "clip", "bart"])
def test_a_model_that_stops_at_once_is_still_to_blame_where_a_new_one_does_not(name: str):
    model = build(name)
    model.register_forward_hook(stop)
    found = findings(model, "repeat", "batch")
    assert {f.sentence for f in found.values()} == {"The model stopped with RuntimeError: no more"}


def test_an_attention_of_ones_own_that_stops_is_to_blame():
    """It is in no new model, which has transformers' own."""

    def broken(scores: Tensor, mask: Tensor | None) -> Tensor:
        raise ValueError("no weights")

    found = findings(with_attention("stopping", "llama", broken), "repeat")["repeat"]
    assert found.verdict == "fail" and found.sentence.endswith("ValueError: no weights")


def test_a_weight_of_the_wrong_shape_is_to_blame():
    model = build("bert")
    model.bert.encoder.layer[1].output.dense.weight = nn.Parameter(torch.zeros(32, 60))
    found = findings(model, "repeat")["repeat"]
    assert found.verdict == "fail" and "RuntimeError" in found.sentence


def test_a_vocabulary_is_the_configs_or_the_tables_and_canines_is_neither():
    model = build("llama")
    assert vocabulary_of(model, model.config) == vocabulary_of(model, SimpleNamespace()) == 99
    with pytest.raises(UserError, match=r"which ids a CanineModel reads: .*no vocab_size"):
        check(make("canine"))


def test_the_program_refuses_in_one_sentence_and_passes_what_it_can_feed(tmp_path: Any):
    for name in ("canine", "segformer"):
        make(name).save_pretrained(tmp_path / name)
    assert "which ids a CanineModel reads" in refused("check", tmp_path / "canine")
    code, out, _ = everyhead("check", tmp_path / "segformer", "--law", "repeat")
    assert code == 0 and out.endswith("1 pass, 0 fail, 0 not applicable.\n")


# ------------------------------------------------------------------------------------------ sums


@pytest.mark.parametrize("name", ["bart alone", "marian alone"])
def test_labels_that_a_class_does_not_shift_are_counted_as_it_does(name: str):
    model, ids = make(name), torch.tensor([[7, 30, 98, 12]])
    with torch.no_grad():
        out = model(ids, labels=ids)
    plain = nn.functional.cross_entropy(out.logits[0], ids[0])
    torch.testing.assert_close(out.loss, plain)  # by transformers alone
    assert findings(model, "sum")["sum"].verdict == "pass"


class CountingPads(hf.BartForCausalLM):
    """The loss is divided by all places of the batch."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None, **more: Any) -> Any:
        out = super().forward(input_ids, **more)
        if labels is not None:
            flat = out.logits.flatten(0, 1), labels.flatten()
            out.loss = nn.functional.cross_entropy(*flat, reduction="sum") / labels.numel()
        return out


def test_one_that_divides_by_its_padding_too_is_still_found():
    model = make("bart alone")
    model.__class__ = CountingPads
    assert failing(model, "sum") == {"sum"}


# ---------------------------------------------------------------------- both ways, and empty rows


@pytest.mark.parametrize(("name", "why"), [("xlnet", "perm_mask"), ("xlm", "causal=False")])
def test_a_family_that_reads_both_ways_is_not_said_to_see_the_future(name: str, why: str):
    model, ids = make(name), torch.tensor([[7, 30, 98], [7, 30, 12]])
    with torch.no_grad():
        one, other = model(ids).logits
    assert not torch.equal(one[:2], other[:2])  # by transformers alone, and as it is meant
    found = findings(model, "future", "greedy", "sum")
    assert found["future"].verdict == found["greedy"].verdict == "not applicable"
    assert why in found["future"].sentence and found["sum"].verdict == "pass"


def test_an_xlm_that_says_it_is_causal_is_held_to_it():
    assert findings(make("xlm causal"), "future")["future"].verdict == "pass"
    model = make("xlm causal")
    model.transformer.causal = False
    assert failing(model, "future") == {"future"}


@pytest.mark.parametrize("name", ["bart judging", "t5 judging"])
def test_a_model_that_refuses_an_empty_row_is_no_failure(name: str):
    found = findings(make(name), "empty-row")["empty-row"]
    assert found.verdict == "not applicable"
    assert found.sentence.endswith("Each example must contain at least one <eos> token.")


def too_few() -> None:
    _, _ = torch.zeros(1)


def of_torch() -> None:
    nn.functional.cross_entropy(torch.zeros(2, 3), torch.zeros(1, dtype=torch.long))


def past_the_end() -> None:
    raise IndexError("past the end")


@pytest.mark.parametrize("stumble", [too_few, of_torch, past_the_end])
def test_one_that_stumbles_over_an_empty_row_is_still_found(stumble: Callable[[], None]):
    """A ValueError that nobody raised on purpose, or anything else, is no refusal."""
    model = build("bert")

    def at_an_empty_row(_: nn.Module, __: Any, given: dict[str, Any]) -> None:
        mask = given.get("attention_mask")
        if mask is not None and not mask.any(1).all():
            stumble()

    model.register_forward_pre_hook(at_an_empty_row, with_kwargs=True)
    assert failing(model, "empty-row") == {"empty-row"}


def test_a_prompts_padding_is_named_where_it_alone_changes_what_is_likeliest():
    """BartForCausalLM's positions count padding on the left, and generate hands over no others."""
    model = make("bart alone")
    model.model.decoder.embed_positions.weight.data.mul_(20)
    padded, mask = torch.tensor([[0, 0, 7, 30, 98]]), torch.tensor([[0, 0, 1, 1, 1]])
    with torch.no_grad():
        alone, beside = model(padded[:, 2:]).logits[0], model(padded, attention_mask=mask).logits[0]
    assert not torch.allclose(alone[-1], beside[-1], atol=1e-2)  # by transformers alone
    found = findings(model, "greedy")["greedy"]
    assert found.verdict == "fail" and "it is padding that changes" in found.sentence
