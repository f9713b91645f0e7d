"""Hugging Face's Marian trained from nothing on everyhead's batches: the peer at the small size.

    score = BLEU(MarianMTModel after N target tokens) beside BLEU(everyhead after N target tokens)

Same pairs, tokenizer, batches in the same order, schedule, smoothing, dropout, Adam and clipping,
from one recipe; model and step are Hugging Face's at its users' best plain setting: fused Adam,
SDPA, bf16 autocast where the processor has it, its own start (normal, 0.02). Two differences
remain: smoothing spreads over the padding piece too, and its logit is finite while training.

    python bench/marian_training.py --run RUN --target-tokens 5000000 --save marian
    python bench/marian_training.py --recipe recipe.toml --corpora DIR --steps 2000

The weights scored are the best by validation loss; if the last are others, they are scored too.
"""

import argparse
import copy
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel

from everyhead.data.batching import Batch, pad_rows
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.pairs import Pairs
from everyhead.models.transformer import TransformerConfig
from everyhead.training.jobs.translate import PreparedTranslation
from everyhead.training.loop import Trainer
from everyhead.training.optimizers import make_optimizer, set_rate
from everyhead.training.precision import autocast
from everyhead.training.recipe import load_recipe
from everyhead.training.run import make_trainer, prepare
from everyhead.training.sections import Recipe
from everyhead.weights.marian_config import to_hugging_face, why_not


def read_recipe(args: argparse.Namespace) -> Recipe:
    """The run's recipe or the one named, with the pairs of --corpora if that is given."""
    overrides = list(args.set)
    if args.corpora:
        overrides.append(f"data.pairs={args.corpora / args.pairs}")
    if args.steps:
        overrides.append(f"train.max_steps={args.steps}")
    return load_recipe(str(args.run / "recipe.toml") if args.run else args.recipe, overrides)


def peer_trainer(prepared: PreparedTranslation) -> Trainer:
    """Everyhead's trainer of this recipe, for its batches, rates and precision, not its model."""
    return make_trainer(prepared, Path(), save=lambda model: None)


def steps_for(peer: Trainer, target_tokens: int) -> int:
    """As many steps as it takes to see so many real target tokens."""
    lengths = peer.stream.ids.target_lengths
    batches = itertools.chain.from_iterable(map(peer.stream.plan.epoch, itertools.count()))
    seen = itertools.accumulate(sum(lengths[i] for i in batch) for batch in batches)
    needed = next(n for n, tokens in enumerate(seen, 1) if tokens >= target_tokens)
    return math.ceil(needed / peer.recipe.accumulate)


def make_model(config: TransformerConfig) -> MarianMTModel:
    if why_not(config) or config.norm != "post":
        raise SystemExit(
            "Marian is post-norm with sinusoids and one vocabulary; the recipe is not."
        )
    longer = {"max_position_embeddings": 1024, "attn_implementation": "sdpa"}
    return MarianMTModel(MarianConfig(**to_hugging_face(config) | longer))


def loss_sum(model: nn.Module, batch: Batch, smoothing: float) -> Tensor:
    logits = model(
        input_ids=batch.source,
        attention_mask=batch.source_mask,
        decoder_input_ids=batch.target_in,  # pads stand on the right: the causal mask is enough
        use_cache=False,
    ).logits  # (B, T, V)
    labels = batch.labels.masked_fill(~batch.target_mask, -100)
    return F.cross_entropy(
        logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=smoothing, reduction="sum"
    )


@torch.no_grad()
def validation_loss(model: nn.Module, batches: list[Batch]) -> float:
    model.eval()
    total = sum(float(loss_sum(model, batch, 0.0)) for batch in batches)
    model.train()
    return total / sum(batch.n_target for batch in batches)


class MarianTrainer:
    """One model, one optimizer, one stream; the clock runs during training steps only."""

    def __init__(self, prepared: PreparedTranslation):
        r = self.recipe = prepared.recipe.train
        self.peer = peer_trainer(prepared)
        torch.manual_seed(r.seed)
        self.model = make_model(prepared.config)
        settings = {"betas": r.betas, "eps": r.eps, "weight_decay": r.weight_decay}
        self.optimizer = make_optimizer(self.model, r.optimizer, **settings)
        self.tokens, self.seconds = 0, 0.0

    def fit(self) -> dict[str, Any]:
        """Train to the last step; the best weights on validation, and their step and loss."""
        best: dict[str, Any] = {"loss": math.inf, "step": 0, "state": None}
        r, last = self.recipe, self.recipe.max_steps
        self.model.train()
        for step in range(1, last + 1):
            begun = time.perf_counter()
            loss, n_target = self.step(step)
            self.seconds += time.perf_counter() - begun
            self.tokens += n_target
            if step % r.log_every == 0 or step in (1, last):
                speed = f"{self.tokens:,} target tokens, {self.tokens / self.seconds:,.0f}/s"
                print(f"step {step}/{last} loss {loss / n_target:.4f} {speed}", flush=True)
            if step % r.evaluate_every == 0 or step == last:
                loss = validation_loss(self.model, self.peer.validation)
                print(f"step {step} validation loss {loss:.4f}", flush=True)
                if loss < best["loss"]:
                    state = copy.deepcopy(self.model.state_dict())
                    best = {"loss": loss, "step": step, "state": state}
        return best

    def step(self, number: int) -> tuple[float, int]:
        """Summed loss and real target tokens of one step."""
        set_rate(self.optimizer, self.peer.rate(number))
        self.optimizer.zero_grad(set_to_none=True)
        batches = [self.peer.stream.take() for _ in range(self.recipe.accumulate)]
        n_target = sum(batch.n_target for batch in batches)
        total = 0.0
        for batch in batches:
            with autocast(self.peer.precision, self.peer.device):
                loss = loss_sum(self.model, batch, self.recipe.label_smoothing)
            (loss / n_target).backward()
            total += loss.item()
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimizer.step()
        return total, n_target


