"""everyhead generate: texts after prompts, a conversation, or labels after examples."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from everyhead.cli import generate_options as options
from everyhead.cli.options import Device, Threads, utf8
from everyhead.cli.writing import (
    counting,
    is_terminal,
    lines_of,
    note,
    one_line,
    show,
    standard_input,
    unescaped,
)
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.opened_model import OpenedModel
    from everyhead.generation.tasks import Options, Written


def generate(
    run: options.Model,
    prompt: options.Prompt = None,
    prompts: options.Prompts = None,
    max_new_tokens: options.MaxNewTokens = 200,
    temperature: options.Temperature = None,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    repetition_penalty: options.Penalty = 1.0,
    seed: options.Seed = None,
    samples: options.Samples = 1,
    stop: options.Stop = None,
    beam: options.BeamWidth = 1,
    length_penalty: options.Penalised = 1.0,
    chat: options.Chat = False,
    system: options.System = None,
    shots: options.Shots = None,
    labels: options.Labels = None,
    template: options.Template = None,
    mean: options.Mean = False,
    as_json: options.Json = False,
    batch_tokens: options.BatchTokens = 8192,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Go on with a text, converse, or choose labels by examples.

    The text after one prompt is shown as it is written. Several texts (--prompts, --samples) come
    one a line, line breaks in them as \\n. Without PROMPT all of standard input is the prompt; with
    --shots or --labels each of its lines is a text to judge, with its label after a tab if known.
    """
    from everyhead.generation.sampling import Sampling
    from everyhead.generation.tasks import Options

    if temperature is None:
        temperature = 0.8 if beam == 1 else 0.0
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    stops = tuple(unescaped(utf8(each)) for each in stop or ())
    asked = Options(max_new_tokens, sampling, seed, samples, stops, beam, length_penalty)
    asked = asked._replace(batch_tokens=batch_tokens)
    asked.check()
    judging = shots is not None or labels is not None
    _check_together(chat, judging, system, template, prompt, prompts)
    prompt = None if prompt is None else utf8(prompt)
    if judging:
        from everyhead.cli.judging import judge, task_of

        task = task_of(shots, labels, template)
        texts = [prompt] if prompt is not None else lines_of(prompts or Path("-"))
        judge(open_writer(run, device, threads), task, texts, mean, batch_tokens, as_json)
    elif chat:
        from everyhead.cli.conversing import converse

        converse(open_writer(run, device, threads), asked, prompt, utf8(system or ""))
    elif prompts is not None:
        _several(open_writer(run, device, threads), lines_of(prompts), asked, as_json)
    else:
        _one(run, prompt, asked, as_json, device, threads)


def _check_together(
    chat: bool,
    judging: bool,
    system: str | None,
    template: str | None,
    prompt: str | None,
    prompts: Path | None,
) -> None:
    """Raises UserError for options of which one would be ignored."""
    if prompt is not None and prompts is not None:
        raise UserError("Give a PROMPT or a file of --prompts, not both.")
    if chat and judging:
        raise UserError("--chat converses, --shots and --labels judge texts: give one of them.")
    if chat and prompts is not None:
        raise UserError("--chat answers one message after another: leave --prompts out.")
    if system is not None and not chat:
        raise UserError("--system is for --chat, which has a place for it: leave it out, or chat.")
    if template is not None and not judging:
        raise UserError("--template says how --shots are written: leave it out, or give --shots.")


def open_writer(place: str, device: str, threads: int | None) -> "OpenedModel":
    """A model that goes on with texts, laid out for that.

    Raises:
        UserError: there is no such model, or it does something else.
    """
    from everyhead.cli.opened_model import open_model
    from everyhead.generation.decoder import writes
    from everyhead.models.prepare import prepare

    opened = open_model(place, device=device, threads=threads)
    if not writes(opened.model):
        other = "translate" if hasattr(opened.model, "encode") else None
        name = type(opened.model).__name__
        remedy = f"use `everyhead {other} {place}`" if other else "give a decoder, such as smollm2"
        raise UserError(f"{place} holds a {name}, which does not go on with a text: {remedy}.")
    return opened._replace(model=prepare(opened.model))


def _one(
    run: str,
    prompt: str | None,
    asked: "Options",
    as_json: bool,
    device: str,
    threads: int | None,
) -> None:
    """The text after one prompt; after several that are typed by hand."""
    from everyhead.generation.tasks import prompt_ids

    by_hand = prompt is None and is_terminal(sys.stdin)
    if not by_hand:
        prompt = standard_input() if prompt is None else prompt
        if not prompt.strip():
            raise UserError("The prompt is empty: give the beginning of a text.")
    opened = open_writer(run, device, threads)
    if by_hand:
        print("Type the beginning of a text and Enter; Ctrl-D ends.", file=sys.stderr)
        for line in sys.stdin:
            if line.strip():
                _go_on(opened, line.removesuffix("\n"), asked, as_json)
        return
    assert prompt is not None
    prompt_ids(opened.tokenizer, prompt)
    _go_on(opened, prompt, asked, as_json)


def _go_on(opened: "OpenedModel", prompt: str, asked: "Options", as_json: bool) -> None:
    from everyhead.generation.generate import streamed
    from everyhead.generation.tasks import check_pair, prompt_ids

    if as_json or asked.samples > 1 or asked.beam > 1:
        _several(opened, [prompt], asked, as_json)
        return
    check_pair(opened.model, opened.tokenizer)
    ids = prompt_ids(opened.tokenizer, prompt)
    row, pieces = streamed(opened.model, opened.tokenizer, ids, asked)
    show(pieces)
    if row.reason == "context":
        _say_full(opened)


def _several(
    opened: "OpenedModel", prompts: Sequence[str], asked: "Options", as_json: bool
) -> None:
    """Each text as a line."""
    from everyhead.generation.text import texts

    full = 0
    with counting(len(prompts), "prompts") as count:
        found = texts(opened.model, opened.tokenizer, prompts, asked, progress=count)
        for prompt, several in zip(prompts, found, strict=True):
            for written in several:
                print(_object(prompt, written) if as_json else one_line(written.text), flush=True)
                full += written.reason == "context"
    if full:
        _say_full(opened, full)


def _object(prompt: str, written: "Written") -> str:
    values = {
        "prompt": prompt,
        "text": written.text,
        "tokens": len(written.ids),
        "ended_by": written.reason,
    }
    return json.dumps(values, ensure_ascii=False)


def _say_full(opened: "OpenedModel", n: int = 1) -> None:
    which = "the text ends there" if n == 1 else f"{n} texts end there"
    limit = opened.model.config.max_len
    note(f"the model reads at most {limit:,} tokens, prompt and text together, and {which}.")
