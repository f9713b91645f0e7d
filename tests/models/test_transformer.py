"""The Transformer as a whole: its numbers, names, refusals, and the reference in float64."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from everyhead import reference
from everyhead.models import MODELS
from everyhead.models.transformer import PRESETS, Transformer, TransformerConfig
from tests.laws.families import FAMILIES, SMALL, batch, build, sentences

OWN = [name for name in FAMILIES if name.startswith("transformer")]


@pytest.mark.parametrize(("name", "count"), [("base", 63_082_496), ("big", 214_245_376)])
def test_the_papers_parameter_counts(name: str, count: int) -> None:
    """One tied vocabulary of 37,000: the paper's table 3 says 65 and 213 million."""
    with torch.device("meta"):
        model = Transformer(TransformerConfig(vocab_size=37_000, **PRESETS[name]))
    assert sum(p.numel() for p in model.parameters()) == count


def test_presets_hold_the_papers_numbers() -> None:
    names = ("d_model", "n_heads", "n_encoder_layers", "n_decoder_layers", "d_ff", "dropout")
    assert [PRESETS["base"][n] for n in names] == [512, 8, 6, 6, 2048, 0.1]
    assert [PRESETS["big"][n] for n in names] == [1024, 16, 6, 6, 4096, 0.3]
    assert [PRESETS["small"][n] for n in names[:5]] == [256, 4, 3, 3, 1024]
    assert MODELS["transformer"] == (Transformer, TransformerConfig, PRESETS)
    default = TransformerConfig(vocab_size=9)
    assert {n: getattr(default, n) for n in names} == PRESETS["base"]


# ------------------------------------------------------------------------------ the reference


def parameters(model: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy() for name, p in model.state_dict().items()}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("tie_output", [True, False])
@pytest.mark.parametrize("source_vocab_size", [None, 19])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_equal_the_reference_in_float64(
    norm: str, source_vocab_size: int | None, tie_output: bool, left: bool
) -> None:
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=23,
        source_vocab_size=source_vocab_size,
        norm=norm,
        tie_output=tie_output,
        **SMALL,
    )
    model = Transformer(config).double().eval()
    for p in model.parameters():
        if p.dim() == 1:
            torch.nn.init.normal_(p)
    sides = batch(model, left=left, extra=1)
    ours = model(*sides).detach().numpy()
    theirs = reference.transformer(
        parameters(model), *(side.numpy() for side in sides), n_heads=4, norm=norm
    )
    real = sides.target_mask.numpy()
    np.testing.assert_allclose(ours[real], theirs[real], rtol=0, atol=1e-10)
    assert np.isneginf(ours[..., model.config.pad_id]).all()


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_an_odd_width_equals_the_reference_too(norm: str) -> None:
    torch.manual_seed(0)
    config = TransformerConfig(vocab_size=23, norm=norm, **{**SMALL, "d_model": 33, "n_heads": 3})
    model = Transformer(config).double().eval()
    source, target = sentences(model)[0]
    theirs = reference.transformer(
        parameters(model), source.numpy(), target.numpy(), n_heads=3, norm=norm
    )
    ours = model(source, target).detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------ names and ties


def test_parameter_paths_are_the_agreed_ones() -> None:
    config = TransformerConfig(vocab_size=23, source_vocab_size=19, norm="pre", **SMALL)
    names = set(Transformer(config).state_dict())
    expected = {"source_embed.weight", "target_embed.weight"}
    expected |= {"output_head.weight", "output_head.bias"}
    for half, attentions in (("encoder", ["self"]), ("decoder", ["self", "cross"])):
        parts = {"feed_forward.up_proj", "feed_forward.down_proj", "feed_forward_norm"}
        for a in attentions:
            parts |= {f"{a}_attn.{x}_proj" for x in "qkvo"} | {f"{a}_attn_norm"}
        places = {f"{half}.norm"} | {
            f"{half}.blocks.{n}.{part}" for n in range(2) for part in parts
        }
        expected |= {f"{place}.{leaf}" for place in places for leaf in ("weight", "bias")}
    assert names == expected


