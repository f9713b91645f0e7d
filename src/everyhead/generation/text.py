"""Prompts in, texts out: text → ids → the decoding loop → ids → text, in the input's order.

Prompts of similar length are continued together. A text is the same whatever stands beside it in
the list: prompts of unequal length do not disturb one another, and a seed's random numbers belong
to each text alone.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch

from everyhead.errors import UserError
from everyhead.generation.decoder import Decoder, device_of, longest
from everyhead.generation.decoding import Reason, Row, write
from everyhead.generation.hypotheses import Hypothesis
from everyhead.generation.prompted_beam import prompted_beam
from everyhead.generation.sampling import Sampler
from everyhead.generation.tasks import (
    Options,
    Speller,
    Task,
    Written,
    check_pair,
    end_ids,
    groups,
    prompt_ids,
    task,
)
from everyhead.generation.text_stream import Alphabet, TextStream, Writing

# Called with the number of prompts that are done so far.
Progress = Callable[[int], None]


def rows_of(
    tasks: Sequence[Task], model: Decoder, tokenizer: Speller, options: Options
) -> list[Row]:
    """An empty text for each sample of each task."""
    alphabet, ends = Alphabet(tokenizer), options.ends | end_ids(model, tokenizer)
    return [
        Row(
            each.limit,
            ends,
            writing=Writing(TextStream(alphabet, each.prompt), options.stop),
            at_limit=each.at_limit,
        )
        for each in tasks
        for _ in range(options.samples)
    ]


def run(
    model: Decoder,
    tokenizer: Speller,
    tasks: Sequence[Task],
    rows: list[Row],
    options: Options,
    *,
    first: int = 0,
) -> Iterator[list[str]]:
    """Write the rows of these tasks; after each token what each row may show now.

    first: the number, among the samples of its prompt, of the first one that is written here.
    """
    prompts = [each.prompt for each in tasks]
    sampler = Sampler(
        options.sampling,
        [prompt for prompt in prompts for _ in range(options.samples)],
        seeds=_seeds(len(rows), options, first),
        n_steps=max(each.limit for each in tasks),
        vocab_size=tokenizer.vocab_size,
        device=device_of(model),
    )
    return write(model, prompts, rows, sampler=sampler, vocab_size=tokenizer.vocab_size)


def _seeds(n: int, options: Options, first: int) -> list[tuple[int, int]]:
    if options.seed is not None:
        return [(options.seed, first + i % options.samples) for i in range(n)]
    return [(seed, 0) for seed in torch.randint(2**62, (n,)).tolist()]


def texts(
    model: Decoder,
    tokenizer: Speller,
    prompts: Iterable[str],
    options: Options,
    *,
    progress: Progress | None = None,
) -> Iterator[list[Written]]:
    """`options.samples` texts after each prompt, in order, as soon as a chunk of prompts is done.

    `prompts` may be endless. A blank prompt gives empty texts.

    Raises:
        UserError: options that make no sense, a model that does not write, a prompt that is too
            long, with its number.
    """
    options.check()
    check_pair(model, tokenizer)
    return _texts(model, tokenizer, iter(prompts), options, progress or (lambda done: None))


def _texts(
    model: Decoder,
    tokenizer: Speller,
    prompts: Iterator[str],
    options: Options,
    progress: Progress,
) -> Iterator[list[Written]]:
    start = 0
    while chunk := list(islice(prompts, options.chunk_prompts)):
        places = [i for i, prompt in enumerate(chunk) if prompt.strip()]
        tasks = [_numbered(model, tokenizer, chunk[i], options, start + i + 1) for i in places]
        found = [[Written("", [], None)] * options.samples for _ in chunk]
        done = start + len(chunk) - len(places)
        for group in groups(tasks, options, longest(model)):
            together = [tasks[i] for i in group]
            written = _written(model, tokenizer, together, options)
            for i, several in zip(group, written, strict=True):
                found[places[i]] = several
            done += len(group)
            progress(done)
        start += len(chunk)
        yield from found


def _numbered(
    model: Decoder, tokenizer: Speller, prompt: str, options: Options, number: int
) -> Task:
    try:
        return task(model, prompt_ids(tokenizer, prompt), options)
    except UserError as error:
        raise UserError(f"Prompt {number}: {error}") from error


def _written(
    model: Decoder, tokenizer: Speller, tasks: Sequence[Task], options: Options
) -> list[list[Written]]:
    if options.beam > 1:
        return _searched(model, tokenizer, tasks, options)
    n, found = options.samples, list[Written]()
    at_once = _at_once(tasks, options)
    for first in range(0, n, at_once):
        some = options._replace(samples=min(at_once, n - first))
        rows = rows_of(tasks, model, tokenizer, some)
        for _ in run(model, tokenizer, tasks, rows, some, first=first):
            pass
        found += [Written(row.writing.text, row.ids, row.reason) for row in rows if row.writing]
    return [found[i : i + n] for i in range(0, len(found), n)]


def _at_once(tasks: Sequence[Task], options: Options) -> int:
    """How many samples are written together; those of one prompt alone may be too many."""
    if len(tasks) > 1:
        return options.samples
    width = len(tasks[0].prompt) + tasks[0].limit
    return max(1, min(options.samples, options.batch_tokens // width))


def _searched(
    model: Decoder, tokenizer: Speller, tasks: Sequence[Task], options: Options
) -> list[list[Written]]:
    """By beam search; tasks of one limit go together."""
    alphabet = Alphabet(tokenizer)
    found: list[list[Written]] = [[] for _ in tasks]
    ends = options.ends | end_ids(model, tokenizer)
    for limit in {each.limit for each in tasks}:
        places = [i for i, each in enumerate(tasks) if each.limit == limit]
        best = prompted_beam(
            model,
            [tasks[i].prompt for i in places],
            beam=options.beam,
            limit=limit,
            ends=ends,
            length_penalty=options.length_penalty,
            n_best=options.samples,
            vocab_size=tokenizer.vocab_size,
        )
        for i, several in zip(places, best, strict=True):
            found[i] = [_of_hypothesis(each, tasks[i], alphabet) for each in several]
    return found


def _of_hypothesis(hypothesis: Hypothesis, task: Task, alphabet: Alphabet) -> Written:
    writing = Writing(TextStream(alphabet, task.prompt))
    for number in hypothesis.ids:
        writing.push(number)
    writing.close()
    reason: Reason = "end" if hypothesis.ended else task.at_limit
    return Written(writing.text, hypothesis.ids, reason)
