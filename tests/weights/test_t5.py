"""Folders of T5, both ways through transformers; configs and names as really published."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import everyhead
from everyhead.errors import UserError
from everyhead.models.t5 import T5, T5Config
from everyhead.tensors import write_tensors
from everyhead.weights.folder import load_model, save_model
from everyhead.weights.t5 import NEVER_READ
from tests.cli.conftest import everyhead as program
from tests.models.test_t5 import SMALL, V11, batch, pair, their_logits
from tests.training.small_jobs import decoder, halves

transformers = pytest.importorskip("transformers")

V10 = {"tie_word_embeddings": True}
WIDTHS = {"d_model": 16, "d_kv": 4, "d_ff": 20, "num_heads": 3, "vocab_size": 50}
# As t5-small and flan-t5-base were published, but for the widths.
T5_SMALL: dict[str, Any] = {
    "architectures": ["T5WithLMHeadModel"],
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"early_stopping": True, "prefix": "summarize: "}},
}
FLAN_T5_BASE: dict[str, Any] = {
    "architectures": ["T5ForConditionalGeneration"],
    "decoder_start_token_id": 0,
    "dense_act_fn": "gelu_new",
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu",
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "is_gated_act": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_decoder_layers": 12,
    "num_layers": 12,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False,
    "transformers_version": "4.23.1",
    "use_cache": True,
}


def close(ours: T5, theirs: Any) -> None:
    sides = batch("left")
    with torch.no_grad():
        got, wanted = ours(*sides)[sides[3]], their_logits(theirs, sides)[sides[3]]
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


def told(folder: Path) -> tuple[Any, list[str]]:
    """The model, and the sentences with which it was opened."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = load_model(folder)
    return model, [str(each.message) for each in seen]


@pytest.mark.parametrize("more", [V10, V11, V11 | {"feed_forward_proj": "gated-silu"}])
def test_what_they_save_we_open(tmp_path: Path, more: dict[str, Any]) -> None:
    _, theirs = pair(SMALL | more)
    theirs.save_pretrained(tmp_path)
    ours, sentences = told(tmp_path)
    assert sentences == []
    assert (ours.config.n_encoder_layers, ours.config.n_decoder_layers) == (2, 3)
    close(ours, theirs)


def test_an_output_table_that_newer_code_left_out_is_the_embeddings(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.T5Config(**SMALL | V11)
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    ours, sentences = told(tmp_path)
    assert not ours.config.tie_output and "no output table of its own" in sentences[0]
    close(ours, theirs)


@pytest.mark.parametrize("more", [V10, V11])
def test_what_we_save_they_and_we_open(tmp_path: Path, more: dict[str, Any]) -> None:
    ours, _ = pair(SMALL | more)
    assert save_model(ours, tmp_path) == []
    theirs, found = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(found.values()), found
    assert type(theirs).__name__ == "T5ForConditionalGeneration"
    close(ours, theirs.eval())
    again = load_model(tmp_path)
    assert again.config == ours.config
    assert (again.output_head.weight is again.target_embed.weight) == ours.config.tie_output
    for name, tensor in ours.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    assert theirs.generation_config.decoder_start_token_id == 0
    assert theirs.generation_config.eos_token_id == 1


def published(layers: int, *, gated: bool, tables: tuple[str, ...]) -> dict[str, Tensor]:
    """Random tensors under the names of a published file, small in width."""
    rng = torch.Generator().manual_seed(0)
    c, inner, ff, v = 16, 12, 20, 50

    def draw(*shape: int) -> Tensor:
        return 0.3 * torch.randn(shape, generator=rng)

    found = {name: draw(v, c) for name in tables}
    ups = ("wi_0", "wi_1") if gated else ("wi",)
    for half, attentions in (
        ("encoder", ("SelfAttention",)),
        ("decoder", ("SelfAttention", "EncDecAttention")),
    ):
        for n in range(layers):
            for i, name in enumerate((*attentions, "DenseReluDense")):
                place = f"{half}.block.{n}.layer.{i}"
                found[f"{place}.layer_norm.weight"] = draw(c)
                if name == "DenseReluDense":
                    found |= {f"{place}.{name}.{up}.weight": draw(ff, c) for up in ups}
                    found[f"{place}.{name}.wo.weight"] = draw(c, ff)
                    continue
                found |= {f"{place}.{name}.{x}.weight": draw(inner, c) for x in "qkv"}
                found[f"{place}.{name}.o.weight"] = draw(c, inner)
        bias = f"{half}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found |= {bias: draw(32, 3), f"{half}.final_layer_norm.weight": draw(c)}
    return found


def put(folder: Path, values: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(values | WIDTHS), encoding="utf-8")


def test_t5_small_as_published_opens_here(tmp_path: Path) -> None:
    """An old .bin with one table and a bias that no code has ever read; a config without gates."""
    tensors = published(6, gated=False, tables=("shared.weight",)) | {NEVER_READ: torch.ones(32, 3)}
    assert len(tensors) == 132
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    put(tmp_path, T5_SMALL)
    ours, sentences = told(tmp_path)
    assert sentences == []
    assert (ours.config.activation, ours.config.gated, ours.config.tie_output) == (
        ("relu", False, True)
    )
    assert torch.equal(ours.output_head.weight, tensors["shared.weight"])
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    same_on_small(ours, theirs)


def test_flan_t5_base_as_published_opens_here(tmp_path: Path) -> None:
    tables = ("shared.weight", "lm_head.weight")
    tensors = published(12, gated=True, tables=tables)
    for half in ("encoder", "decoder"):
        tensors[f"{half}.embed_tokens.weight"] = tensors[tables[0]].clone()
    assert len(tensors) == 284
    write_tensors(tmp_path / "model.safetensors", tensors)
    put(tmp_path, FLAN_T5_BASE)
    ours, sentences = told(tmp_path)
    assert sentences == [] and not ours.config.tie_output
    assert torch.equal(ours.output_head.weight, tensors["lm_head.weight"])
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    same_on_small(ours, theirs)


def same_on_small(ours: T5, theirs: Any) -> None:
    rng = torch.Generator().manual_seed(3)
    source, target = (torch.randint(2, 50, (2, n), generator=rng) for n in (9, 7))
    with torch.no_grad():
        got = ours(source, target)
        wanted = theirs(input_ids=source, decoder_input_ids=target).logits
    assert float((got - wanted).norm() / wanted.norm()) < 1e-5


def test_a_missing_tensor_and_one_too_many_are_named(tmp_path: Path) -> None:
    tensors = published(6, gated=False, tables=("shared.weight",))
    lost = "decoder.block.3.layer.1.EncDecAttention.k.weight"
    tensors["classification_head.dense.weight"] = tensors.pop(lost)
    write_tensors(tmp_path / "model.safetensors", tensors)
    put(tmp_path, T5_SMALL)
    with pytest.raises(UserError, match=re.escape(lost)) as caught:
        load_model(tmp_path)
    assert "unexpected: classification_head.dense.weight" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("feed_forward_proj", "gated-quick"),
        ("dense_act_fn", "quick_gelu"),
        ("decoder_start_token_id", 3),
        ("num_heads", None),
        ("is_encoder_decoder", False),
    ],
)
def test_a_value_that_cannot_be_expressed_is_named(tmp_path: Path, name: str, value: Any) -> None:
    values = T5_SMALL | WIDTHS | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=name):
        load_model(tmp_path)


