"""everyhead.reference against PyTorch in float64, and against what the documents say.

Where a test compares with `torch.nn`, the weights are copied and dropout is 0; nothing here knows
everyhead's own PyTorch layers (tests/layers does that).
"""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyhead import reference

EXACT = {"rtol": 1e-10, "atol": 1e-10}
BATCH, QUERIES, KEYS, HEADS, WIDTH = 3, 5, 7, 4, 6
D_MODEL, D_FF, VOCABULARY = 24, 32, 11


def tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array))


def agree(ours: np.ndarray, theirs: Tensor | np.ndarray, **tolerance: float) -> None:
    theirs = theirs.detach().numpy() if isinstance(theirs, Tensor) else theirs
    np.testing.assert_allclose(ours, theirs, **{**EXACT, **tolerance})


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def heads(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return (
        rng.normal(size=(BATCH, HEADS, QUERIES, WIDTH)),
        rng.normal(size=(BATCH, HEADS, KEYS, WIDTH)),
        rng.normal(size=(BATCH, HEADS, KEYS, WIDTH)),
    )


def real_keys(*lengths: int, n: int = KEYS) -> np.ndarray:
    return np.arange(n) < np.array(lengths)[:, None]


# ------------------------------------------------------------------ attention


def test_the_script_prints_document_a_s_matrix() -> None:
    for command in (["-m", "everyhead.reference"], [reference.__file__]):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, check=True, encoding="utf-8"
        )
        lines = done.stdout.splitlines()
        assert lines[1] == "[[0.0843 0.2551 0.5152 0.1453]"
        assert lines[4] == " [0.1779 0.4919 0.2005 0.1297]]"
        assert lines[-1].endswith("(1, 4, 8)")


def test_reference_imports_nothing_but_numpy() -> None:
    source = Path(reference.__file__).read_text(encoding="utf-8")
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert {line.split()[1].split(".")[0] for line in imports} == {"collections", "numpy"}


def test_softmax_is_torch_s_on_any_axis(rng: np.random.Generator) -> None:
    x = rng.normal(size=(4, 5, 6)) * 300
    for axis in (0, 1, -1):
        agree(reference.softmax(x, axis), torch.softmax(tensor(x), axis))


def test_softmax_of_a_row_of_minus_infinity_is_zeros() -> None:
    assert not reference.softmax(np.full((2, 3), -np.inf)).any()


def test_attention_is_torch_s_with_mask_scale_and_bias(rng: np.random.Generator) -> None:
    q, k, v = heads(rng)
    mask = rng.random((BATCH, HEADS, QUERIES, KEYS)) < 0.6
    mask[..., 0] = True
    output, weights = reference.scaled_dot_product_attention(q, k, v)
    agree(output, F.scaled_dot_product_attention(*map(tensor, (q, k, v))))
    agree(weights.sum(-1), np.ones((BATCH, HEADS, QUERIES)))
    output, weights = reference.scaled_dot_product_attention(q, k, v, mask, scale=1.0)
    theirs = F.scaled_dot_product_attention(*map(tensor, (q, k, v, mask)), scale=1.0)
    agree(output, theirs)
    assert not weights[~mask].any()
    bias = rng.normal(size=(HEADS, QUERIES, KEYS))
    output, _ = reference.scaled_dot_product_attention(q, k, v, bias=bias)
    agree(output, F.scaled_dot_product_attention(*map(tensor, (q, k, v, bias))))


def test_attention_weights_are_softmax_rows_of_a_double_loop(rng: np.random.Generator) -> None:
    q, k, v = rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 4, 8)), rng.normal(size=(2, 4, 5))
    output, weights = reference.scaled_dot_product_attention(q, k, v)
    for b, i in np.ndindex(2, 3):
        powers = [np.exp(np.dot(q[b, i], k[b, j]) / np.sqrt(8)) for j in range(4)]
        row = np.array(powers) / sum(powers)
        agree(weights[b, i], row)
        agree(output[b, i], sum(row[j] * v[b, j] for j in range(4)))


def test_float32_input_is_computed_in_float64(rng: np.random.Generator) -> None:
    q, k, v = (part.astype(np.float32) for part in heads(rng))
    output, weights = reference.scaled_dot_product_attention(q, k, v)
    assert output.dtype == weights.dtype == np.float64


