"""The laws as checks: each on one model, ours or Hugging Face's, with its smallest failing input.

    for finding in check(model):
        finding.law, finding.verdict, finding.sentence, finding.smallest, finding.layer

The model is read in eval mode, without gradients; afterwards it, and the random generators, are as
they were. Nothing is written but in a temporary folder.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from everyhead.errors import UserError
from everyhead.inspection import check_files, check_padding, check_search, check_time
from everyhead.inspection.check_compare import shown
from everyhead.inspection.check_decoders import subject_of_decoder
from everyhead.inspection.check_families import is_hugging_face
from everyhead.inspection.check_hugging_face import HuggingFaceSubject
from everyhead.inspection.check_own import EncoderDecoderSubject, Tools
from everyhead.inspection.check_pictures import subject_of_pictures
from everyhead.inspection.check_readers import subject_of_reader
from everyhead.inspection.subjects import Case, NotApplicable, Subject
from everyhead.inspection.verdicts import Failure, Finding


class Law(NamedTuple):
    """A law: how it is tried, and what is said when it holds and when it does not."""

    tried: Callable[[Subject], Failure | None]
    holds: str
    broken: str


LAWS = {
    "repeat": Law(
        check_padding.repeat,
        "Two evaluations of one batch are bit-equal.",
        "Two evaluations of one batch differ, as with dropout left on",
    ),
    "batch": Law(
        check_padding.batch,
        "Rows in a batch are what they are alone.",
        "A row in a batch is not what it is alone",
    ),
    "padding-right": Law(
        check_padding.padding_right,
        "Padding on the right, and a mask that hides nothing, change no output.",
        "Padding on the right, or its mask, changes what stands at real tokens",
    ),
    "padding-left": Law(
        check_padding.padding_left,
        "Padding on the left changes no output.",
        "Padding on the left changes what stands at real tokens",
    ),
    "under-padding": Law(
        check_padding.under_padding,
        "Other ids where the mask hides them change no output.",
        "What stands where the mask hides it reaches an output",
    ),
    "nan-padding": Law(
        check_padding.nan_padding,
        "NaN where the mask hides it reaches no output.",
        "NaN where the mask hides it reaches an output",
    ),
    "empty-row": Law(
        check_padding.empty_row,
        "A row in which nothing is real is finite and reads nothing.",
        "A row in which nothing is real reads its padding, or is not finite",
    ),
    "future": Law(
        check_time.future,
        "Changing a token leaves every output before it bit-equal.",
        "Changing a token changes an output before it",
    ),
    "cache": Law(
        check_time.cache,
        "Decoded with a cache, in chunks of 1, 2, 3 and 7, outputs are those of one pass.",
        "Decoded with a cache, outputs are not those of one pass",
    ),
    "reorder": Law(
        check_time.reorder,
        "A cache whose rows are moved goes on as the rows that they came from.",
        "A cache whose rows are moved goes on with another row's history",
    ),
    "greedy": Law(
        check_search.greedy,
        "With one beam a search takes the likeliest token every time.",
        "With one beam a search takes a token although another is likelier",
    ),
    "sum": Law(
        check_files.sums,
        "The loss of a padded batch is the sum over its real tokens, divided once.",
        "The loss of a padded batch is not the sum over its real tokens divided by their number",
    ),
    "save-load": Law(
        check_files.save_load,
        "Saved and loaded, parameters are the same and outputs equal.",
        "Saved and loaded, outputs are others",
    ),
    "ties": Law(
        check_files.ties,
        "Tied weights are one tensor, also after save and load.",
        "Tied weights are several tensors",
    ),
}


UNSTEADY = (
    "Its outputs differ from one evaluation to the next (repeat), so nothing can be compared."
)


def check(
    model: nn.Module | Subject,
    tokenizer: Any = None,
    laws: Sequence[str] | None = None,
    *,
    tools: Tools | None = None,
) -> list[Finding]:
    """Try the laws (all, or those named) on a model of ours or Hugging Face's, or a Subject.

    Raises:
        UserError: no such law, a model that is neither, or one that check cannot feed.
    """
    unknown = [law for law in laws or () if law not in LAWS]
    if unknown:
        raise UserError(f"There is no law {unknown[0]!r}; there are {', '.join(LAWS)}.")
    subject = subject_of(model, tokenizer, tools)
    return list(one_by_one(subject, list(LAWS) if laws is None else laws))


def one_by_one(subject: Subject, laws: Sequence[str]) -> Iterator[Finding]:
    """Each law's finding as soon as it is there; nothing is compared where nothing repeats.

    Raises:
        UserError: check cannot feed such a model.
    """
    with undisturbed(subject.model), subject.quiet():
        subject.fed()
    first = judged("repeat", subject)
    for name in laws:
        if name == "repeat":
            yield first
        elif not subject.memory.get("steady", True) and name != "ties":
            yield Finding(name, "not applicable", UNSTEADY)
        else:
            yield judged(name, subject)


def subject_of(model: Any, tokenizer: Any = None, tools: Tools | None = None) -> Subject:
    """The adapter that knows how this model is read.

    Raises:
        UserError: none does.
    """
    if isinstance(model, Subject):
        return model
    model = getattr(model, "_orig_mod", model)  # inside torch.compile's wrapper
    if is_hugging_face(model):
        return HuggingFaceSubject(model, tokenizer)
    if (looking := subject_of_pictures(model, tokenizer, tools)) is not None:
        return looking
    if (reading := subject_of_reader(model, tokenizer, tools)) is not None:
        return reading
    if (writing := subject_of_decoder(model, tokenizer, tools)) is not None:
        return writing
    if all(hasattr(model, name) for name in ("encode", "decode", "head", "cache", "config")):
        return EncoderDecoderSubject(model, tokenizer, tools=tools)
    raise UserError(
        f"check does not know how a {type(model).__name__} is read: give a model of everyhead's or "
        "of transformers', or a Subject (everyhead.inspection.subjects) that says how."
    )


def judged(name: str, subject: Subject) -> Finding:
    """One law's verdict."""
    with undisturbed(subject.model), subject.quiet():
        return _judged(name, subject)


