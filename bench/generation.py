"""(c) Texts from a decoder with random weights: greedy and sampled, batch 1 and 8, beside Hugging
Face's `generate` with the same weights.

Both read one folder and get the same token ids, padded on the left; every text has the same number
of new tokens, so the figure is new tokens a second. Whether the greedy tokens agree is counted.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from bench.timing import Row, System, rounds, rows_of
from everyhead.generation.decoder import left_padded
from everyhead.generation.decoding import Row as Text
from everyhead.generation.decoding import write
from everyhead.generation.sampling import Sampler, Sampling
from everyhead.models import MODELS
from everyhead.models.prepare import prepare
from everyhead.weights.folder import save_model

transformers.logging.set_verbosity_error()
Ids = list[list[int]]
# Prompts of a batch: unequal lengths around 64.
LENGTHS = (64, 37, 80, 52, 96, 20, 71, 64)
GREEDY, SAMPLED = Sampling(temperature=0), Sampling(temperature=0.8, top_k=50)


class Systems:
    """The same weights here, prepared, and there; each turns prompts into new ids."""

    def __init__(self, family: str, preset: str, scratch: Path) -> None:
        torch.manual_seed(0)
        made = MODELS[family]
        model: Any = made.model(made.config(**made.presets[preset])).eval()
        save_model(model, scratch)
        self.plain, self.prepared = model, prepare(model)
        self.narrow = prepare(model, torch.bfloat16)
        self.theirs = AutoModelForCausalLM.from_pretrained(scratch).eval()
        self.vocab_size = model.config.vocab_size

    def ours(self, model: Any, prompts: Ids, n_new: int, how: Sampling) -> Ids:
        sampler = Sampler(
            how,
            prompts,
            seeds=[(0, i) for i in range(len(prompts))],
            n_steps=n_new,
            vocab_size=self.vocab_size,
            device=torch.device("cpu"),
        )
        texts = [Text(n_new) for _ in prompts]
        for _ in write(model, prompts, texts, sampler=sampler):
            pass
        return [text.ids for text in texts]

    def hugging_face(self, prompts: Ids, n_new: int, how: Sampling) -> Ids:
        ids, real = left_padded(prompts, torch.device("cpu"))
        asked: dict[str, Any] = {"do_sample": False}
        if how.temperature:
            asked = {"do_sample": True, "temperature": how.temperature, "top_k": how.top_k}
        with torch.inference_mode():
            found = self.theirs.generate(
                ids,
                attention_mask=real.long(),
                min_new_tokens=n_new,
                max_new_tokens=n_new,
                pad_token_id=0,
                **asked,
            )
        return found[:, ids.shape[1] :].tolist()


def generation_rows(
    *, family: str = "gpt2", preset: str = "small", n_rounds: int = 3, n_new: int = 48
) -> list[Row]:
    """Rows for batch 1 and 8, greedy and sampled, and the share of equal greedy texts."""
    rows: list[Row] = []
    rng = torch.Generator().manual_seed(1)
    with tempfile.TemporaryDirectory() as scratch:
        systems = Systems(family, preset, Path(scratch))
        drawn = [torch.randint(1, systems.vocab_size, (n,), generator=rng) for n in LENGTHS]
        prompts = [ids.tolist() for ids in drawn]
        for size in (1, 8):
            for how in (GREEDY, SAMPLED):
                rows += _setting(
                    systems, f"{family} {preset}", prompts[:size], n_new, how, n_rounds
                )
    return rows


def _setting(
    systems: Systems, model: str, prompts: Ids, n_new: int, how: Sampling, n_rounds: int
) -> list[Row]:
    calls: dict[str, Any] = {
        "everyhead": partial(systems.ours, systems.plain),
        "everyhead prepared": partial(systems.ours, systems.prepared),
        "everyhead prepared, bf16 weights": partial(systems.ours, systems.narrow),
        "Hugging Face": systems.hugging_face,
    }
    name = f"{model}, batch {len(prompts)}, {'sampled' if how.temperature else 'greedy'}"
    timed = [
        System(each, partial(call, prompts, n_new, how), partial(call, prompts, 4, how))
        for each, call in calls.items()
    ]
    seconds = rounds(timed, n_rounds)
    rows = rows_of("generation", name, seconds, len(prompts) * n_new, "tokens/s")
    if how is GREEDY:
        found = {each: call(prompts, n_new, how) for each, call in calls.items()}
        for each in ("everyhead", "everyhead prepared"):
            pairs = zip(found[each], found["Hugging Face"], strict=True)
            share = round(100 * sum(a == b for a, b in pairs) / len(prompts), 1)
            rows.append(Row("generation", name, each, share, "% texts as Hugging Face's", None))
    return rows