def test_post_norm_ends_without_a_norm_of_its_own() -> None:
    names = set(Transformer(TransformerConfig(vocab_size=23, **SMALL)).state_dict())
    assert not {name for name in names if name.startswith(("encoder.norm", "decoder.norm"))}


@pytest.mark.parametrize("source_vocab_size", [None, 19])
@pytest.mark.parametrize("tie_output", [True, False])
def test_tables_are_shared_as_configured(source_vocab_size: int | None, tie_output: bool) -> None:
    model = Transformer(
        TransformerConfig(
            vocab_size=23, source_vocab_size=source_vocab_size, tie_output=tie_output, **SMALL
        )
    )
    joint = source_vocab_size is None
    assert (model.source_embed.weight is model.target_embed.weight) == joint
    assert (model.output_head.weight is model.target_embed.weight) == tie_output
    assert model.source_embed.weight.shape == (source_vocab_size or 23, 32)
    tables = {id(p): p for p in model.parameters() if p.shape[0] in (19, 23)}
    assert len(tables) == 1 + (not joint) + (not tie_output)


def test_a_state_loads_into_another_model_with_equal_logits() -> None:
    for name in FAMILIES:
        model = build(name)
        torch.manual_seed(99)
        other = FAMILIES[name]().eval()
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(*batch(model)), model(*batch(model)))


def test_learned_positions_belong_to_each_side_and_the_sinusoid_to_both() -> None:
    learned, fixed = build("transformer-pre-learned"), build("transformer-post")
    assert learned.source_positions is not learned.target_positions
    assert {"source_positions.weight", "target_positions.weight"} <= set(learned.state_dict())
    assert fixed.source_positions is fixed.target_positions
    assert not [name for name in fixed.state_dict() if "positions" in name]


def test_the_sinusoid_has_all_sines_first() -> None:
    model = build("transformer-post")
    expected = reference.positional_encoding(40, 32, "halves")
    np.testing.assert_allclose(model.source_positions.table.numpy(), expected, rtol=0, atol=1e-7)


# ------------------------------------------------------------------------------ the config


def test_padding_is_the_last_id_unless_said_otherwise() -> None:
    config = TransformerConfig(vocab_size=23, source_vocab_size=19)
    assert (config.pad_id, config.source_pad_id) == (22, 18)
    assert TransformerConfig(vocab_size=23).source_pad_id == 22
    assert TransformerConfig(vocab_size=23, pad_id=4, source_pad_id=4).pad_id == 4
    again = TransformerConfig.model_validate_json(config.model_dump_json())
    assert again == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pad_id", 23),
        ("pad_id", -24),
        ("source_pad_id", 19),
        ("norm", "middle"),
        ("activation", "swish"),
        ("positions", "rotary"),
        ("n_layers", 6),
    ],
)
def test_a_config_that_cannot_be_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field):
        TransformerConfig(**{"vocab_size": 23, "source_vocab_size": 19, field: value})


def test_a_config_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TransformerConfig(vocab_size=23).d_model = 7


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="d_model 30 does not divide into 4 heads"):
        Transformer(TransformerConfig(vocab_size=23, **{**SMALL, "d_model": 30}))


# ------------------------------------------------------------------------------ use


@torch.no_grad()
def test_texts_beyond_the_longest_are_refused_and_the_longest_is_taken() -> None:
    for name in OWN:
        model = build(name)
        short, longest = torch.ones(1, 3, dtype=torch.long), torch.ones(1, 40, dtype=torch.long)
        assert model(longest, longest).isfinite()[..., :-1].all()
        for source, target in ((torch.ones(1, 41, dtype=torch.long), short), (short, longest)):
            if target is longest:
                target = torch.ones(1, 41, dtype=torch.long)
            with pytest.raises(ValueError, match="41 tokens are more than the model's max_len 40"):
                model(source, target)


@torch.no_grad()
def test_a_cache_is_held_to_the_longest_too() -> None:
    model = build("transformer-post")
    memory = model.encode(torch.ones(1, 3, dtype=torch.long))
    cache = model.cache(memory, 60)
    model.decode(torch.ones(1, 40, dtype=torch.long), memory, cache=cache)
    with pytest.raises(ValueError, match="41 tokens are more than the model's max_len 40"):
        model.decode(torch.ones(1, 1, dtype=torch.long), memory, cache=cache)


