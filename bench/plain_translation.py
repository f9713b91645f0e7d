"""A plain `torch.nn.Transformer` translator: the baseline that everyhead's demo is held against.

    score = BLEU(greedy decode of the held-out sources after N steps)

Written as a competent person writes it without everyhead; only the sentence pairs and their split
come from everyhead, so that both train and test on the same lines. Sizes, rate and steps are those
of the demo. The test set is scored at the last step, without choosing among checkpoints; the score
of the weights that were best on validation stands beside it under its own name.

    python bench/plain_translation.py --seed 0 --threads 2 --out plain_seed0.json
"""

import argparse
import contextlib
import copy
import json
import math
import random
import time
from collections.abc import Iterator
from pathlib import Path

import sacrebleu
import torch
import torch.nn.functional as F
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

PAD, BOS, EOS, UNK = range(4)
SPECIALS = ["<pad>", "<s>", "</s>", "<unk>"]
PEAK, WARMUP, BATCH, DROPOUT, SMOOTHING, EVERY = 1e-3, 200, 48, 0.2, 0.1, 200
MAX_DECODE = 60

Lines = list[str]
Ids = list[list[int]]
Coded = tuple[Ids, Ids]


def load_splits() -> dict[str, tuple[Lines, Lines]]:
    """Everyhead's own split of the built-in corpus, as (source, target) lines per set."""
    from everyhead.data.translation import PairSource, prepare_pairs

    splits = prepare_pairs(PairSource(corpus="hsk-en-zh")).splits
    return {name: (pairs.source, pairs.target) for name, pairs in splits._asdict().items()}


def train_bpe(lines: Lines, vocab_size: int, prepend: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=SPECIALS, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


class Translator(nn.Module):
    """`nn.Transformer` with embeddings scaled by sqrt(d), sinusoid and an output map."""

    def __init__(self, source_vocab: int, target_vocab: int, *, d: int, heads: int, layers: int):
        super().__init__()
        self.scale = math.sqrt(d)
        self.source_embed = nn.Embedding(source_vocab, d, padding_idx=PAD)
        self.target_embed = nn.Embedding(target_vocab, d, padding_idx=PAD)
        self.register_buffer("sinusoid", sinusoid(512, d), persistent=False)
        self.dropout = nn.Dropout(DROPOUT)
        self.core = nn.Transformer(d, heads, layers, layers, 4 * d, DROPOUT, batch_first=True)
        self.core.encoder.use_nested_tensor = False  # a prototype that warns and gains nothing
        self.head = nn.Linear(d, target_vocab)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def embed(self, table: nn.Embedding, ids: Tensor) -> Tensor:
        return self.dropout(table(ids) * self.scale + self.sinusoid[: ids.shape[1]])  # (B, T, C)

    def encode(self, source: Tensor) -> Tensor:
        hidden = self.embed(self.source_embed, source)
        return self.core.encoder(hidden, src_key_padding_mask=source == PAD)  # (B, S, C)

    def decode(self, target: Tensor, memory: Tensor, hidden_keys: Tensor) -> Tensor:
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)  # True = may not look
        return self.core.decoder(
            self.embed(self.target_embed, target),
            memory,
            tgt_mask=future,
            tgt_is_causal=True,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=hidden_keys,
        )  # (B, T, C)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.decode(target, self.encode(source), source == PAD))  # (B, T, V)


def sinusoid(length: int, d: int) -> Tensor:
    position = torch.arange(length).unsqueeze(1)
    rate = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    table = torch.zeros(length, d)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate)
    return table  # (T, C)


def pad(rows: Ids) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows])  # (B, T)


def encode_pairs(pairs: tuple[Lines, Lines], source: Tokenizer, target: Tokenizer) -> Coded:
    sources = [[*code.ids, EOS] for code in source.encode_batch(pairs[0])]
    targets = [[BOS, *code.ids, EOS] for code in target.encode_batch(pairs[1])]
    return sources, targets


def random_batches(pairs: Coded, rng: random.Random) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches without end; every pair once per epoch."""
    order = list(range(len(pairs[0])))
    while True:
        rng.shuffle(order)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            yield pad([pairs[0][i] for i in chosen]), pad([pairs[1][i] for i in chosen])


def loss_sum(model: Translator, source: Tensor, target: Tensor, smoothing: float) -> Tensor:
    logits = model(source, target[:, :-1])
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        target[:, 1:].flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )


def learning_rate(step: int, steps: int) -> float:
    """Factor on the peak: linear warm-up, then a cosine to zero at the last step."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, steps - WARMUP)))


