"""The Transformer of 2017 in NumPy: the two documents' code made right, one equation a function.

    Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V

Vaswani et al., "Attention Is All You Need", 2017, arXiv:1706.03762. Read it from top to bottom
beside the documents, whose lines are cited as A59 or B117; docs/equations.md lists them all, with
what they say loosely or wrongly. All is float64 and batch-first; nothing here is trained or fast.

Axes: B batch, T queries, S keys, H heads, D width of a head, C = d_model, F = d_ff, V vocabulary.
Masks are bool, True = may look. Parameters are a dict of arrays under the names that the PyTorch
model gives them (models/transformer.py), weights as PyTorch lays them out, (out, in).

Run as a script it prints document A's example: `python -m everyhead.reference`.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ids = NDArray[np.int64]
Parameters = dict[str, Array]
Sublayer = Callable[[Parameters, Array], Array]

# ---------------------------------------------------------------- attention (A 3, A 5; B 3.2-3.3)


def softmax(scores: Array, axis: int = -1) -> Array:
    """A81-84, B98-100, B148-150: exp(x_i) / Σ_j exp(x_j); a row that is all −∞ becomes zeros."""
    highest = np.max(scores, axis=axis, keepdims=True, initial=-np.inf)
    highest = np.where(np.isneginf(highest), 0.0, highest)  # −∞ − (−∞) would be NaN
    exp_scores = np.exp(scores - highest)
    total = np.sum(exp_scores, axis=axis, keepdims=True)
    return exp_scores / np.where(total == 0, 1.0, total)


def scaled_dot_product_attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    bias: Array | float = 0.0,
) -> tuple[Array, Array]:
    """A45, A86-109, B117, B125-146: softmax(s · Q Kᵀ + bias) V, s = 1/√d_k (equation 1).

    q (..., T, d_k), k (..., S, d_k), v (..., S, d_v). The mask is (T, S), or has every axis of the
    scores (..., T, S), each of them whole or 1. Returns the output (..., T, d_v) and the weights
    (..., T, S), whose rows sum to 1, or to 0 where nothing may be seen.
    """
    q, k, v = (np.asarray(each, dtype=np.float64) for each in (q, k, v))
    if mask is not None:
        check_mask(mask, q.shape[:-1] + k.shape[-2:-1])
        seen = np.any(mask, axis=-2)[..., None]  # (..., S, 1)
        k = np.where(seen, k, 0.0)  # a key that nobody sees may hold NaN, and 0 · NaN is NaN
        v = np.where(seen, v, 0.0)
    scale = 1.0 / np.sqrt(q.shape[-1]) if scale is None else scale
    scores = scale * (q @ k.swapaxes(-2, -1)) + bias  # (..., T, S)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores)
    return weights @ v, weights  # (..., T, d_v), (..., T, S)


# ---------------------------------------------------------------- masks (B 3.4)


def padding_mask(real: Mask) -> Mask:
    """B160-161: a key may be seen where it is a real token. real (B, S) → (B, 1, 1, S).

    It is told which places are real, not the padding's id: a sentence may contain that id.
    """
    return real[:, None, None, :]


def causal_mask(n_queries: int, n_keys: int | None = None) -> Mask:
    """B167-168, B174-177: query i may see key j ≤ i, the lower triangle. → (T, S).

    With more keys than queries, the queries are the last ones: i counts from S − T.
    """
    n_keys = n_queries if n_keys is None else n_keys
    return np.tril(np.ones((n_queries, n_keys), dtype=np.bool_), k=n_keys - n_queries)


def check_mask(mask: Mask, shape: tuple[int, ...]) -> None:
    """Reject what broadcasting would misread: A92's (B, T, S) beside scores of (B, H, T, S)."""
    if mask.dtype != np.bool_:
        raise ValueError(
            f"A mask is bool, True = may look; this one is {mask.dtype}: write mask != 0."
        )
    wanted = shape if mask.ndim == len(shape) else shape[-2:]
    if mask.ndim != len(wanted) or any(
        size not in (1, whole) for size, whole in zip(mask.shape, wanted, strict=True)
    ):
        raise ValueError(
            f"A mask of shape {mask.shape} does not fit scores of shape {shape}: give it all their "
            "axes, each whole, or 1 where it is the same for all; or the last two only."
        )


# ---------------------------------------------------------------- many heads (A 4; B 4)


def part(parameters: Parameters, name: str) -> Parameters:
    """The parameters below a name: part(p, "encoder.blocks.0")["self_attn.q_proj.weight"]."""
    start = name + "."
    return {key[len(start) :]: p for key, p in parameters.items() if key.startswith(start)}