def test_attention_over_no_keys_at_all_is_zeros(rng: np.random.Generator) -> None:
    q, k, v = heads(rng)
    output, weights = reference.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0])
    assert output.shape == (BATCH, HEADS, QUERIES, WIDTH) and not output.any()
    assert weights.shape == (BATCH, HEADS, QUERIES, 0)


def test_the_variance_of_a_dot_product_grows_with_d_k_and_scaling_cures_it(
    rng: np.random.Generator,
) -> None:
    for d_k in (16, 256):
        q, k = rng.normal(size=(2, 40_000, d_k))
        products = (q * k).sum(-1)
        assert products.var() == pytest.approx(d_k, rel=0.05)
        assert (products / np.sqrt(d_k)).var() == pytest.approx(1, rel=0.05)


# ------------------------------------------------------------------ masks


def test_the_causal_mask_is_the_lower_triangle_and_not_the_upper() -> None:
    agree(reference.causal_mask(4), torch.ones(4, 4).tril().bool())
    assert reference.causal_mask(2, 5).tolist() == [
        [True, True, True, True, False],
        [True, True, True, True, True],
    ]


def test_a_row_that_may_see_nothing_is_zeros(rng: np.random.Generator) -> None:
    q, k, v = heads(rng)
    mask = reference.padding_mask(real_keys(0, 3, 7))
    output, weights = reference.scaled_dot_product_attention(q, k, v, mask)
    assert not output[0].any() and not weights[0].any()
    agree(weights[1:].sum(-1), np.ones((2, HEADS, QUERIES)))


def test_minus_1e9_averages_the_padding_of_an_empty_row_and_the_reference_does_not(
    rng: np.random.Generator,
) -> None:
    q, k, v = heads(rng)
    mask = np.zeros((QUERIES, KEYS), dtype=bool)
    filled = np.where(mask, q @ k.swapaxes(-2, -1), -1e9)  # A101, B138
    agree(reference.softmax(filled), np.full(filled.shape, 1 / KEYS))
    assert not reference.scaled_dot_product_attention(q, k, v, mask)[0].any()


