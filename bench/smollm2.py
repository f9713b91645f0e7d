"""SmolLM2-135M-Instruct from its .gguf file: greedy texts beside transformers', and their speed.

    python -m bench.smollm2 [--threads N] [--rounds N] [--new N]

Both read the same file (`everyhead fetch smollm2`) and get the same ids: fifty prompts of its own
chat form, padded on the left, ten a batch, the first `--new` tokens compared. Then one prompt,
tokens a second of each system in turn.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.timing import System, rounds, rows_of
from everyhead import load, prepare
from everyhead.generation.decoder import left_padded
from everyhead.generation.decoding import Row as Text
from everyhead.generation.decoding import write
from everyhead.generation.sampling import Sampler, Sampling
from everyhead.weights.gguf import gguf_named

transformers.logging.set_verbosity_error()
SUBJECTS = (
    "the capital of Norway", "how rain forms", "a haiku about snow", "prime numbers under 30",
    "why leaves are green", "Mount Everest", "the word 'serendipity'", "how to boil an egg",
    "the French Revolution", "a lost cat", "what a neuron is", "the speed of light",
    "two reasons to read", "the Great Wall", "how bread rises", "the planets in order",
    "a joke about ducks", "what inflation is", "the number 42", "how magnets work",
    "Shakespeare's plays", "a polite refusal", "the Amazon river", "why the sky is blue",
    "how to tie a knot",
)  # fmt: skip
ASKED = ("Tell me about {}.", "In one sentence: {}?")
FORM = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def ours(model: Any, prompts: list[list[int]], n_new: int) -> list[list[int]]:
    """New ids after each prompt, ended by the model's own end."""
    sampler = Sampler(
        Sampling(temperature=0),
        prompts,
        seeds=[(0, i) for i in range(len(prompts))],
        n_steps=n_new,
        vocab_size=model.config.vocab_size,
        device=torch.device("cpu"),
    )
    texts = [Text(n_new, frozenset({model.config.eos_id})) for _ in prompts]
    for _ in write(model, prompts, texts, sampler=sampler):
        pass
    return [text.ids for text in texts]


def theirs(model: Any, prompts: list[list[int]], n_new: int) -> list[list[int]]:
    """The same by `generate`."""
    ids, real = left_padded(prompts, torch.device("cpu"))
    end = model.config.eos_token_id
    with torch.inference_mode():
        found = model.generate(
            ids, attention_mask=real.long(), max_new_tokens=n_new, do_sample=False, pad_token_id=end
        )
    rows = found[:, ids.shape[1] :].tolist()
    return [row[: row.index(end)] if end in row else row for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.smollm2", description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=32)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    file = gguf_named("smollm2")
    if file is None:
        raise SystemExit("the Hub's folder lies in the cache, not the mirror's .gguf file")
    compare(file, args.new, args.rounds)


def compare(file: Path, n_new: int, n_rounds: int) -> None:
    model, tokenizer = load(file)
    other = transformers.LlamaForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    asked = [FORM.format(form.format(each)) for each in SUBJECTS for form in ASKED]
    prompts = [tokenizer.encode(text) for text in asked]
    same = 0
    for start in range(0, len(prompts), 10):
        piece = prompts[start : start + 10]
        pairs = zip(ours(model, piece, n_new), theirs(other, piece, n_new), strict=True)
        same += sum(one == two for one, two in pairs)
    print(f"{same} of {len(prompts)} greedy texts equal in the first {n_new} tokens")
    calls = {
        "everyhead": partial(ours, model),
        "everyhead prepared": partial(ours, prepare(model)),
        "everyhead prepared, bf16 weights": partial(ours, prepare(model, torch.bfloat16)),
        "Hugging Face": partial(theirs, other),
    }
    one = prompts[:1]  # its answer is longer than what is asked for
    timed = [System(n, partial(f, one, n_new), partial(f, one, 4)) for n, f in calls.items()]
    seconds = rounds(timed, n_rounds)
    for row in rows_of("generation", "smollm2, batch 1", seconds, n_new, "tokens/s"):
        print(row)


if __name__ == "__main__":
    main()