def _judged(name: str, subject: Subject) -> Finding:
    law = LAWS[name]
    if name in subject.exempt:
        return Finding(name, "not applicable", subject.exempt[name])
    try:
        failure = law.tried(subject)
    except NotApplicable as reason:
        return Finding(name, "not applicable", str(reason))
    except check_files.Changed as reason:
        return Finding(name, "fail", str(reason))
    except UserError:
        raise
    except Exception as error:  # a model may stop with anything at all
        words = " ".join(str(error).split())[:300]
        last: Case | None = subject.memory.get("last case")
        words = f"The model stopped with {type(error).__name__}: {words}"
        return Finding(name, "fail", words, None if last is None else last.described())
    if failure is None:
        return Finding(name, "pass", law.holds)
    if name != "repeat" and failure.difference.narrow and rounding(law, subject, failure):
        amount = shown(failure.difference.amount)
        words = f"{law.holds[:-1]}, to rounding (by up to {amount}, and far less in float64)."
        return Finding(name, "pass", words)
    return Finding(name, "fail", sentence(law, failure), failure.described(), failure.layer)


def rounding(law: Law, subject: Subject, failure: Failure) -> bool:
    """Does a small difference shrink at least tenfold in a copy that computes in float64?"""
    try:
        again = law.tried(subject.wide())
    except Exception:  # whatever keeps it from being tried leaves the failure as it is
        return False
    return again is None or again.difference.amount < failure.difference.amount / 10


def sentence(law: Law, failure: Failure) -> str:
    """What is broken, by how much, and from which layer on."""
    amount = shown(failure.difference.amount)
    by = "not a number" if isinstance(amount, str) else f"by up to {amount:g}"
    words = f"{law.broken}: {failure.difference.field} {by}"
    if failure.layer is not None:
        words += (
            f", first seen {failure.layer}"
            if " " in failure.layer
            else (f", first seen in {failure.layer}")
        )
    return words + (f"; {failure.reason}" if failure.reason else "") + "."


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """In eval mode, without gradients; modes and random generators come back as they were."""
    modes = [(part, part.training) for part in model.modules()]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([d for d in devices if d is not None]):
            yield
    finally:
        for part, training in modes:
            part.training = training