@pytest.mark.parametrize("rubbish", [np.nan, np.inf, 1e300])
def test_what_padding_holds_never_reaches_the_output(
    rng: np.random.Generator, rubbish: float
) -> None:
    q, k, v = heads(rng)
    real = real_keys(2, 5, 7)
    hidden = np.broadcast_to(~real[:, None, :, None], k.shape)
    spoilt_k, spoilt_v = np.where(hidden, rubbish, k), np.where(hidden, rubbish, v)
    mask = reference.padding_mask(real)
    clean = reference.scaled_dot_product_attention(q, k, v, mask)
    spoilt = reference.scaled_dot_product_attention(q, spoilt_k, spoilt_v, mask)
    for ours, theirs in zip(spoilt, clean, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_nan_in_a_padded_token_does_not_reach_real_tokens_through_an_encoder(
    rng: np.random.Generator,
) -> None:
    parameters = reference.part(random_parameters(rng), "encoder")
    x, real = rng.normal(size=(2, QUERIES, D_MODEL)), real_keys(3, 5, n=QUERIES)
    mask = reference.padding_mask(real)
    clean = reference.encoder(parameters, x, mask, n_heads=HEADS)
    x[~real] = np.nan
    spoilt = reference.encoder(parameters, x, mask, n_heads=HEADS)
    np.testing.assert_array_equal(spoilt[real], clean[real])


def test_a_batch_by_queries_by_keys_mask_is_rejected_beside_heads(
    rng: np.random.Generator,
) -> None:
    """With batch = heads it would broadcast, and mask the wrong axis."""
    parameters = reference.part(random_parameters(rng), "encoder.blocks.0.self_attn")
    x = rng.normal(size=(HEADS, QUERIES, D_MODEL))
    mask = np.ones((HEADS, QUERIES, QUERIES), dtype=bool)
    with pytest.raises(ValueError, match=r"mask of shape \(4, 5, 5\) does not fit scores of shape"):
        reference.multi_head_attention(parameters, x, x, mask, n_heads=HEADS)
    reference.multi_head_attention(parameters, x, x, mask[:, None], n_heads=HEADS)


def test_a_batch_by_keys_mask_is_rejected_where_query_rows_are_meant(
    rng: np.random.Generator,
) -> None:
    q, k, v = heads(rng)
    with pytest.raises(ValueError, match="does not fit"):
        reference.scaled_dot_product_attention(q, k, v, real_keys(2, 5, 7))


def test_document_a_s_mask_fits_scores_without_heads(rng: np.random.Generator) -> None:
    q, k, v = (part[:, 0] for part in heads(rng))
    mask = rng.random((BATCH, QUERIES, KEYS)) < 0.7
    mask[..., -1] = True
    output, _ = reference.scaled_dot_product_attention(q, k, v, mask)
    agree(output, F.scaled_dot_product_attention(*map(tensor, (q, k, v, mask))))


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_a_mask_that_is_not_bool_is_rejected(rng: np.random.Generator, dtype: type) -> None:
    q, k, v = heads(rng)
    with pytest.raises(ValueError, match="write mask != 0"):
        reference.scaled_dot_product_attention(q, k, v, np.ones((QUERIES, KEYS), dtype))


# ------------------------------------------------------------------ many heads


def copied(theirs: nn.MultiheadAttention) -> reference.Parameters:
    """A torch attention's weights under our names."""
    parameters = {"o_proj.weight": theirs.out_proj.weight.detach().numpy()}
    for name, weight in zip("qkv", theirs.in_proj_weight.detach().chunk(3), strict=True):
        parameters[f"{name}_proj.weight"] = weight.numpy()
    if theirs.in_proj_bias is not None:
        parameters["o_proj.bias"] = theirs.out_proj.bias.detach().numpy()
        for name, bias in zip("qkv", theirs.in_proj_bias.detach().chunk(3), strict=True):
            parameters[f"{name}_proj.bias"] = bias.numpy()
    return parameters


def shaken(module: nn.Module) -> nn.Module:
    """Random values everywhere, so that no bias is 0 and no gain is 1 by chance."""
    torch.manual_seed(3)
    for p in module.parameters():
        nn.init.normal_(p, std=0.3)
    return module


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_multi_head_attention_is_torch_s(rng: np.random.Generator, bias: bool, cross: bool) -> None:
    theirs = nn.MultiheadAttention(D_MODEL, HEADS, bias=bias, batch_first=True, dtype=torch.float64)
    shaken(theirs)
    x = rng.normal(size=(BATCH, QUERIES, D_MODEL))
    memory = rng.normal(size=(BATCH, KEYS, D_MODEL)) if cross else x
    real = real_keys(2, 4, memory.shape[1], n=memory.shape[1])
    output, weights = reference.multi_head_attention(
        copied(theirs), x, memory, reference.padding_mask(real), n_heads=HEADS
    )
    expected, expected_weights = theirs(
        tensor(x),
        tensor(memory),
        tensor(memory),
        key_padding_mask=tensor(~real),
        average_attn_weights=False,
    )
    agree(output, expected)
    agree(weights, expected_weights)


def test_a_head_owns_its_rows_of_the_projections_and_its_columns_of_w_o(
    rng: np.random.Generator,
) -> None:
    p = reference.part(random_parameters(rng), "encoder.blocks.0.self_attn")
    x = rng.normal(size=(BATCH, QUERIES, D_MODEL))
    total = np.broadcast_to(p["o_proj.bias"], x.shape)
    for i in range(HEADS):
        own = slice(i * WIDTH, (i + 1) * WIDTH)
        q, k, v = (
            x @ p[f"{n}_proj.weight"][own].T + p[f"{n}_proj.bias"][own]
            for n in "qkv"  # X · W^Q_h, B213
        )
        head, _ = reference.scaled_dot_product_attention(q, k, v)
        total = total + head @ p["o_proj.weight"][:, own].T
    agree(reference.multi_head_attention(p, x, x, n_heads=HEADS)[0], total)


def test_heads_that_do_not_divide_the_width_are_an_error_in_a_sentence(
    rng: np.random.Generator,
) -> None:
    with pytest.raises(ValueError, match="24 cannot be cut into 5 heads"):
        reference.split_heads(rng.normal(size=(1, 2, 24)), 5)


def test_without_positions_outputs_move_with_their_inputs(rng: np.random.Generator) -> None:
    """Equivariant, not invariant as B331 has it; invariant only in the order of keys and values."""
    p = reference.part(random_parameters(rng), "encoder.blocks.0.self_attn")
    x, order = rng.normal(size=(1, QUERIES, D_MODEL)), np.array([3, 0, 4, 1, 2])
    output, _ = reference.multi_head_attention(p, x, x, n_heads=HEADS)
    moved, _ = reference.multi_head_attention(p, x[:, order], x[:, order], n_heads=HEADS)
    agree(moved, output[:, order])
    assert not np.allclose(moved, output)
    same_queries, _ = reference.multi_head_attention(p, x, x[:, order], n_heads=HEADS)
    agree(same_queries, output)


# ------------------------------------------------------------------ positions


@pytest.mark.parametrize("d_model", [1, 2, 7, 8])
def test_the_sinusoid_is_the_formula_for_odd_widths_too(d_model: int) -> None:
    table = reference.positional_encoding(9, d_model)
    for pos, channel in np.ndindex(9, d_model):
        angle = pos / 10000 ** ((channel - channel % 2) / d_model)
        assert table[pos, channel] == pytest.approx(
            np.cos(angle) if channel % 2 else np.sin(angle), abs=1e-12
        )


@pytest.mark.parametrize("d_model", [7, 8])
def test_halves_is_the_interleaved_table_with_its_channels_permuted(d_model: int) -> None:
    interleaved = reference.positional_encoding(9, d_model)
    halves = reference.positional_encoding(9, d_model, "halves")
    order = [*range(0, d_model, 2), *range(1, d_model, 2)]
    np.testing.assert_array_equal(halves, interleaved[:, order])


def test_an_unknown_layout_is_an_error() -> None:
    with pytest.raises(ValueError, match="'interleaved' or 'halves'"):
        reference.positional_encoding(4, 8, "quarters")


@pytest.mark.parametrize("k", [1, 5, 40])
def test_pe_of_pos_plus_k_is_a_linear_map_of_pe_of_pos(k: int) -> None:
    """A rotation of every (sin, cos) pair that depends on k and not on pos (B357, B384-387)."""
    d_model = 16
    table = reference.positional_encoding(100, d_model)
    shift = np.zeros((d_model, d_model))
    for i in range(0, d_model, 2):
        angle = k / 10000 ** (i / d_model)
        cos, sin = np.cos(angle), np.sin(angle)
        shift[i : i + 2, i : i + 2] = [[cos, sin], [-sin, cos]]
    agree(table[k:], table[:-k] @ shift.T)


# ------------------------------------------------------------------ layers and stacks


@pytest.mark.parametrize("width", [1, 5, 64])
def test_layer_norm_is_torch_s_with_the_root_of_variance_plus_eps(
    rng: np.random.Generator, width: int
) -> None:
    theirs = shaken(nn.LayerNorm(width, dtype=torch.float64))
    x = rng.normal(size=(BATCH, QUERIES, width)) * 1e-3  # small enough for eps to count
    parameters = {name: p.detach().numpy() for name, p in theirs.named_parameters()}
    agree(reference.layer_norm(parameters, x), theirs(tensor(x)))


def test_std_plus_eps_would_be_another_number(rng: np.random.Generator) -> None:
    x = rng.normal(size=(2, 8)) * 1e-3
    documents = (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)  # B505
    ours = reference.layer_norm({"weight": np.ones(8), "bias": np.zeros(8)}, x)
    assert np.abs(ours - documents).max() > 0.1


def renamed(theirs: nn.Module) -> reference.Parameters:
    """A torch encoder or decoder layer's weights under our names."""
    decoder = hasattr(theirs, "multihead_attn")
    norms = ["self_attn_norm", "cross_attn_norm", "feed_forward_norm"]
    norms = norms if decoder else [norms[0], norms[2]]
    attentions = {"self_attn": theirs.self_attn}
    if decoder:
        attentions["cross_attn"] = theirs.multihead_attn
    parameters = {f"{a}.{n}": p for a, m in attentions.items() for n, p in copied(m).items()}
    modules = {"feed_forward.up_proj": theirs.linear1, "feed_forward.down_proj": theirs.linear2}
    modules |= {name: getattr(theirs, f"norm{n}") for n, name in enumerate(norms, start=1)}
    for name, module in modules.items():
        parameters[f"{name}.weight"] = module.weight.detach().numpy()
        parameters[f"{name}.bias"] = module.bias.detach().numpy()
    return parameters


def stacked(layers: nn.ModuleList, norm: nn.LayerNorm | None) -> reference.Parameters:
    parameters = {
        f"blocks.{i}.{name}": p
        for i, layer in enumerate(layers)
        for name, p in renamed(layer).items()
    }
    if norm is not None:
        parameters |= {f"norm.{name}": p.detach().numpy() for name, p in norm.named_parameters()}
    return parameters


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_encoder_layer_and_stack_are_torch_s(rng: np.random.Generator, norm: str) -> None:
    layer = nn.TransformerEncoderLayer(
        D_MODEL, HEADS, D_FF, 0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    last = nn.LayerNorm(D_MODEL, dtype=torch.float64) if norm == "pre" else None
    stack = shaken(nn.TransformerEncoder(layer, 3, last, enable_nested_tensor=False))
    x, real = rng.normal(size=(BATCH, KEYS, D_MODEL)), real_keys(2, 4, 7)
    mask = reference.padding_mask(real)
    ours = reference.encoder_layer(renamed(stack.layers[0]), x, mask, n_heads=HEADS, norm=norm)
    theirs = stack.layers[0](tensor(x), src_key_padding_mask=tensor(~real))
    agree(ours[real], theirs[tensor(real)])
    parameters = stacked(stack.layers, last)
    ours = reference.encoder(parameters, x, mask, n_heads=HEADS, norm=norm)
    theirs = stack(tensor(x), src_key_padding_mask=tensor(~real))
    agree(ours[real], theirs[tensor(real)])


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_decoder_layer_and_stack_are_torch_s(rng: np.random.Generator, norm: str) -> None:
    layer = nn.TransformerDecoderLayer(
        D_MODEL, HEADS, D_FF, 0.0, batch_first=True, norm_first=norm == "pre", dtype=torch.float64
    )
    last = nn.LayerNorm(D_MODEL, dtype=torch.float64) if norm == "pre" else None
    stack = shaken(nn.TransformerDecoder(layer, 3, last))
    x, memory = rng.normal(size=(BATCH, 5, D_MODEL)), rng.normal(size=(BATCH, KEYS, D_MODEL))
    real, causal = real_keys(2, 4, 7), reference.causal_mask(5)
    given = {"tgt_mask": tensor(~causal), "memory_key_padding_mask": tensor(~real)}
    masks = (causal, reference.padding_mask(real))
    first = renamed(stack.layers[0])
    ours = reference.decoder_layer(first, x, memory, *masks, n_heads=HEADS, norm=norm)
    agree(ours, stack.layers[0](tensor(x), tensor(memory), **given))
    parameters = stacked(stack.layers, last)
    ours = reference.decoder(parameters, x, memory, *masks, n_heads=HEADS, norm=norm)
    agree(ours, stack(tensor(x), tensor(memory), **given))


def test_the_feed_forward_acts_on_each_position_alone(rng: np.random.Generator) -> None:
    p = reference.part(random_parameters(rng), "encoder.blocks.0.feed_forward")
    x = rng.normal(size=(1, QUERIES, D_MODEL))
    alone = [reference.feed_forward(p, x[:, i : i + 1]) for i in range(QUERIES)]
    agree(reference.feed_forward(p, x), np.concatenate(alone, axis=1))


def test_layers_are_taken_in_the_order_of_their_numbers() -> None:
    parameters = {f"blocks.{i}.x": np.array([float(i)]) for i in (10, 2, 0, 1)}
    assert [block["x"][0] for block in reference.blocks(parameters)] == [0, 1, 2, 10]


def test_an_unknown_norm_is_an_error(rng: np.random.Generator) -> None:
    p = reference.part(random_parameters(rng), "encoder")
    with pytest.raises(ValueError, match="'post' or 'pre'"):
        reference.encoder(p, rng.normal(size=(1, 2, D_MODEL)), n_heads=HEADS, norm="middle")


# ------------------------------------------------------------------ the whole Transformer


def random_parameters(
    rng: np.random.Generator, *, norm: str = "post", n_layers: int = 2
) -> reference.Parameters:
    shapes: dict[str, tuple[int, ...]] = {"source_embed.weight": (VOCABULARY, D_MODEL)}
    for half, attentions in {"encoder": ["self"], "decoder": ["self", "cross"]}.items():
        for block in (f"{half}.blocks.{i}" for i in range(n_layers)):
            for attn in attentions:
                for each in "qkvo":
                    shapes[f"{block}.{attn}_attn.{each}_proj.weight"] = (D_MODEL, D_MODEL)
                    shapes[f"{block}.{attn}_attn.{each}_proj.bias"] = (D_MODEL,)
            shapes[f"{block}.feed_forward.up_proj.weight"] = (D_FF, D_MODEL)
            shapes[f"{block}.feed_forward.up_proj.bias"] = (D_FF,)
            shapes[f"{block}.feed_forward.down_proj.weight"] = (D_MODEL, D_FF)
            shapes[f"{block}.feed_forward.down_proj.bias"] = (D_MODEL,)
            for name in [*(f"{attn}_attn" for attn in attentions), "feed_forward"]:
                shapes |= {f"{block}.{name}_norm.{w}": (D_MODEL,) for w in ("weight", "bias")}
        if norm == "pre":
            shapes |= {f"{half}.norm.{w}": (D_MODEL,) for w in ("weight", "bias")}
    return {name: 0.3 * rng.normal(size=shape) for name, shape in shapes.items()}


def ids(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, VOCABULARY, size=shape)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_transformer_is_torch_s_with_scaled_embeddings_and_a_tied_output(
    rng: np.random.Generator, norm: str
) -> None:
    theirs = nn.Transformer(
        D_MODEL, HEADS, 2, 2, D_FF, 0.0, batch_first=True, norm_first=norm == "pre"
    ).double()
    if norm == "post":  # nn.Transformer ends each stack in a LayerNorm, the paper's does not
        theirs.encoder.norm = theirs.decoder.norm = None
    shaken(theirs)
    parameters = {"source_embed.weight": rng.normal(size=(VOCABULARY, D_MODEL))}
    for half in ("encoder", "decoder"):
        stack = getattr(theirs, half)
        for name, p in stacked(stack.layers, stack.norm).items():
            parameters[f"{half}.{name}"] = p
    source, target_in, real = ids(rng, BATCH, KEYS), ids(rng, BATCH, 5), real_keys(3, 5, 7)
    ours = reference.transformer(parameters, source, target_in, real, n_heads=HEADS, norm=norm)

    table = tensor(parameters["source_embed.weight"])
    place = tensor(reference.positional_encoding(KEYS, D_MODEL, "halves"))
    hidden = theirs(
        D_MODEL**0.5 * table[tensor(source)] + place,
        D_MODEL**0.5 * table[tensor(target_in)] + place[:5],
        tgt_mask=tensor(~reference.causal_mask(5)),
        src_key_padding_mask=tensor(~real),
        memory_key_padding_mask=tensor(~real),
    )
    agree(ours, hidden @ table.T)


def test_separate_vocabularies_an_untied_output_and_its_bias(rng: np.random.Generator) -> None:
    p = random_parameters(rng)
    source, target_in = ids(rng, 2, 4), ids(rng, 2, 3)
    joint = reference.transformer(p, source, target_in, n_heads=HEADS)
    table = p["source_embed.weight"]
    renamed = {n.replace("source_embed", "target_embed"): array for n, array in p.items()}
    agree(reference.transformer(renamed, source, target_in, n_heads=HEADS), joint)
    named = {**p, "target_embed.weight": table, "output_head.weight": table}
    agree(reference.transformer(named, source, target_in, n_heads=HEADS), joint)
    bias = np.zeros(VOCABULARY)
    bias[-1] = -np.inf
    biased = reference.transformer(
        {**p, "output_head.bias": bias}, source, target_in, n_heads=HEADS
    )
    agree(biased[..., :-1], joint[..., :-1])
    assert np.isneginf(biased[..., -1]).all()
    separate = {**p, "source_embed.weight": np.concatenate([table, table + 1])}
    separate["target_embed.weight"] = table
    agree(reference.transformer(separate, source, target_in, n_heads=HEADS), joint)
    other = {**p, "output_head.weight": rng.normal(size=(VOCABULARY + 2, D_MODEL))}
    logits = reference.transformer(other, source, target_in, n_heads=HEADS)
    assert logits.shape == (2, 3, VOCABULARY + 2)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_future_is_never_seen(rng: np.random.Generator, norm: str) -> None:
    p = random_parameters(rng, norm=norm)
    source, target_in = ids(rng, 2, 4), ids(rng, 2, 6)
    before = reference.transformer(p, source, target_in, n_heads=HEADS, norm=norm)
    for t in range(5):
        changed = target_in.copy()
        changed[:, t + 1] = (changed[:, t + 1] + 1) % VOCABULARY
        after = reference.transformer(p, source, changed, n_heads=HEADS, norm=norm)
        np.testing.assert_array_equal(after[:, : t + 1], before[:, : t + 1])
        assert not np.array_equal(after[:, t + 1], before[:, t + 1])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_no_logit(rng: np.random.Generator, side: str) -> None:
    p = random_parameters(rng)
    source, target_in = ids(rng, 2, 4), ids(rng, 2, 3)
    before = reference.transformer(p, source, target_in, n_heads=HEADS)
    for n in (1, 5):
        width = ((0, 0), (n, 0) if side == "left" else (0, n))
        source_real = np.pad(np.ones((2, 4), bool), width)
        target_real = np.pad(np.ones((2, 3), bool), width)
        after = reference.transformer(
            p,
            np.pad(source, width),
            np.pad(target_in, width),
            source_real,
            target_real,
            n_heads=HEADS,
        )
        agree(after[target_real].reshape(before.shape), before)


def test_an_empty_source_in_a_batch_gives_finite_logits_and_spoils_no_other(
    rng: np.random.Generator,
) -> None:
    p = random_parameters(rng)
    source, target_in = ids(rng, 2, 4), ids(rng, 2, 3)
    real = np.array([[True] * 4, [False] * 4])
    logits = reference.transformer(p, source, target_in, real, n_heads=HEADS)
    assert np.isfinite(logits).all()
    agree(logits[:1], reference.transformer(p, source[:1], target_in[:1], n_heads=HEADS))


def test_dog_bites_man_is_not_man_bites_dog_once_there_are_positions(
    rng: np.random.Generator,
) -> None:
    p = random_parameters(rng)
    one, other = np.array([[1, 2, 3]]), np.array([[3, 2, 1]])
    start = np.array([[0]])
    logits = [reference.transformer(p, s, start, n_heads=HEADS) for s in (one, other)]
    assert not np.allclose(*logits)


# ------------------------------------------------------------------ training


def test_teacher_forcing_reads_the_token_before_the_one_to_say() -> None:
    labels = np.array([[5, 6, 0], [7, 0, 9]])
    assert reference.shift_right(labels, 9).tolist() == [[9, 5, 6], [9, 7, 0]]


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_label_smoothed_loss_is_torch_s_where_no_class_is_padding(
    rng: np.random.Generator, epsilon: float
) -> None:
    logits, labels = rng.normal(size=(BATCH, 5, VOCABULARY)) * 3, ids(rng, BATCH, 5)
    theirs = F.cross_entropy(
        tensor(logits).flatten(0, 1), tensor(labels).flatten(), label_smoothing=epsilon
    )
    ours = reference.label_smoothed_loss(logits, labels, epsilon=epsilon)
    assert ours == pytest.approx(theirs.item(), abs=1e-10)


def test_smoothing_spares_the_padding_class_so_a_logit_of_minus_infinity_is_finite(
    rng: np.random.Generator,
) -> None:
    pad = VOCABULARY - 1
    logits, labels = rng.normal(size=(8, VOCABULARY)), rng.integers(0, pad, size=8)
    logits[:, pad] = -np.inf
    ours = reference.label_smoothed_loss(logits, labels, epsilon=0.1, pad_id=pad)
    without = reference.label_smoothed_loss(logits[:, :pad], labels, epsilon=0.1)
    assert ours == pytest.approx(without, abs=1e-12)
    theirs = F.cross_entropy(tensor(logits), tensor(labels), label_smoothing=0.1)
    assert torch.isinf(theirs)  # the defect that is absent here


@pytest.mark.parametrize("pads", ["none", "some", "all"])
def test_padding_labels_count_for_nothing_and_all_padding_is_a_loss_of_0(
    rng: np.random.Generator, pads: str
) -> None:
    pad = VOCABULARY - 1
    logits, labels = rng.normal(size=(6, VOCABULARY)), rng.integers(0, pad, size=6)
    real = {"none": labels >= 0, "some": np.arange(6) < 4, "all": labels < 0}[pads]
    labels[~real] = pad
    logits[~real] = np.nan  # whatever stands at a padded place
    loss = reference.label_smoothed_loss(logits, labels, epsilon=0.1, pad_id=pad)
    alone = [
        reference.label_smoothed_loss(logits[i], labels[i], epsilon=0.1, pad_id=pad)
        for i in np.flatnonzero(real)[:, None]
    ]
    assert loss == pytest.approx(np.mean(alone) if alone else 0.0, abs=1e-12)


def test_a_sum_is_divided_once_so_cutting_a_batch_changes_no_loss(
    rng: np.random.Generator,
) -> None:
    pad = VOCABULARY - 1
    logits, labels = rng.normal(size=(3, 4, VOCABULARY)), rng.integers(0, pad, size=(3, 4))
    labels[0, 1:] = labels[1, 3:] = pad
    whole = reference.label_smoothed_loss(logits, labels, pad_id=pad)
    counts = (labels != pad).sum(1)
    rows = [
        reference.label_smoothed_loss(x, y, pad_id=pad) for x, y in zip(logits, labels, strict=True)
    ]
    assert whole == pytest.approx(np.dot(rows, counts) / counts.sum(), abs=1e-12)
    assert whole != pytest.approx(np.mean(rows), abs=1e-3)


def test_smoothed_labels_are_a_distribution_with_epsilon_in_total() -> None:
    q = reference.smooth(np.array([2, 0]), 5, 0.3, pad_id=4)
    agree(q, np.array([[0.075, 0.075, 0.775, 0.075, 0], [0.775, 0.075, 0.075, 0.075, 0]]))
    # B619's [ε, ε, 1 − 3ε, ε] is a total of 4ε
    agree(reference.smooth(np.array([2]), 4, 4 * 0.05), np.array([[0.05, 0.05, 0.85, 0.05]]))


@pytest.mark.parametrize("label", [-100, -1, 5])
def test_a_label_outside_the_vocabulary_is_an_error_and_not_the_last_word(label: int) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary of 5"):
        reference.label_smoothed_loss(np.zeros((2, 5)), np.array([1, label]))


def test_inverse_square_root_rises_to_the_end_of_the_warm_up_and_falls_after() -> None:
    def rate(step: int) -> float:
        return reference.inverse_square_root(step, d_model=512, warmup=100)

    rates = [rate(step) for step in range(1, 400)]
    assert np.argmax(rates) == 99
    assert rate(100) == pytest.approx((512 * 100) ** -0.5)
    assert rate(50) == pytest.approx(rate(100) / 2)
    assert rate(400) == pytest.approx(rate(100) / 2)


def test_cosine_is_torch_s_after_a_line_up_to_the_peak() -> None:
    def rate(step: int) -> float:
        return reference.cosine(step, peak=2.0, warmup=10, total=60, low=0.5)

    assert [rate(step) for step in (1, 5, 10)] == pytest.approx([0.2, 1.0, 2.0])
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.5)
    for step in range(10, 61):
        assert rate(step) == pytest.approx(theirs.get_last_lr()[0], abs=1e-10)
        optimizer.step()
        theirs.step()
    assert rate(60) == rate(1000) == 0.5
    assert all(a > b for a, b in pairwise(rate(step) for step in range(10, 61)))


@pytest.mark.parametrize("step", [0, -3])
def test_step_0_is_an_error_in_a_sentence_and_not_a_rate_of_0(step: int) -> None:
    with pytest.raises(ValueError, match=f"step is {step}; it must be at least 1"):
        reference.inverse_square_root(step, d_model=512)
    with pytest.raises(ValueError, match="steps count from 1"):
        reference.cosine(step, peak=1.0, warmup=1, total=2)


def test_a_warm_up_of_no_steps() -> None:
    with pytest.raises(ValueError, match="warmup is 0"):
        reference.inverse_square_root(1, d_model=512, warmup=0)
    assert reference.cosine(1, peak=1.0, warmup=0, total=4) < 1.0
    assert reference.cosine(9, peak=1.0, warmup=5, total=5) == 0.0
