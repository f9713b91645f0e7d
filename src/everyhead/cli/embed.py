"""everyhead embed: a vector for each line, or how alike lines are."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everyhead.cli.lines import given_lines
from everyhead.cli.options import Device, Threads
from everyhead.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

SIMILARITIES = ("matrix", "pairs")
ENDINGS = (".npy", ".tsv", ".jsonl")


def embed(
    run: Annotated[
        str,
        typer.Argument(metavar="RUN", help="A run, a model folder, or a name such as minilm."),
    ],
    sentence: Annotated[
        str | None,
        typer.Argument(metavar="SENTENCE", help="Without it: standard input, line by line."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Or texts, one a line.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write .npy, .tsv or .jsonl instead of to the screen."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help='JSON lines: {"text": …, "vector": […]}.')
    ] = False,
    similarity: Annotated[
        str | None,
        typer.Option(
            metavar="matrix|pairs",
            help="Cosines instead of vectors: of all lines with all, or of both texts in each "
            "line (text TAB text).",
        ),
    ] = None,
    batch_tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens that are read at once.")
    ] = 8192,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Sentence vectors: one line of numbers for each line of text, in the same order.

    The model folder says how they are pooled and whether they have length 1 (modules.json).
    """
    _check(out, as_json, similarity, batch_tokens)
    texts = given_lines("embed", run, sentence, file, "a sentence")
    pairs = _pairs(texts) if similarity == "pairs" else None
    lines = texts if pairs is None else [text for pair in pairs for text in pair]
    vectors = _vectors(run, lines, batch_tokens, device, threads)
    if similarity is None:
        _put(vectors, texts, out, as_json)
        return
    unit = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-12)
    if pairs is None:
        _put(unit @ unit.T, texts, out, as_json, name="similarity")
        return
    cosines = (unit[0::2] * unit[1::2]).sum(1, keepdim=True)
    if out is None and not as_json:
        for cosine, (first, second) in zip(cosines[:, 0].tolist(), pairs, strict=True):
            print(f"{cosine:.6f}\t{first}\t{second}")
        return
    _put(cosines, texts, out, as_json, name="similarity")


def _check(out: Path | None, as_json: bool, similarity: str | None, batch_tokens: int) -> None:
    if similarity is not None and similarity not in SIMILARITIES:
        raise UserError(f"--similarity is matrix or pairs; got {similarity!r}.")
    if out is not None and out.suffix not in ENDINGS:
        raise UserError(f"--out ends in {', '.join(ENDINGS)}, which says what is written: {out}.")
    if out is not None and as_json and out.suffix != ".jsonl":
        raise UserError(f"--json writes .jsonl, and --out says {out}: give one of them.")
    if batch_tokens < 1:
        raise UserError(f"--batch-tokens must be 1 or more; got {batch_tokens}.")


def _pairs(texts: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for number, text in enumerate(texts, 1):
        cells = text.split("\t")
        if len(cells) != 2:
            raise UserError(
                f"Line {number} has {len(cells)} columns; --similarity pairs reads two texts with "
                "one TAB between them."
            )
        pairs.append((cells[0], cells[1]))
    return pairs


def _vectors(
    run: str, lines: Sequence[str], batch_tokens: int, device: str, threads: int | None
) -> "Tensor":
    from everyhead.cli.opened_model import open_model
    from everyhead.generation.embed import embed as vectors_of
    from everyhead.models.prepare import prepare
    from everyhead.weights.sentences import sentence_rule

    opened = open_model(run, device=device, threads=threads)
    if opened.tokenizer is None:
        raise UserError(f"{run} has no tokenizer, so it reads no text.")
    rule, model = sentence_rule(run), prepare(opened.model)
    return vectors_of(model, opened.tokenizer, lines, rule=rule, batch_tokens=batch_tokens)


def _put(
    rows: "Tensor", texts: Sequence[str], out: Path | None, as_json: bool, name: str = "vector"
) -> None:
    """On the screen, or in the file whose ending says how."""
    from everyhead.files import atomic_path

    if out is not None and out.suffix == ".npy":
        import numpy as np

        with atomic_path(out) as temporary, open(temporary, "wb") as opened:
            np.save(opened, rows.numpy())
        return
    as_json = as_json or (out is not None and out.suffix == ".jsonl")
    lines = _json_lines(rows, texts, name) if as_json else _tsv_lines(rows)
    if out is None:
        for line in lines:
            print(line)
        return
    with atomic_path(out) as temporary, open(temporary, "wb") as opened:
        opened.writelines(line.encode("utf-8") + b"\n" for line in lines)


def _tsv_lines(rows: "Tensor") -> Iterator[str]:
    for row in rows:
        yield "\t".join(f"{x:.8g}" for x in row.tolist())


def _json_lines(rows: "Tensor", texts: Sequence[str], name: str) -> Iterator[str]:
    for text, row in zip(texts, rows, strict=True):
        numbers = [float(f"{x:.8g}") for x in row.tolist()]
        yield json.dumps({"text": text, name: numbers}, ensure_ascii=False)