@torch.no_grad()
def translate(
    model: MarianMTModel, lines: list[str], tokenizer: PairTokenizer, **settings: Any
) -> list[str]:
    """Hugging Face's own generate; batches of 32 of like length, order restored."""
    model.eval()
    one = tokenizer.target
    coded = [[*ids, one.eos_id] for ids in one.encode_batch(lines)]
    order = sorted(range(len(coded)), key=lambda i: len(coded[i]))
    result = [""] * len(lines)
    for start in range(0, len(order), 32):
        chosen = order[start : start + 32]
        source, mask = pad_rows([coded[i] for i in chosen], one.pad_id)
        made = model.generate(
            input_ids=source,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=2 * source.shape[1] + 20,
            bad_words_ids=[[one.pad_id]],
            **settings,
        )  # (B, T)
        for i, text in zip(chosen, one.decode_batch(made.tolist()), strict=True):
            result[i] = text
    return result


def score(
    model: MarianMTModel, test: Pairs, prepared: PreparedTranslation, beam: int
) -> dict[str, Any]:
    recipe = prepared.recipe.evaluate
    settings = {"length_penalty": recipe.length_penalty} if beam > 1 else {}
    texts = translate(model, test.source, prepared.tokenizer, num_beams=beam, **settings)
    rows, bleu = list(zip(*test, texts, strict=True)), BLEU(tokenize=recipe.tokenize)
    return {
        "bleu": round(bleu.corpus_score(texts, [test.target]).score, 2),
        "chrf": round(CHRF().corpus_score(texts, [test.target]).score, 2),
        "signature": str(bleu.get_signature()),
        "samples": rows[:: math.ceil(len(rows) / 5)],
    }


def evaluate(
    model: MarianMTModel, best: dict, prepared: PreparedTranslation, limit: int | None
) -> dict:
    """Scores of the last and the best weights; leaves the best in the model."""
    test = Pairs(*(side[:limit] for side in prepared.splits.test))
    scores: dict[str, Any] = {"tested": test.size}
    if best["step"] != prepared.recipe.train.max_steps:
        scores["last_greedy"] = score(model, test, prepared, 1)
    model.load_state_dict(best.pop("state") or model.state_dict())
    scores |= {"greedy": score(model, test, prepared, 1), "beam4": score(model, test, prepared, 4)}
    return scores


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    one, add = parser.add_mutually_exclusive_group(required=True), parser.add_argument
    one.add_argument(
        "--run", type=Path, help="an everyhead run, whose recipe and tokenizer are used"
    )
    one.add_argument(
        "--recipe", help="or a recipe's name or file; the tokenizer is learnt as it says"
    )
    add("--set", action="append", default=[], help="section.key=value, changes the recipe")
    add("--corpora", type=Path, help="folder of the benchmark corpora")
    add("--pairs", default="en-de.libreoffice-help.tsv.xz", help="a file in --corpora")
    add("--target-tokens", type=int, help="stop after so many real target tokens")
    add("--steps", type=int, help="or after so many steps; by default the recipe's")
    add("--save", type=Path, help="write the best weights here, as a Hugging Face folder")
    add("--out", type=Path, help="also write the JSON line to this file")
    add("--threads", type=int, default=2)
    add("--max-test", type=int, help="score only so many test pairs")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    recipe = read_recipe(args)
    prepared = prepare(recipe, args.run or None)
    if args.target_tokens:
        total = steps_for(peer_trainer(prepared), args.target_tokens)
        train = recipe.train.model_copy(update={"max_steps": total})
        prepared.recipe = recipe = recipe.model_copy(update={"train": train})
    trainer = MarianTrainer(prepared)
    best = trainer.fit()
    scores = evaluate(trainer.model, best, prepared, args.max_test)
    if args.save:
        trainer.model.save_pretrained(args.save)
        prepared.tokenizer.save(args.save, model_max_length=prepared.config.max_len)
    row = {
        "system": "Hugging Face Marian",
        "recipe": recipe.model_dump(exclude={"data"}),
        "parameters": trainer.model.num_parameters(),
        "splits": prepared.report["splits"],
        "steps": recipe.train.max_steps,
        "target_tokens": trainer.tokens,
        "target_tokens_per_second": round(trainer.tokens / trainer.seconds, 1),
        "precision": trainer.peer.precision,
        "threads": args.threads,
        "best": best,
        **scores,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    line = json.dumps(row, ensure_ascii=False)
    print(line)
    if args.out:
        args.out.write_text(line + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
