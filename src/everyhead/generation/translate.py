"""Lines in, lines out: text → ids → search → ids → text, in the input's order.

Sentences of similar length are searched together, because a step of the decoder costs each open
sentence the same and padding costs as much as words. Blank lines never reach the model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch

from everyhead.data.batching import pad_rows
from everyhead.data.pair_tokenizer import PairTokenizer
from everyhead.data.sides import Sides, sides_of
from everyhead.data.text import is_blank
from everyhead.errors import UserError
from everyhead.generation.hypotheses import EMPTY, Hypothesis
from everyhead.generation.search import check_options, inference, search
from everyhead.generation.workers import at_once

# Called with the line's number from 1, its tokens, and how many of them are translated.
CutNotice = Callable[[int, int, int], None]
# Called with the number of lines that are translated so far.
Progress = Callable[[int], None]


class Translation(NamedTuple):
    """One translation of a line, and what the search says of it."""

    text: str
    hypothesis: Hypothesis


class Options(NamedTuple):
    """How to search, as in `generation.search.search`, and how much at once.

    batch_tokens: source tokens of all beams, padding included, that are searched together.
    chunk_lines: lines that are read before the first translation comes out.
    """

    beam: int = 1
    length_penalty: float = 1.0
    n_best: int = 1
    max_len: int | None = None
    eager: bool = False
    batch_tokens: int = 4096
    chunk_lines: int = 4096

    def check(self) -> None:
        """Raises UserError as `search` does, and for a batch or a chunk of nothing."""
        check_options(
            beam=self.beam,
            length_penalty=self.length_penalty,
            n_best=self.n_best,
            max_len=self.max_len,
        )
        if self.batch_tokens < 1 or self.chunk_lines < 1:
            raise UserError("batch_tokens and chunk_lines must be at least 1.")


def translate(
    model: Any,
    tokenizer: Any,
    lines: Iterable[str],
    *,
    beam: int = 1,
    length_penalty: float = 1.0,
    max_len: int | None = None,
    batch_tokens: int = 4096,
    on_cut: CutNotice | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """The best translation of each line, in order; a blank line gives an empty one.

    Raises:
        UserError: options that make no sense, or a tokenizer that is not the model's.
    """
    options = Options(
        beam=beam, length_penalty=length_penalty, max_len=max_len, batch_tokens=batch_tokens
    )
    found = translate_stream(model, tokenizer, lines, options, on_cut=on_cut, progress=progress)
    return [translations[0].text for translations in found]


def translate_stream(
    model: Any,
    tokenizer: Any,
    lines: Iterable[str],
    options: Options | None = None,
    *,
    on_cut: CutNotice | None = None,
    progress: Progress | None = None,
) -> Iterator[list[Translation]]:
    """The n best translations of each line, best first, as soon as a chunk of lines is done.

    `lines` may be endless: no more than `options.chunk_lines` of them are held at a time.

    Raises:
        UserError: options that make no sense, or a tokenizer that is not the model's.
    """
    options = options or Options()
    options.check()
    sides = check_sizes(model, tokenizer)
    return _stream(model, sides, iter(lines), options, on_cut, progress or (lambda done: None))


def _stream(
    model: Any,
    tokenizer: Sides,
    lines: Iterator[str],
    options: Options,
    on_cut: CutNotice | None,
    progress: Progress,
) -> Iterator[list[Translation]]:
    start = 0
    while chunk := list(islice(lines, options.chunk_lines)):
        ids = encoded(tokenizer, chunk, model.config.max_len, start + 1, on_cut)
        done, found = start + sum(not row for row in ids), [[EMPTY] for _ in chunk]
        together = list(batches([len(row) for row in ids], options.batch_tokens // options.beam))
        work = partial(_searched, model, ids, options)
        with inference(model):
            results = at_once(work, together, device_of(model))
            for places, hypotheses in zip(together, results, strict=True):
                for place, best in zip(places, hypotheses, strict=True):
                    found[place] = best
                done += len(places)
                progress(done)
        start += len(chunk)
        yield from (texts(tokenizer, best) for best in found)


def check_sizes(model: Any, tokenizer: Any) -> Sides:
    """The tokenizer by its sides.

    A published table may have more rows than its tokenizer has pieces, ours never has.

    Raises:
        UserError: the model does not translate, or a side has another vocabulary than the model.
    """
    if not hasattr(model, "encode") or not hasattr(model, "decode"):
        raise UserError(
            f"A {type(model).__name__} does not translate: it has no two halves, of which one "
            "reads and one writes. What goes on with a text is `everyhead generate`."
        )
    sides, config = sides_of(tokenizer), model.config
    wanted = (config.source_vocab_size or config.vocab_size, config.vocab_size)
    got = (sides.source.vocab_size, sides.target.vocab_size)
    published = not isinstance(tokenizer, PairTokenizer)
    if got != wanted and not (published and got[0] <= wanted[0] and got[1] <= wanted[1]):
        raise UserError(
            f"The tokenizer has {got[0]} source and {got[1]} target pieces and the model "
            f"{wanted[0]} and {wanted[1]}: they do not belong together."
        )
    return sides


def encoded(
    tokenizer: Sides,
    lines: Sequence[str],
    max_len: int,
    first: int = 1,
    on_cut: CutNotice | None = None,
) -> list[list[int]]:
    """Ids of each line and `</s>`; none for a blank line. `first`: the number of the first line.

    What is longer than max_len keeps its beginning, and `</s>` at the end.
    """
    side = tokenizer.source
    rows = side.encode_batch(["" if is_blank(line) else line for line in lines])
    for number, row in enumerate(rows, first):
        if len(row) + 1 > max_len:
            if on_cut is not None:
                on_cut(number, len(row), max_len - 1)
            del row[max_len - 1 :]
        if row:
            row.append(side.eos_id)
    return rows


def batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Places of similar length together, longest first, so that too little memory shows at once.

    rows · longest ≤ batch_tokens, or one row. Rows of length 0 are in no batch.
    """
    order = sorted((i for i, n in enumerate(lengths) if n), key=lambda i: -lengths[i])
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // lengths[order[start]])
        yield order[start : start + size]
        start += size


def _searched(
    model: Any, ids: list[list[int]], options: Options, places: list[int]
) -> list[list[Hypothesis]]:
    config = model.config
    source, real = pad_rows([ids[i] for i in places], config.source_pad_id)
    device = device_of(model)
    return search(
        model,
        source.to(device),
        real.to(device),
        beam=options.beam,
        length_penalty=options.length_penalty,
        n_best=options.n_best,
        max_len=options.max_len,
        eager=options.eager,
    )


def device_of(model: Any) -> torch.device:
    """Where the model's embeddings are."""
    return model.target_embed.weight.device


def texts(tokenizer: Sides, hypotheses: list[Hypothesis]) -> list[Translation]:
    """Each hypothesis as one line of text: a line break within it becomes a space."""
    plain = tokenizer.target.decode_batch([hypothesis.ids for hypothesis in hypotheses])
    one_line = [text.replace("\r", " ").replace("\n", " ") for text in plain]
    return [Translation(*pair) for pair in zip(one_line, hypotheses, strict=True)]
