"""LSTM, GRU, convolution and Transformer side by side (B17-27, B681): loss, tokens/s, memory.

    two tasks     going on with Shakespeare; English TAB Chinese, scored on the Chinese alone
    same for all  text, tokenizer, rows (a document to its end, or as much as fits), batches in the
                  same order, steps, schedule, parameters (± 2 %)
    by length     one training step of B·T = 8,192 tokens at T = 64 … 2,048, and its peak memory

Translation here is a language model's: a pair is one document, the target follows its source. The
width of each network is chosen so that all have as many parameters as the Transformer. Each length
is measured in a process of its own, so that the peak is that of this network alone.

    python bench/language_models.py --out models.json
    python bench/language_models.py --steps 100 --seeds 1 --lengths 64 256 --tasks text
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from everyhead.data.corpora import load_corpus
from everyhead.data.token_rows import TokenRows
from everyhead.models import MODELS
from everyhead.training.losses import next_token_loss
from everyhead.training.recipe import load_recipe
from everyhead.training.run import make_trainer, prepare
from everyhead.training.step import evaluate_parts

TRANSFORMER: dict[str, Any] = {"family": "gpt2", "d_model": 128, "n_heads": 4, "n_layers": 4}
TRANSFORMER["attention_dropout"] = 0.0  # 0.1 by default: slow, and unlike the others
NETWORKS: dict[str, dict[str, Any]] = {
    "Transformer": TRANSFORMER,
    "LSTM": {"family": "recurrent", "preset": "tiny", "n_layers": 2},
    "GRU": {"family": "recurrent", "preset": "tiny-gru", "n_layers": 2},
    "convolution": {"family": "convolutional", "preset": "tiny", "n_layers": 8},
}
TOKENS_A_STEP = 8192


def numbers(network: str, vocab_size: int, max_len: int) -> dict[str, Any]:
    """The [model] section, its width such that the parameters are as many as the Transformer's."""
    wanted = size({**TRANSFORMER, "max_len": max_len}, vocab_size)
    own = NETWORKS[network] | {"max_len": max_len}
    if network == "Transformer":
        return own
    widths = range(16, 1024, 2)
    best = min(widths, key=lambda d: abs(size({**own, "d_model": d}, vocab_size) - wanted))
    return own | {"d_model": best}


def config(model: dict[str, Any], vocab_size: int) -> Any:
    own = {key: value for key, value in model.items() if key not in ("family", "preset")}
    family = MODELS[model["family"]]
    presets = family.presets[model.get("preset", "tiny")]
    return family.config(**{"vocab_size": vocab_size, **presets, **own, "dropout": 0.0})


def size(model: dict[str, Any], vocab_size: int) -> int:
    with torch.device("meta"):
        made = MODELS[model["family"]].model(config(model, vocab_size))
    return sum(p.numel() for p in made.parameters())


def task_changes(task: str, folder: Path) -> list[str]:
    """What differs between the tasks' recipes."""
    if task == "text":
        return []
    pairs = load_corpus("hsk-en-zh").pairs
    text = "".join(f"{source}\t{target}\n" for source, target in pairs.rows())
    (folder / "pairs.txt").write_bytes(text.encode("utf-8"))
    files = json.dumps([str(folder / "pairs.txt")])
    rows = "train.batch_sentences=64"  # pairs are short
    return [f"data.files={files}", 'data.documents="line"', "data.split=document", rows]


def learnt(task: str, network: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train once; the loss is that of the last weights on the test set."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        changes = [
            *task_changes(task, folder),
            f"train.seed={seed}",
            f"train.max_steps={args.steps}",
        ]
        changes += [f"train.evaluate_every={args.steps}", f"train.save_every={10**9}"]
        changes += [f"train.warmup={min(100, args.steps // 4)}", f"train.peak={args.peak}"]
        base = load_recipe("pretrain-gpt2", changes)
        vocab = base.tokenizer.vocab_size
        model = numbers(network, vocab, base.model.max_len) | {"dropout": 0.0}
        sections = {"model": type(base.model)(**model)}
        prepared = prepare(base.model_copy(update=sections))
        prepared.apart = False  # a Transformer's rows would hold several documents
        trainer = make_trainer(prepared, folder, save=lambda model: None)
        start = time.process_time(), time.perf_counter()
        state = trainer.fit()
        seconds = time.process_time() - start[0], time.perf_counter() - start[1]
        scores = prepared.evaluate(trainer.model.eval(), "test")
        if task == "translation":
            scores |= target_loss(trainer.model, prepared)
    found = {key: scores[key] for key in ("loss", "bits_per_byte", "target_loss") if key in scores}
    rates = {"tokens": state.n_tokens, "tokens_a_second": state.n_tokens / seconds[1]}
    rates["cpu_seconds"] = seconds[0]
    return found | rates | {"parameters": size(model, vocab), "d_model": model.get("d_model")}


def target_loss(model: Any, prepared: Any) -> dict[str, float]:
    """−log p of a target's piece, given its source: labels up to the TAB are left out."""
    tab = prepared.tokenizer.encode("\t", special=False)[-1]
    rows = TokenRows(
        [document.text for document in prepared.splits.test],
        prepared.tokenizer,
        length=prepared.length,
        whole=False,
    )
    batches = []
    for batch in rows.batches(16):
        behind = (batch.ids == tab).long().cumsum(1) > 0
        wanted = batch.learnt & behind
        batches.append(batch._replace(learnt=wanted, n_target=int(wanted.sum())))
    (only,) = evaluate_parts(model, batches, loss=next_token_loss, precision="fp32").values()
    return {"target_loss": only.nll / only.n}


def step_cost(network: str, length: int, seconds: float) -> dict[str, float]:
    """Tokens/s of forward and backward at this length, and the process' peak above its start."""
    torch.manual_seed(0)
    model = MODELS[NETWORKS[network]["family"]].model(config(numbers(network, 2000, length), 2000))
    rows = max(TOKENS_A_STEP // length, 1)
    ids = torch.randint(0, 2000, (rows, length + 1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    while len(times) < 3 or sum(times) < seconds:
        start = time.perf_counter()
        logits = model(ids[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        model.zero_grad()
        times.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"tokens_a_second": rows * length / statistics.median(times[1:]), "peak_mb": peak / 1024}


def by_length(network: str, length: int, args: argparse.Namespace) -> dict[str, Any]:
    """`step_cost` in a process of its own."""
    command = [sys.executable, __file__, "--step", network, str(length)]
    command += ["--seconds", str(args.seconds), "--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, capture_output=True, check=True, encoding="utf-8")
    return {"length": length, **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--peak", type=float, default=3e-3)
    parser.add_argument("--lengths", type=int, nargs="*", default=[64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--tasks", nargs="*", default=["text", "translation"])
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring a length")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", nargs=2, metavar=("NETWORK", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.step:
        print(json.dumps(step_cost(args.step[0], int(args.step[1]), args.seconds)))
        return
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "steps": args.steps}
    for network in args.networks:
        found: dict[str, Any] = {"by length": []}
        for length in args.lengths:
            found["by length"].append(by_length(network, length, args))
            print(network, found["by length"][-1], flush=True)
        for task in args.tasks:
            found[task] = [learnt(task, network, seed, args) for seed in args.seeds]
            print(network, task, found[task], flush=True)
        result[network] = found
        if args.out:
            text = json.dumps(result, indent=2) + "\n"
            args.out.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
