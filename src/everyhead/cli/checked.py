"""`everyhead.check`: the laws of inspection with what other floors hand over.

Searching, saving and summing a loss are generation's, weights' and training's; a run also resumes.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everyhead.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from everyhead.inspection.check_own import Tools
    from everyhead.inspection.verdicts import Finding
    from everyhead.models.transformer import Transformer

RESUME = "resume"


@dataclass(frozen=True)
class Checked:
    """A model to check, what it is called, and its run where it has one."""

    name: str
    model: Any
    tokenizer: Any = None
    run: Path | None = None


def check(
    model: "nn.Module | Path | str", tokenizer: Any = None, laws: Sequence[str] | None = None
) -> "list[Finding]":
    """Try every law on a model, ours or Hugging Face's: an object, a folder, a run, a name.

    laws: names of those to try, all by default; `law_names()` lists them. The model comes back
    as it was; a run is tried on a copy.

    Raises:
        UserError: no such law, folder or name, or a model that nobody knows how to read.
    """
    if isinstance(model, str | Path):
        return list(findings(open_model(model), laws))
    return list(findings(Checked(type(model).__name__, model, tokenizer), laws))


def law_names() -> list[str]:
    """Every law, in the order in which they are tried."""
    from everyhead.inspection.checks import LAWS

    return [*LAWS, RESUME]


def findings(checked: Checked, laws: Sequence[str] | None = None) -> "Iterator[Finding]":
    """Each law's verdict as soon as it is there; `resume` is tried where there is a run.

    Raises:
        UserError: as `check`, at the first of them.
    """
    import torch

    from everyhead.cli.resumed import resumed
    from everyhead.inspection import checks

    names = law_names()
    for law in laws or ():
        if law not in names:
            raise UserError(f"There is no law {law!r}; there are {', '.join(names)}.")
    wanted = [name for name in names if laws is None or name in laws]
    plain = [name for name in wanted if name != RESUME]
    if plain:
        subject = checks.subject_of(checked.model, checked.tokenizer, tools())
        yield from checks.one_by_one(subject, plain)
    if RESUME in wanted:
        with torch.random.fork_rng():
            last = resumed(checked.run)
        yield last


def open_model(place: Path | str, *, device: str = "cpu", threads: int | None = None) -> Checked:
    """A run of ours, a model folder of ours, or whatever transformers opens by folder or name.

    Raises:
        UserError: as `open_run` and `open_foreign`.
    """
    from everyhead.cli.opened import choose_device, choose_threads, open_run
    from everyhead.training.run import is_run
    from everyhead.weights.gguf import gguf_named

    folder = Path(place)
    if (file := gguf_named(place)) is not None:
        opened = open_run(file, device=device, threads=threads)
        return Checked(str(place), opened.model, opened.tokenizer)
    if folder.is_dir() and (is_run(folder) or written_here(folder)):
        opened = open_run(folder, device=device, threads=threads)
        run = folder if is_run(folder) else None
        return Checked(str(place), opened.model, opened.tokenizer, run)
    from everyhead.weights.foreign import open_foreign

    choose_threads(threads)
    where = choose_device(device)
    foreign = open_foreign(place)
    return Checked(str(place), foreign.model.to(where), foreign.tokenizer)


def written_here(folder: Path) -> bool:
    """Did everyhead write it, with a tokenizer, or is it a published translation model?"""
    from everyhead.data.sentencepiece_tokenizer import SentencePiecePair
    from everyhead.files import read_json

    config = folder / "config.json"
    if not config.is_file():
        return False
    return "tokenizer_sha256" in read_json(config) or SentencePiecePair.found_in(folder)


def tools() -> "Tools":
    """What inspection needs of the floors beside it."""
    from everyhead.inspection.check_own import Tools

    search = {"greedy search": _greedy, "beam search": _beam}
    return Tools(search=search, save_and_load=_save_and_load, loss=_loss)


def _greedy(
    model: "Transformer", source: "Tensor", real: "Tensor | None", n: int
) -> list[list[int]]:
    from everyhead.generation.search import search

    return [row[0].ids for row in search(model, source, real, beam=1, max_len=n)]


def _beam(model: "Transformer", source: "Tensor", real: "Tensor | None", n: int) -> list[list[int]]:
    """The machinery of many beams, with one."""
    import torch

    from everyhead.generation.beam import Stop, beam_search

    real = torch.ones_like(source, dtype=torch.bool) if real is None else real
    found = beam_search(model, source, real, beam=1, stop=Stop(1, 0.0), max_len=n)
    return [row[0].ids for row in found]


def _save_and_load(model: "Transformer", tokenizer: Any) -> "Transformer":
    from everyhead.models.swap import method_of
    from everyhead.weights.folder import load_model, save_model

    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder, tokenizer=tokenizer)
        again = load_model(folder, attention=method_of(model))
        return again.to(next(model.parameters()).dtype)


def _loss(model: "Transformer", ids: "dict[str, Tensor]", real: Any) -> tuple[float, int]:
    import torch

    from everyhead.data.batching import Batch
    from everyhead.training.losses import batch_loss

    target, masks = ids["target"], {}
    for side, x in ids.items():
        given = real[side]
        masks[side] = torch.ones_like(x, dtype=torch.bool) if given is None else given
    n = int(masks["target"].sum())
    batch = Batch(
        ids["source"], masks["source"], target, target, masks["target"], n, target.shape[0]
    )
    loss = batch_loss(model, batch, 0.0)
    return float(loss.nll), loss.n_tokens