@torch.no_grad()
def validation_loss(model: Translator, pairs: Coded, size: int = 64) -> float:
    model.eval()
    total = tokens = 0.0
    for start in range(0, len(pairs[0]), size):
        source, target = (pad(side[start : start + size]) for side in pairs)
        total += float(loss_sum(model, source, target, 0.0))
        tokens += float((target[:, 1:] != PAD).sum())
    model.train()
    return total / tokens


@torch.no_grad()
def greedy(model: Translator, sources: Ids, size: int = 64) -> Ids:
    """The most probable next token until `</s>`; batches of like length, order restored."""
    model.eval()
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    result: Ids = [[] for _ in sources]
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        source = pad([sources[i] for i in chosen])
        memory, hidden_keys = model.encode(source), source == PAD
        rows = torch.full((len(chosen), 1), BOS)
        ended = torch.zeros(len(chosen), dtype=torch.bool)
        while not ended.all() and rows.shape[1] < MAX_DECODE:
            logits = model.head(model.decode(rows, memory, hidden_keys)[:, -1])  # (B, V)
            word = logits.argmax(-1).masked_fill(ended, PAD)
            rows = torch.cat([rows, word.unsqueeze(1)], 1)  # (B, T + 1)
            ended |= word == EOS
        for i, row in zip(chosen, rows.tolist(), strict=True):
            result[i] = [token for token in row if token > UNK]
    return result


def score(model: Translator, sources: Ids, references: Lines, target: Tokenizer) -> dict:
    texts = target.decode_batch(greedy(model, sources))
    bleu = BLEU(tokenize="zh")
    return {
        "bleu": round(bleu.corpus_score(texts, [references]).score, 2),
        "chrf": round(CHRF().corpus_score(texts, [references]).score, 2),
        "signature": str(bleu.get_signature()),
        "texts": texts,
    }


def train(model: Translator, train_set: Coded, validation: Coded, args: argparse.Namespace) -> dict:
    """Trains in place; returns the best weights on validation and how they came about."""
    settings = {"betas": (0.9, 0.98), "eps": 1e-9, "fused": True}
    optimizer = torch.optim.Adam(model.parameters(), PEAK, **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: learning_rate(n, args.steps))
    batches = random_batches(train_set, random.Random(args.seed))
    cast = torch.autocast("cpu", torch.bfloat16) if args.bf16 else contextlib.nullcontext()
    best: dict = {"loss": math.inf}
    model.train()
    for step in range(1, args.steps + 1):
        source, target = next(batches)
        with cast:
            total = loss_sum(model, source, target, SMOOTHING)
        loss = total / (target[:, 1:] != PAD).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % EVERY == 0 or step == args.steps:
            held_out = validation_loss(model, validation)
            print(f"step {step} loss {loss.item():.3f} validation {held_out:.3f}", flush=True)
            if held_out < best["loss"]:
                state = copy.deepcopy(model.state_dict())
                best = {"loss": held_out, "step": step, "state": state}
    return best


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="also write the JSON line to this file")
    parser.add_argument("--bf16", action="store_true", help="bf16 autocast while training")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    splits = load_splits()
    source_bpe = train_bpe(splits["train"][0], 1200, "always")
    target_bpe = train_bpe(splits["train"][1], 1775, "never")
    coded = {name: encode_pairs(pair, source_bpe, target_bpe) for name, pair in splits.items()}
    sizes = source_bpe.get_vocab_size(), target_bpe.get_vocab_size()
    model = Translator(*sizes, d=256, heads=4, layers=2)

    begun = time.perf_counter()
    best = train(model, coded["train"], coded["validation"], args)
    seconds = time.perf_counter() - begun
    sources, references = coded["test"][0], splits["test"][1]
    last = score(model, sources, references, target_bpe)
    model.load_state_dict(best["state"])
    chosen = score(model, sources, references, target_bpe)
    row = {
        "system": "torch.nn.Transformer",
        "seed": args.seed,
        "steps": args.steps,
        "bleu": last["bleu"],
        "chrf": last["chrf"],
        "signature": last["signature"],
        "best_validation_step": best["step"],
        "best_validation_bleu": chosen["bleu"],
        "best_validation_chrf": chosen["chrf"],
        "best_validation_loss": round(best["loss"], 4),
        "pairs": {name: len(pair[0]) for name, pair in splits.items()},
        "vocabularies": list(sizes),
        "parameters": sum(p.numel() for p in model.parameters()),
        "precision": "bf16" if args.bf16 else "fp32",
        "threads": args.threads,
        "seconds": round(seconds, 1),
        "samples": list(zip(splits["test"][0], references, last["texts"], strict=True))[:5],
        "versions": {"torch": torch.__version__, "sacrebleu": sacrebleu.__version__},
    }
    line = json.dumps(row, ensure_ascii=False)
    print(line)
    if args.out:
        args.out.write_text(line + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
