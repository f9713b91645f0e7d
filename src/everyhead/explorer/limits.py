"""How many tokens a Hugging Face model can read."""

from torch import nn

from everyhead.weights.foreign import Foreign


def longest_of(foreign: Foreign) -> int | None:
    """Most tokens that the model can read, where it or its tokenizer says so."""
    config = foreign.model.config
    limits = [getattr(config, name, None) for name in ("max_position_embeddings", "n_positions")]
    unused = _unused_positions(foreign.model)
    limits = [n - unused if isinstance(n, int) else n for n in limits]
    limits.append(getattr(foreign.tokenizer, "model_max_length", None))
    known = [n for n in limits if isinstance(n, int) and 0 < n < 10**7]
    if getattr(config, "model_type", "") in ("t5", "mt5", "umt5"):  # relative: any length
        known = []
    return min(known) if known else None


def _unused_positions(model: nn.Module) -> int:
    """RoBERTa and its kind count positions from behind the padding's id, which their table has."""
    for path, module in model.named_modules():
        padding = getattr(module, "padding_idx", None)
        if path.endswith("position_embeddings") and padding is not None:
            return int(padding) + 1
    return 0
