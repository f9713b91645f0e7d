"""What is asked of a decoder: options, each prompt's ids and limit, and which go together."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from everyhead.errors import UserError
from everyhead.generation.decoder import Decoder, room, writes
from everyhead.generation.decoding import Reason
from everyhead.generation.sampling import Sampling
from everyhead.generation.search import check_options


class Speller(Protocol):
    """What generation uses of a text tokenizer."""

    @property
    def inner(self) -> Any: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_id(self) -> int | None: ...
    def encode(self, text: str, pair: str | None = None, *, special: bool = True) -> list[int]: ...
    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


class Written(NamedTuple):
    """A text, its ids without what ended it, and why it ended (decoding.Reason); "" if unread."""

    text: str
    ids: list[int]
    reason: Reason | None


class Options(NamedTuple):
    """What to write after a prompt.

    seed: None draws a new one for each text from torch's own random numbers. samples: texts a
    prompt. ends: further ids that end a text. batch_tokens: positions that are held at once.
    """

    max_new_tokens: int = 100
    sampling: Sampling = Sampling()
    seed: int | None = None
    samples: int = 1
    stop: tuple[str, ...] = ()
    beam: int = 1
    length_penalty: float = 1.0
    ends: frozenset[int] = frozenset()
    batch_tokens: int = 8192
    chunk_prompts: int = 256

    def check(self) -> None:
        """Raises UserError where options make no sense."""
        self.sampling.check()
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens is {self.max_new_tokens}; ask for at least 1 token.")
        if self.samples < 1:
            raise UserError(f"samples is {self.samples}; ask for at least 1 text a prompt.")
        if any(not stop for stop in self.stop):
            raise UserError("A stop string is empty, so nothing could be written before it.")
        if self.batch_tokens < 1 or self.chunk_prompts < 1:
            raise UserError("batch_tokens and chunk_prompts must be at least 1.")
        if self.beam == 1:
            return
        check_options(beam=self.beam, length_penalty=self.length_penalty, n_best=self.samples)
        if self.stop or self.sampling != Sampling(temperature=0):
            raise UserError(
                "A beam search looks for the most probable text: leave out stop strings and what "
                "belongs to sampling, and give temperature 0."
            )


def check_pair(model: Any, tokenizer: Speller) -> None:
    """
    Raises:
        UserError: the model does not write texts, or the tokenizer is another model's.
    """
    if not writes(model):
        name = type(model).__name__
        raise UserError(
            f"{name} does not go on with a text; `generate` needs a decoder, such as GPT2 or Llama."
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise UserError(
            f"The tokenizer has {tokenizer.vocab_size} tokens and the model "
            f"{model.config.vocab_size}: they do not belong together."
        )


def end_ids(model: Decoder, tokenizer: Speller) -> frozenset[int]:
    """Ids that end a text: those of the model's config, and the tokenizer's."""
    more = getattr(model.config, "more_eos_ids", ())
    several = (getattr(model.config, "eos_id", None), *more, tokenizer.eos_id)
    return frozenset(number for number in several if number is not None)


def prompt_ids(tokenizer: Speller, prompt: str) -> list[int]:
    """Ids of a prompt with what its tokenizer puts before a text; nothing ends it.

    Raises:
        UserError: the prompt is empty.
    """
    ids, end = tokenizer.encode(prompt), tokenizer.eos_id
    plain = tokenizer.encode(prompt, special=False)
    for _ in range(_last(ids, end) - _last(plain, end)):
        ids.pop()
    if not plain:
        raise UserError("The prompt is empty: give the beginning of a text.")
    return ids


def _last(ids: Sequence[int], number: int | None) -> int:
    """How often ids end with this one."""
    return next((n for n, each in enumerate(reversed(ids)) if each != number), len(ids))


class Task(NamedTuple):
    """What one prompt asks for."""

    prompt: list[int]
    limit: int
    at_limit: Reason


def task(model: Decoder, prompt: list[int], options: Options) -> Task:
    """Raises UserError if the prompt leaves no room."""
    left = room(model, prompt)
    if left < options.max_new_tokens:
        return Task(prompt, left, "context")
    return Task(prompt, options.max_new_tokens, "length")


def groups(tasks: Sequence[Task], options: Options, max_len: int) -> Iterator[list[int]]:
    """Places of tasks that go together, longest first.

    Rows · (longest prompt + new tokens) ≤ batch_tokens, or one prompt; each sample or beam of a
    prompt is a row. The longest prompt and the most new tokens of a group fit into the model
    together, so that no row that is done but still in the batch runs out of positions.
    """
    order = sorted(range(len(tasks)), key=lambda i: -len(tasks[i].prompt))
    group: list[int] = []
    for i in order:
        if group:
            width = len(tasks[group[0]].prompt) + max(tasks[j].limit for j in (*group, i))
            rows = (len(group) + 1) * max(options.samples, options.beam)
            if rows * width > options.batch_tokens or width > max_len:
                yield group
                group = []
        group.append(i)
    if group:
        yield group
