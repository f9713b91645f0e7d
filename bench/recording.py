"""What looking costs: a forward pass inside `record`, beside the same pass without it.

    python -m bench.recording [--models bert,gpt2,vit,t5] [--lengths 16,32,128] [--rounds 60]

Random models of the published base sizes, float32, one text. Setting the recording up and taking it
down is in the time. Each recorded pass stands between two plain ones and is divided by their mean;
the median over rounds is shown, and beside it the same ratio of plain to plain: the machine's own.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

from everyhead.inspection.trace import record

T5_BASE = {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
Call = Callable[[], Any]


def subject(name: str, n: int) -> tuple[nn.Module, Call]:
    """A model and its forward pass over n tokens; a picture has its own number, 197."""
    torch.manual_seed(0)
    model: Any
    ids = torch.randint(5, 3000, (1, n))
    if name == "vit":
        model = ViTModel(ViTConfig()).eval()
        pixels = torch.randn(1, 3, 224, 224)
        return model, lambda: model(pixel_values=pixels)
    if name == "t5":
        model = T5ForConditionalGeneration(T5Config(**T5_BASE)).eval()
        return model, lambda: model(input_ids=ids, decoder_input_ids=ids)
    kinds: dict[str, Any] = {"bert": (BertModel, BertConfig), "gpt2": (GPT2LMHeadModel, GPT2Config)}
    kind, config = kinds[name]
    model = kind(config()).eval()
    return model, lambda: model(input_ids=ids)


def measured(model: nn.Module, call: Call, n_rounds: int) -> tuple[float, float, float]:
    """Seconds of a plain pass, recorded / plain, plain / plain."""

    def recorded() -> None:
        with record(model):
            call()

    plain, ratios, floor = [], [], []
    for run in (call, recorded):
        run()
    for _ in range(n_rounds):
        before, inside, after = _timed(call), _timed(recorded), _timed(call)
        plain.append(before)
        ratios.append(2 * inside / (before + after))
        floor.append(after / before)
    return statistics.median(plain), statistics.median(ratios), statistics.median(floor)


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.recording", description=__doc__)
    parser.add_argument("--models", default="bert,gpt2,vit,t5")
    parser.add_argument("--lengths", default="16,32,128")
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    print(f"{'model':6}{'tokens':>8}{'plain ms':>10}{'recorded':>10}{'plain again':>13}")
    for name in args.models.split(","):
        for n in [197] if name == "vit" else [int(n) for n in args.lengths.split(",")]:
            model, call = subject(name, n)
            with torch.inference_mode():
                seconds, ratio, floor = measured(model, call, args.rounds)
            print(f"{name:6}{n:8}{seconds * 1e3:10.1f}{ratio:9.3f}×{floor:12.3f}×", flush=True)


if __name__ == "__main__":
    main()
