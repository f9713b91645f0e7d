"""Language models of each kind of attention on a long text: perplexity against context length.

    python -m bench.long_training [--contexts 512 …] [--tokens N] [--step N] [--out FILE]

All of Shakespeare as one text, byte-level pieces. Each model learns from the same number of tokens,
`--step` of them a step, in rows of n = 512 … 16,384, and is scored on held-out rows of n: what it
may look back at is what it learnt with. Transformer-XL reads segments of 128, with a memory of 512
and with none (each segment by itself), the same model but for what it sees. Perplexity is of
pieces. What --out holds already is not run again.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import everyhead
from everyhead.data.documents import load_documents
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.models import MODELS
from everyhead.models.swap import swap

VOCABULARY, LONGEST = 2000, 16_384  # pieces; tokens of the longest row
HELD_OUT = 2 * LONGEST
WIDE: dict[str, Any] = {"d_model": 64, "n_heads": 2, "n_layers": 2, "d_ff": 256}
Row = dict[str, Any]


def family(name: str, method: Any = None, **numbers: Any) -> Callable[[int], nn.Module]:
    """make(n): a model for rows of n tokens."""

    def make(n: int) -> nn.Module:
        entry = MODELS[name]
        known = {"vocab_size": VOCABULARY, "max_len": n, **WIDE, "dropout": 0.0} | numbers
        fields = entry.config.model_fields
        config = entry.config(**{key: value for key, value in known.items() if key in fields})
        model = entry.model(config)
        return model if method is None else swap(model, method)

    return make


KINDS: dict[str, Callable[[int], nn.Module]] = {
    "exact (Llama)": family("llama", tie_output=True),
    "window 512 (Llama)": family("llama", everyhead.Window(512), tie_output=True),
    "random features 64 (Llama)": family("llama", everyhead.RandomFeatures(64), tie_output=True),
    "LSH and local (Reformer)": family("reformer"),
    "memory 512 (Transformer-XL)": family("transformer-xl", segment_len=128, memory_len=512),
    "no memory (Transformer-XL)": family("transformer-xl", segment_len=128, memory_len=127),
}
ALONE = {"no memory (Transformer-XL)": 128}  # rows are cut to so many: segments by themselves


def text_ids() -> tuple[Tensor, Tensor]:
    """Pieces to learn from and held-out ones, from the end of the same long text."""
    texts = [document.text for document in load_documents("shakespeare")]
    tokenizer = TextTokenizer.train(texts, kind="byte-level", vocab_size=VOCABULARY)
    ids = [number for text in texts for number in tokenizer.encode(text, special=False)]
    whole = torch.tensor(ids)
    return whole[: -HELD_OUT - 1], whole[-HELD_OUT - 1 :]


def rows_of(ids: Tensor, n: int, step: int, seed: int) -> Iterator[Tensor]:
    """Batches (step / n, n + 1) from places drawn anew; the same text for every n and model."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(ids) - step, (1,), generator=generator)
        block = ids[int(starts) : int(starts) + step + 1]
        yield block.unfold(0, n + 1, n)


def loss_of(model: Any, rows: Tensor) -> Tensor:
    """Mean −log p of a row's pieces; logits some rows of the table at a time."""
    hidden = model.hidden(rows[:, :-1]).flatten(0, 1)
    wanted = rows[:, 1:].flatten()
    parts = zip(hidden.split(4096), wanted.split(4096), strict=True)
    total = sum(F.cross_entropy(model.head(h), w, reduction="sum") for h, w in parts)
    return torch.as_tensor(total) / wanted.numel()


def settings_of(args: argparse.Namespace) -> Row:
    """What rows of one table have in common."""
    return {key: getattr(args, key) for key in ("tokens", "step", "peak", "seed")}


def learnt(name: str, n: int, ids: Tensor, held_out: Tensor, args: argparse.Namespace) -> Row:
    torch.manual_seed(args.seed)
    model = KINDS[name](n).train()
    n_steps = max(1, args.tokens // args.step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.peak, betas=(0.9, 0.98))
    warm = max(1, n_steps // 10)

    def rate(step: int) -> float:
        done = max(0, step - warm) / max(1, n_steps - warm)
        return min(1.0, (step + 1) / warm) * 0.5 * (1 + math.cos(math.pi * done))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    start = time.process_time()
    wide = min(n, ALONE.get(name, n))
    for step, rows in zip(range(n_steps), rows_of(ids, wide, args.step, args.seed), strict=False):
        loss = loss_of(model, rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(), schedule.step(), optimizer.zero_grad()
        if (step + 1) % max(1, n_steps // 5) == 0:
            print(f"{name}, {n}: step {step + 1}/{n_steps} loss {loss:.3f}", file=sys.stderr)
    seconds = time.process_time() - start
    model.eval()
    with torch.no_grad():
        rows = held_out.unfold(0, wide + 1, wide)
        parts = rows.split(max(1, 4096 // wide))
        losses = [float(loss_of(model, some)) * some.shape[0] for some in parts]
    perplexity = math.exp(sum(losses) / rows.shape[0])
    count = sum(p.numel() for p in model.parameters())
    return {
        "kind": name,
        "context": n,
        **settings_of(args),
        "perplexity": round(perplexity, 2),
        "cpu_seconds": round(seconds, 1),
        "parameters": count,
    }


def table(rows: list[Row], contexts: list[int]) -> str:
    lines = ["| perplexity (CPU s) | " + " | ".join(f"{n:,}" for n in contexts) + " |"]
    lines.append("|---" * (len(contexts) + 1) + "|")
    for name in KINDS:
        by = {r["context"]: r for r in rows if r["kind"] == name}
        cells = [
            f"{by[n]['perplexity']} ({by[n]['cpu_seconds']:.0f})" if n in by else ""
            for n in contexts
        ]
        if by:
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_training", description=__doc__)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048, 8192, 16_384])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--step", type=int, default=LONGEST, help="tokens of a step")
    parser.add_argument("--peak", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if any(args.step % n or LONGEST % n for n in args.contexts):
        parser.error(f"a context must divide --step {args.step} and {LONGEST}")
    ids, held_out = text_ids()
    known = args.out is not None and args.out.exists()
    rows: list[Row] = json.loads(args.out.read_text(encoding="utf-8")) if known else []
    for n in args.contexts:
        for name in args.kinds:
            asked = {"kind": name, "context": n, **settings_of(args)}
            if any(asked.items() <= row.items() for row in rows):
                continue  # run before
            rows.append(learnt(name, n, ids, held_out, args))
            print(rows[-1], file=sys.stderr, flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    rows = [row for row in rows if settings_of(args).items() <= row.items()]
    told = f"{args.tokens:,} tokens each, {args.step:,} a step, {args.threads} threads"
    print(f"{told}\n\n{table(rows, args.contexts)}")


if __name__ == "__main__":
    main()
