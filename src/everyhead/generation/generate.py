"""The front door to texts: a prompt or a list of prompts, at once or as a stream."""

from collections.abc import Iterator, Sequence
from typing import Any

from everyhead.generation.decoding import Row
from everyhead.generation.sampling import Sampling
from everyhead.generation.tasks import Options, Speller, check_pair, prompt_ids, task
from everyhead.generation.text import Progress, rows_of, run, texts


def generate(
    model: Any,
    tokenizer: Speller,
    prompt: str | Sequence[str],
    *,
    max_new_tokens: int = 100,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    samples: int = 1,
    stop: str | Sequence[str] = (),
    beam: int = 1,
    length_penalty: float = 1.0,
    progress: Progress | None = None,
) -> Any:
    """What the model writes after a prompt; the prompt itself is not repeated.

    Args:
        model: a decoder, such as GPT2 or Llama.
        tokenizer: the model's.
        prompt: the beginning of a text, or a list of them.
        max_new_tokens: the text ends there, or before at the model's end-of-text, at a stop
            string, or at the model's longest length.
        temperature: 0 takes the most probable token each time, and so do beams; 0.8 by default.
            top_k, top_p, min_p and repetition_penalty as in generation/sampling.py.
        seed: the same seed and prompt give the same text, alone or in a list; equal prompts in a
            list give equal texts. None: another text each time.
        samples: how many texts after each prompt.
        stop: the text ends before the first of these strings.
        beam: more than 1 looks for the most probable text with so many beams.
        length_penalty: of the beam search; log p is divided by length to this power.
        progress: called with the number of prompts that are done.

    Returns:
        A string; for a list of prompts a list. With several samples each is a list of strings.

    Raises:
        UserError: options that make no sense, a model that does not write texts, a tokenizer that
            is not the model's, an empty prompt, or one that is too long.
    """
    if temperature is None:
        temperature = 0.8 if beam == 1 else 0.0
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    options = Options(max_new_tokens, sampling, seed, samples, stops, beam, length_penalty)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    if isinstance(prompt, str):
        check_pair(model, tokenizer)
        prompt_ids(tokenizer, prompt)  # here an empty one is a mistake, in a list it is a blank
    found = [
        [written.text for written in several]
        for several in texts(model, tokenizer, prompts, options, progress=progress)
    ]
    each = found if samples > 1 else [several[0] for several in found]
    return each[0] if isinstance(prompt, str) else each


def generate_stream(
    model: Any,
    tokenizer: Speller,
    prompt: str,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    seed: int | None = None,
    stop: str | Sequence[str] = (),
) -> Iterator[str]:
    """`generate` for one prompt, piece by piece as the text grows; all pieces are its text.

    A piece never ends within a character, and none is shown past a stop string.

    Raises:
        UserError: as `generate`, at once.
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    options = Options(max_new_tokens, sampling, seed, stop=stops)
    options.check()
    check_pair(model, tokenizer)
    _, pieces = streamed(model, tokenizer, prompt_ids(tokenizer, prompt), options)
    return pieces


def streamed(
    model: Any, tokenizer: Speller, prompt: list[int], options: Options
) -> tuple[Row, Iterator[str]]:
    """The row that will be written after the prompt's ids, and its pieces, which write it.

    Raises:
        UserError: the prompt leaves no room.
    """
    one = task(model, prompt, options)
    (row,) = rows_of([one], model, tokenizer, options)
    steps = run(model, tokenizer, [one], [row], options)
    return row, (piece for (piece,) in steps if piece)
