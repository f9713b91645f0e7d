"""A text far longer than the model was trained for: negative log-likelihood by position.

    python -m bench.long_reading [--tokens N] [--window W] [--first F] [--out FILE.json]

smollm2 (trained to 8,192 positions) reads Shakespeare's works one after another as one text, behind
a window of W tokens and the F first ones of the text (layers/sliding_cache.py), and beside it with
exact attention up to --exact positions. Written after every bin: FILE.json, and a plot of the same
name.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from everyhead import Window, load, prepare
from everyhead.data.documents import load_documents

BIN = 1024  # positions whose mean is one point
HEAD_ROWS = 128  # of logits at once
MIB = 1 << 20


class Piece(NamedTuple):
    """Positions start … stop − 1: nats of the token after each (n,), seconds, bytes of keys."""

    start: int
    stop: int
    nats: torch.Tensor
    seconds: float
    kept: int


class Bin(NamedTuple):
    """Mean nats of the tokens after positions start … stop − 1, and what reading had cost then."""

    start: int
    stop: int
    nats: float
    seconds: float
    tokens_per_s: float
    gflops: float  # 10⁹ operations a second, in this bin
    keys_mib: float
    peak_mib: float  # of the whole process so far


@torch.inference_mode()
def read(model: Any, ids: torch.Tensor, chunk: int) -> Iterator[Piece]:
    """Let ids (n + 1,) enter piece by piece; each but the last is followed by one to be told."""
    n = ids.numel() - 1
    cache = model.cache(n)
    for start in range(0, n, chunk):
        began, stop = time.perf_counter(), min(start + chunk, n)
        hidden = model.hidden(ids[None, start:stop], cache=cache)[0]  # (t, C)
        targets = ids[start + 1 : stop + 1]
        nats = [
            F.cross_entropy(model.head(h).float(), t, reduction="none")
            for h, t in zip(hidden.split(HEAD_ROWS), targets.split(HEAD_ROWS), strict=True)
        ]
        seconds = time.perf_counter() - began
        yield Piece(start, stop, torch.cat(nats), seconds, kept_bytes(cache))


def kept_bytes(cache: Any) -> int:
    """What the keys and values of all layers take."""
    tensors = [x for each in cache.self_attn for x in vars(each).values()]
    return sum(x.numel() * x.element_size() for x in tensors if isinstance(x, torch.Tensor))


def operations(config: Any, start: int, stop: int, reach: int) -> float:
    """Of the products: 2 for each weight and token, 4·D for each head, query and key it sees."""
    c = config
    heads = c.d_head * (2 * c.n_heads + 2 * c.n_kv_heads)
    weights = c.n_layers * c.d_model * (heads + 3 * c.d_ff) + c.vocab_size * c.d_model
    seen = sum(min(position + 1, reach) for position in range(start, stop))
    return 2.0 * weights * (stop - start) + 4.0 * c.n_layers * c.n_heads * c.d_head * seen


def bins(pieces: Iterator[Piece], ops: Callable[[int, int], float]) -> Iterator[Bin]:
    """The pieces' means over BIN positions each, which pieces must not cross."""
    nats, seconds, spent, first = [], 0.0, 0.0, 0
    kept = stop = 0

    def done() -> Bin:
        n, values = stop - first, torch.cat(nats)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        cost = ops(first, stop) / seconds / 1e9
        return Bin(first, stop, float(values.mean()), spent, n / seconds, cost, kept / MIB, peak)

    for piece in pieces:
        nats.append(piece.nats)
        seconds, spent = seconds + piece.seconds, spent + piece.seconds
        stop, kept = piece.stop, piece.kept
        if stop % BIN == 0:
            yield done()
            nats, seconds, first = [], 0.0, stop
    if nats:
        yield done()


def shakespeare(tokenizer: Any, n: int) -> torch.Tensor:
    """The first n ids of all works, one after another."""
    ids: list[int] = []
    for document in load_documents("shakespeare"):
        ids += tokenizer.encode(document.text, special=False)
        if len(ids) >= n:
            return torch.tensor(ids[:n])
    raise SystemExit(f"Shakespeare's works are {len(ids):,} tokens; ask for no more than that")