def linear(parameters: Parameters, x: Array) -> Array:
    """A51, B213-215, B267-269: x W (+ b), W stored as (out, in). (..., in) → (..., out)."""
    y = x @ parameters["weight"].T
    return y + parameters["bias"] if "bias" in parameters else y


def split_heads(x: Array, n_heads: int) -> Array:
    """B252-258: (B, T, H·D) → (B, H, T, D). Head i owns rows i·D to (i+1)·D of the projection."""
    batch, length, width = x.shape
    if width % n_heads:
        raise ValueError(f"A width of {width} cannot be cut into {n_heads} heads of equal width.")
    return x.reshape(batch, length, n_heads, width // n_heads).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """B223, B282-283: [head_1; …; head_h]. (B, H, T, D) → (B, T, H·D)."""
    batch, n_heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, n_heads * width)


def multi_head_attention(
    parameters: Parameters, x: Array, memory: Array, mask: Mask | None = None, *, n_heads: int
) -> tuple[Array, Array]:
    """B211-227, B260-288, B562-565: [head_1; …; head_h] W^O, head_i = Attention(Q_i, K_i, V_i).

    Q_i = x W_i^Q, K_i = m W_i^K, V_i = m W_i^V: x (B, T, C) asks, the memory m (B, S, C) answers,
    which is x itself (self-attention) or the encoder's output (cross-attention). The mask is
    (T, S), (B, 1, T, S) or (B, H, T, S). Returns the output (B, T, C) and the weights (B, H, T, S).
    """
    q = split_heads(linear(part(parameters, "q_proj"), x), n_heads)  # (B, H, T, D)
    k = split_heads(linear(part(parameters, "k_proj"), memory), n_heads)  # (B, H, S, D)
    v = split_heads(linear(part(parameters, "v_proj"), memory), n_heads)  # (B, H, S, D)
    heads, weights = scaled_dot_product_attention(q, k, v, mask)
    return linear(part(parameters, "o_proj"), merge_heads(heads)), weights


# ---------------------------------------------------------------- positions (A143; B 5.2)