@torch.no_grad()
def test_forward_is_head_of_hidden_and_hidden_is_decode_of_encode() -> None:
    for name in OWN:
        model = build(name)
        sides = batch(model)
        hidden = model.hidden(*sides)
        memory = model.encode(sides.source, sides.source_mask)
        assert torch.equal(model(*sides), model.head(hidden))
        assert torch.equal(
            hidden, model.decode(sides.target, memory, target_mask=sides.target_mask)
        )
        assert hidden[~sides.target_mask].eq(0).all()


def test_dropout_acts_in_training_alone_and_the_seed_decides() -> None:
    model = build("transformer-post").train()
    sides = batch(model)
    torch.manual_seed(1)
    first, second = model(*sides), model(*sides)
    torch.manual_seed(1)
    assert torch.equal(model(*sides), first) and not torch.equal(first, second)
    assert torch.equal(model.eval()(*sides), model(*sides))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_with_padding_and_an_empty_source_is_finite_forwards_and_backwards(
    family: str, dtype: torch.dtype, training: bool
) -> None:
    model = build(family).train(training)
    sides = batch(model)
    sides.source_mask[2] = False
    with torch.autocast("cpu", dtype=dtype):
        hidden = model.hidden(*sides)
    assert hidden.isfinite().all()
    if not training:
        expected = model.hidden(*sides)
        torch.testing.assert_close(hidden.float(), expected, rtol=0, atol=0.15)
    hidden[sides.target_mask].float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_model_in_half_precision_is_near_the_wide_one(family: str, dtype: torch.dtype) -> None:
    model = build(family)
    sides = batch(model)
    sides.source_mask[2] = False
    real = sides.target_mask
    expected = model(*sides)[real][:, :-1]
    out = model.to(dtype)(*sides)[real][:, :-1].float()
    assert out.isfinite().all()
    assert (out - expected).norm() / expected.norm() < 0.05


def test_the_padding_rows_stay_zero_while_the_model_trains() -> None:
    for name in OWN:
        model = build(name).train()
        steps = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        sides = batch(model)
        for _ in range(3):
            logits = model(*sides)[sides.target_mask]
            loss = torch.nn.functional.cross_entropy(logits, sides.target[sides.target_mask])
            steps.zero_grad()
            loss.backward()
            steps.step()
        assert model.source_embed.weight[model.config.source_pad_id].eq(0).all()
        assert model.target_embed.weight[model.config.pad_id].eq(0).all()


def test_every_parameter_receives_a_gradient() -> None:
    for name in FAMILIES:
        model = build(name)
        source, target = sentences(model)[0]
        logits = model(source, target)[..., :-1]
        (logits * torch.randn_like(logits)).sum().backward()
        # A bias of the keys adds the same to a whole row of scores: softmax does not see it.
        blind = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]
        assert [n for n in blind if not n.endswith("k_proj.bias")] == []


def test_the_start_is_the_same_for_the_same_seed_and_of_moderate_size() -> None:
    torch.manual_seed(3)
    model = FAMILIES["transformer-post"]().eval()
    torch.manual_seed(3)
    again = FAMILIES["transformer-post"]().eval()
    logits = model(*batch(model))[..., :-1]
    assert torch.equal(logits, again(*batch(again))[..., :-1])
    assert 0.15 < logits.std().item() < 0.6  # unit entries times √(1/10d), d of them: √0.1


def test_one_vocabulary_has_one_padding() -> None:
    config = TransformerConfig(vocab_size=23, pad_id=5, **SMALL)
    assert config.source_pad_id == config.pad_id == 5
    assert TransformerConfig(vocab_size=23, source_vocab_size=9, pad_id=5).source_pad_id == 8


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5])
def test_a_dropout_that_is_no_share_is_refused(name: str, share: float) -> None:
    with pytest.raises(ValueError, match=name):
        TransformerConfig(vocab_size=23, **{name: share})