def plot(found: dict[str, list[Bin]], settings: dict[str, Any], path: Path) -> None:
    """Mean nats by position above, MiB of keys and values below."""
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 6.5), height_ratios=(2, 1), layout="constrained"
    )
    window, first = f"{settings['window']:,}", settings["first"]
    names = {"exact": "exact attention", "window": f"window of {window}, {first} first tokens kept"}
    for (kind, some), colour in zip(found.items(), ("#0060a8", "#c04000"), strict=False):
        middle = [(each.start + each.stop) / 2 for each in some]
        above.plot(middle, [each.nats for each in some], color=colour, label=names[kind])
        below.plot([each.stop for each in some], [e.keys_mib for e in some], color=colour)
    for axes in (above, below):
        axes.axvline(settings["max_len"], color="#606060", linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    above.annotate(" longest in training", (settings["max_len"], 1), va="top", color="#606060",
                   xycoords=("data", "axes fraction"))  # fmt: skip
    above.set_ylabel(f"nats a token, mean of {BIN:,}")
    above.legend(frameon=False)
    below.set_ylabel("keys and values, MiB")
    below.set_ylim(bottom=0)
    below.set_xlabel("position in the text")
    below.xaxis.set_major_formatter("{x:,.0f}")
    figure.suptitle(f"{settings['model']} reads {settings['tokens']:,} tokens of Shakespeare")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def written(found: dict[str, list[Bin]], settings: dict[str, Any], out: Path) -> None:
    """The JSON file, whole at any time."""
    rows = {kind: [each._asdict() for each in some] for kind, some in found.items()}
    beside = out.with_suffix(".part")
    beside.write_text(json.dumps({"settings": settings, **rows}, indent=1) + "\n", encoding="utf-8")
    beside.replace(out)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_reading", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="a Llama: a name, folder or .gguf file")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=4096)
    parser.add_argument("--first", type=int, default=4)
    parser.add_argument("--chunk", type=int, default=512, help="tokens that enter at once")
    parser.add_argument("--exact", type=int, default=8192, help="exact attention so far; 0: none")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("bench/long_reading.json"))
    args = parser.parse_args()
    if BIN % args.chunk:
        raise SystemExit(f"--chunk must divide {BIN}, so that no piece crosses a bin")
    torch.set_num_threads(args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    reach = {"window": args.window + args.first, "exact": args.exact}
    length = {"window": args.tokens, "exact": min(args.exact, args.tokens)}
    found: dict[str, list[Bin]] = {}
    settings: dict[str, Any] = {}
    for kind in ("window", "exact"):
        if length[kind]:
            method = Window(args.window, first=args.first) if kind == "window" else None
            model, tokenizer = load(args.model, attention=method)
            config = model.config
            options = {k: v for k, v in vars(args).items() if k != "out"}
            settings = settings or {**options, "max_len": config.max_len}
            ids = shakespeare(tokenizer, length[kind] + 1)
            follow(kind, prepare(model), ids, args, reach[kind], found, settings)


def follow(
    kind: str,
    model: Any,
    ids: torch.Tensor,
    args: argparse.Namespace,
    reach: int,
    found: dict[str, list[Bin]],
    settings: dict[str, Any],
) -> None:
    """Read, and tell and write each bin."""
    some = found[kind] = []

    def ops(start: int, stop: int) -> float:
        return operations(model.config, start, stop, reach)

    for each in bins(read(model, ids, args.chunk), ops):
        some.append(each)
        left = (ids.numel() - 1 - each.stop) / each.tokens_per_s / 60
        print(
            f"{kind:<7} {each.stop:>7,}  {each.nats:.4f} nats  {each.tokens_per_s:6.1f} tokens/s  "
            f"{each.gflops:5.1f} GFLOP/s  keys {each.keys_mib:,.0f} MiB  peak "
            f"{each.peak_mib:,.0f} MiB  {left:.0f} min left",
            flush=True,
        )
        written(found, settings, args.out)
    plot(found, settings, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