def positional_encoding(n_positions: int, d_model: int, layout: str = "interleaved") -> Array:
    """B345-346, B361-374: sin and cos of pos / 10000^(2i/d_model), pos from 0. → (n_positions, C).

    "interleaved" is the paper's order: sin, cos, sin, cos, … "halves" is the same table with its
    channels in another order: all sines, then all cosines. An odd d_model has one cosine less.
    """
    position = np.arange(n_positions)[:, None]  # (n, 1)
    angle = position / 10000.0 ** (np.arange(0, d_model, 2) / d_model)  # (n, ⌈C/2⌉)
    sine, cosine = np.sin(angle), np.cos(angle)[:, : d_model // 2]
    if layout == "halves":
        return np.concatenate([sine, cosine], axis=-1)  # (n, C)
    if layout != "interleaved":
        raise ValueError(f"There is no layout {layout!r}: choose 'interleaved' or 'halves'.")
    table = np.empty((n_positions, d_model))
    table[:, 0::2] = sine
    table[:, 1::2] = cosine
    return table


# ---------------------------------------------------------------- encoder (A 7; B 6)


def layer_norm(parameters: Parameters, x: Array, eps: float = 1e-5) -> Array:
    """A145, B496-505: γ · (x − mean) / √(var + ε) + β over each token's own C features."""
    mean = np.mean(x, axis=-1, keepdims=True)
    variance = np.var(x, axis=-1, keepdims=True)  # biased: divided by C, not by C − 1
    return parameters["weight"] * (x - mean) / np.sqrt(variance + eps) + parameters["bias"]


def residual(parameters: Parameters, name: str, x: Array, sublayer: Sublayer, norm: str) -> Array:
    """A144, B441: "post", as in the paper, LayerNorm(x + f(x)); "pre" is x + f(LayerNorm(x))."""
    inner, around = part(parameters, name), part(parameters, name + "_norm")
    if norm == "post":
        return layer_norm(around, x + sublayer(inner, x))
    if norm == "pre":
        return x + sublayer(inner, layer_norm(around, x))
    raise ValueError(f"There is no norm {norm!r}: choose 'post' or 'pre'.")


def feed_forward(parameters: Parameters, x: Array) -> Array:
    """A146, B450, B490-494: max(0, x W1 + b1) W2 + b2, each position alone (equation 2)."""
    hidden = np.maximum(0.0, linear(part(parameters, "up_proj"), x))  # (B, T, F)
    return linear(part(parameters, "down_proj"), hidden)  # (B, T, C)


def encoder_layer(
    parameters: Parameters, x: Array, mask: Mask | None = None, *, n_heads: int, norm: str = "post"
) -> Array:
    """B419-429, B462-481: self-attention, then the feed-forward. x (B, S, C) → the same shape."""

    def self_attn(p: Parameters, y: Array) -> Array:
        return multi_head_attention(p, y, y, mask, n_heads=n_heads)[0]

    x = residual(parameters, "self_attn", x, self_attn, norm)
    return residual(parameters, "feed_forward", x, feed_forward, norm)


def blocks(parameters: Parameters) -> list[Parameters]:
    """The parameters of a stack's layers, in order."""
    numbers = {int(key.split(".")[1]) for key in parameters if key.startswith("blocks.")}
    return [part(parameters, f"blocks.{number}") for number in sorted(numbers)]


def encoder(
    parameters: Parameters, x: Array, mask: Mask | None = None, *, n_heads: int, norm: str = "post"
) -> Array:
    """B511-521: layer upon layer; a pre-norm stack ends in one LayerNorm more."""
    for block in blocks(parameters):
        x = encoder_layer(block, x, mask, n_heads=n_heads, norm=norm)
    return layer_norm(part(parameters, "norm"), x) if norm == "pre" else x


# ---------------------------------------------------------------- decoder (B 7)


def decoder_layer(
    parameters: Parameters,
    x: Array,
    memory: Array,
    mask: Mask | None = None,
    memory_mask: Mask | None = None,
    *,
    n_heads: int,
    norm: str = "post",
) -> Array:
    """B540-565: masked self-attention, cross-attention, feed-forward. x (B, T, C) → the same shape.

    The queries of the cross-attention come from the sublayer below it, keys and values from the
    memory (B, S, C), each through its own projection.
    """

    def self_attn(p: Parameters, y: Array) -> Array:
        return multi_head_attention(p, y, y, mask, n_heads=n_heads)[0]

    def cross_attn(p: Parameters, y: Array) -> Array:
        return multi_head_attention(p, y, memory, memory_mask, n_heads=n_heads)[0]

    x = residual(parameters, "self_attn", x, self_attn, norm)
    x = residual(parameters, "cross_attn", x, cross_attn, norm)
    return residual(parameters, "feed_forward", x, feed_forward, norm)


def decoder(
    parameters: Parameters,
    x: Array,
    memory: Array,
    mask: Mask | None = None,
    memory_mask: Mask | None = None,
    *,
    n_heads: int,
    norm: str = "post",
) -> Array:
    """B589, B600: the stack that the document calls TransformerDecoder and leaves out."""
    for block in blocks(parameters):
        x = decoder_layer(block, x, memory, mask, memory_mask, n_heads=n_heads, norm=norm)
    return layer_norm(part(parameters, "norm"), x) if norm == "pre" else x


# ---------------------------------------------------------------- the whole Transformer (B 8.1)


def embed(table: Array, ids: Ids, real: Mask, layout: str = "halves") -> Array:
    """B595, B599: √d_model · E[token] + PE[position]; the document lacks the paper's √d_model.

    ids and real (B, T) → (B, T, C). A position is the number of real tokens before it, so that
    padding on the left moves nothing.
    """
    n_positions, d_model = ids.shape[1], table.shape[1]
    position = np.maximum(np.cumsum(real, axis=1) - 1, 0)  # (B, T)
    encoding = positional_encoding(n_positions, d_model, layout)[position]  # (B, T, C)
    return np.sqrt(d_model) * table[ids] + encoding


def transformer(
    parameters: Parameters,
    source: Ids,
    target_in: Ids,
    source_mask: Mask | None = None,
    target_mask: Mask | None = None,
    *,
    n_heads: int,
    norm: str = "post",
    layout: str = "halves",
) -> Array:
    """B577-606: from the ids of both sides to the logits of the next token, (B, T, V).

    source (B, S) and target_in (B, T) are ids; their masks say where a token is real (everywhere,
    if left out). With one "source_embed.weight" or "target_embed.weight" both sides share it;
    without "output_head.weight" the output is tied to the target's table, as in the paper (§3.4).
    """
    p = {name: np.asarray(array, dtype=np.float64) for name, array in parameters.items()}
    source_real = np.ones(source.shape, np.bool_) if source_mask is None else source_mask
    target_real = np.ones(target_in.shape, np.bool_) if target_mask is None else target_mask
    source_name, target_name = "source_embed.weight", "target_embed.weight"
    source_table = p[source_name if source_name in p else target_name]  # (V of the source, C)
    target_table = p[target_name if target_name in p else source_name]  # (V, C)
    see_source = padding_mask(source_real)  # (B, 1, 1, S)
    see_target = causal_mask(target_in.shape[1]) & padding_mask(target_real)  # (B, 1, T, T)

    x = embed(source_table, source, source_real, layout)
    memory = encoder(part(p, "encoder"), x, see_source, n_heads=n_heads, norm=norm)
    y = embed(target_table, target_in, target_real, layout)
    y = decoder(part(p, "decoder"), y, memory, see_target, see_source, n_heads=n_heads, norm=norm)
    head = {"weight": target_table, **part(p, "output_head")}  # tied, unless it has its own weight
    return linear(head, y)  # (B, T, V)


# ---------------------------------------------------------------- training (B 8.2)


def shift_right(labels: Ids, start_id: int) -> Ids:
    """B614: teacher forcing; the decoder reads the true tokens before the one it must say."""
    return np.concatenate([np.full_like(labels[:, :1], start_id), labels[:, :-1]], axis=1)  # (B, T)


def smooth(labels: Ids, vocab_size: int, epsilon: float, pad_id: int | None = None) -> Array:
    """B619: (1 − ε) · one-hot + ε / V', V' = V without the padding. (N,) → (N, V), rows sum to 1.

    The document's ε is what each wrong class gets; this one is the total, as in the paper (§5.4).
    """
    classes = np.arange(vocab_size)
    one_hot = labels[:, None] == classes  # (N, V)
    if not one_hot.any(axis=-1).all():
        raise ValueError(f"A label lies outside the vocabulary of {vocab_size}, ids from 0.")
    allowed = classes != pad_id  # (V,)
    return (1 - epsilon) * one_hot + epsilon * allowed / allowed.sum()


def label_smoothed_loss(
    logits: Array, labels: Ids, *, epsilon: float = 0.1, pad_id: int | None = None
) -> float:
    """B617-619: −Σ q log p over the real labels, divided once by their number; 0 if there is none.

    logits (..., V), labels (...). A label that is padding is left out, and so is the padding's own
    column, whose logit may be −∞.
    """
    real = np.ones(labels.shape, np.bool_) if pad_id is None else labels != pad_id
    shifted = logits[real] - np.max(logits[real], axis=-1, keepdims=True)  # (N, V)
    log_p = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    q = smooth(labels[real], logits.shape[-1], epsilon, pad_id)  # (N, V)
    loss = -np.sum(q * np.where(q > 0, log_p, 0.0))
    return float(loss / max(real.sum(), 1))


def inverse_square_root(step: int, *, d_model: int, warmup: int = 4000) -> float:
    """B625-628: d_model^-0.5 · min(step^-0.5, step · warmup^-1.5), steps from 1 (equation 3)."""
    at_least_one("step", step)
    at_least_one("warmup", warmup)
    return float(d_model**-0.5 * min(step**-0.5, step * warmup**-1.5))


def cosine(step: int, *, peak: float, warmup: int, total: int, low: float = 0.0) -> float:
    """B623 (its code is the other schedule): up in a line, then low + (peak − low)(1 + cos πt)/2.

    t goes from 0 at the end of the warm-up to 1 at step `total`; after it the rate stays low.
    """
    at_least_one("step", step)
    if step < warmup:
        return peak * step / warmup
    t = min((step - warmup) / max(total - warmup, 1), 1.0)
    return float(low + (peak - low) * (1 + np.cos(np.pi * t)) / 2)


def at_least_one(name: str, value: int) -> None:
    """Reject step 0, where the document's 1/√step divides by zero (and no warm-up divides too)."""
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1, because steps count from 1.")


# ---------------------------------------------------------------- the documents' example (A111-128)


def example() -> tuple[Array, Array]:
    """A113-124, seed 42: random q, k, v (1, 4, 8) → output (1, 4, 8), weights (1, 4, 4)."""
    rng = np.random.RandomState(42)
    q, k, v = (rng.randn(1, 4, 8) for _ in range(3))
    return scaled_dot_product_attention(q, k, v)


if __name__ == "__main__":
    output, weights = example()
    print("Attention weights (sequence length x sequence length):")
    print(np.round(weights[0], 4))
    print("\nShape of the attention output:", output.shape)
