"""What another attention costs a trained model: smollm2's loss on Shakespeare, weights unchanged.

python -m bench.long_loss [--tokens 4096] [--threads 2] [--out FILE]
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import everyhead
from everyhead.data.documents import load_documents

METHODS: dict[str, Any] = {
    "exact": everyhead.Exact(),
    "window 512": everyhead.Window(512),
    "window 512 and the first 4": everyhead.Window(512, first=4),
    "random features 256": everyhead.RandomFeatures(256),
}


@torch.inference_mode()
def loss_of(model: Any, ids: torch.Tensor) -> float:
    """Mean −log p of all but the first token, in nats."""
    hidden = model.hidden(ids[None, :-1])[0]
    parts = zip(hidden.split(256), ids[1:].split(256), strict=True)
    return sum(float(F.cross_entropy(model.head(h), w, reduction="sum")) for h, w in parts) / (
        len(ids) - 1
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_loss", description=__doc__)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer = everyhead.load("smollm2")
    text = load_documents("shakespeare")[0].text[: 6 * args.tokens]
    ids = torch.tensor(tokenizer.encode(text, special=False)[: args.tokens + 1])
    rows = []
    print("| attention | loss (nats) | change | s |\n|---|---|---|---|")
    for name, method in METHODS.items():
        everyhead.swap(model, method)
        start = time.perf_counter()
        loss = loss_of(model.eval(), ids)
        rows.append({"attention": name, "loss": loss, "seconds": time.perf_counter() - start})
        change, seconds = loss - rows[0]["loss"], rows[-1]["seconds"]
        print(f"| {name} | {loss:.3f} | {change:+.3f} | {seconds:.0f} |", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(f"{len(ids) - 1} tokens, {args.threads} threads; LSH is refused: rotary positions")


if __name__ == "__main__":
    main()