def test_mt5_is_t5_v11(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {k: v for k, v in SMALL.items() if k != "num_decoder_layers"}
    config = transformers.MT5Config(**sizes, feed_forward_proj="gated-gelu")
    theirs = transformers.MT5ForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path)
    ours, _ = told(tmp_path)
    assert ours.config.gated and not ours.config.tie_output
    close(ours, theirs)


@pytest.mark.parametrize("function", ["gelu", "silu", "relu"])
def test_the_function_that_is_said_beside_the_feed_forwards_name_counts(
    function: str, tmp_path: Path
) -> None:
    """As in their code, which takes dense_act_fn of config.json for its own."""
    _, theirs = pair(SMALL | V11 | {"dense_act_fn": function})
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_bytes())["dense_act_fn"] == function
    close(told(tmp_path)[0], theirs)


def test_every_activation_goes_there_and_back() -> None:
    from everyhead.weights.t5 import KIND

    for activation in ("relu", "gelu", "gelu_tanh", "silu"):
        for gated in (False, True):
            with torch.device("meta"):
                model = T5(T5Config(activation=activation, gated=gated, n_encoder_layers=1))
            assert KIND.config(json.loads(json.dumps(KIND.values(model))), "x") == model.config


def test_the_program_writes_with_it_looks_at_it_and_checks_it(tmp_path: Path) -> None:
    """A T5 of ours with a tokenizer of one text; sentinels in the text are pieces."""
    folder = halves(tmp_path / "model")
    model, tokenizer = everyhead.load(folder)
    line = "to be or not <extra_id_0> question"
    wanted = everyhead.translate(model, tokenizer, [line], max_len=12)
    code, out, err = program("translate", folder, line, "--max-len", 12, "--beam", 1)
    assert (code, out, err) == (0, wanted[0] + "\n", "")
    page = tmp_path / "page.html"
    code, out, err = program("look", folder, line, "--beam", 1, "--html", page)
    assert (code, err) == (0, "") and page.stat().st_size > 10_000
    laws = ("padding-left", "cache", "greedy", "save-load", "ties")
    code, out, err = program("check", folder, *(x for law in laws for x in ("--law", law)))
    assert (code, err) == (0, "") and out.endswith("5 pass, 0 fail, 0 not applicable.\n"), out
    code, out, err = program("translate", decoder(tmp_path / "llama", n_layers=1), "to be")
    assert code == 2 and "A Llama does not translate" in err
