"""Numbers for the guided walk: the states around each layer, beside the q, k, v that a page holds.

x₀ = embeddings;  after layer l:  x_l            the first few numbers of each token, and ‖x‖
"""

from typing import Any

from everyhead.inspection.trace import Trace

FEW = 4
# Longer texts are not walked through.
MOST_TOKENS = 128


def walk_of(trace: Trace) -> dict[str, Any] | None:
    """For each half, layer after layer and token after token: ‖x‖ and the first numbers of x.

    None where the states are not known, or the text is long.
    """
    states: dict[str, list[list[list[float]]]] = {}
    width = 0
    try:
        for layer in trace.layers():
            x = trace.residual(layer)[0].float()
            if x.shape[0] > MOST_TOKENS:
                return None
            width = x.shape[1]
            rows = [[float(row.norm()), *row[:FEW].tolist()] for row in x]
            states.setdefault(layer.split(".")[0], []).append(rows)
    except LookupError:
        return None
    return {"width": width, "states": states} if states else None
