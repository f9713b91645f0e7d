"""What the recipes of language models share: text, a tokenizer learnt of it, a family, rows."""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from everyhead.data.documents import (
    TEXT_CORPORA,
    Document,
    TextSplits,
    lines_as_documents,
    load_documents,
    n_bytes,
    read_documents,
    split_documents,
)
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.training.complaints import nearest, sentence
from everyhead.training.sections import MOST_PIECES, Section, Share, Size


class TextRecipe(Section):
    """Running text: a corpus or files, and how it is cut into three sets."""

    corpus: str | None = None
    files: list[str] = Field(default_factory=list)
    documents: Literal["file", "line"] = "file"  # what of a user's files is one document
    split: Literal["document", "block"] | None = None  # by default document where there are 20
    validation_share: float = Field(default=0.05, gt=0, lt=0.5)
    test_share: float = Field(default=0.05, gt=0, lt=0.5)
    block_bytes: int = Field(default=8000, ge=100)


class PieceRecipe(Section):
    """The tokenizer that is learnt from the training text."""

    kind: Literal["byte-level", "wordpiece", "unigram"] = "byte-level"
    vocab_size: int = Field(default=4000, ge=2, le=MOST_PIECES)
    lowercase: bool = False  # wordpiece alone


class FamilyRecipe(Section):
    """A preset of a family and what differs from it; `max_len` is also how long a row is."""

    family: str = "gpt2"
    preset: str = "tiny"
    d_model: Size | None = None
    n_heads: Size | None = None
    n_kv_heads: Size | None = None
    n_layers: Size | None = None
    d_ff: Size | None = None
    kernel_size: Size | None = None
    n_features: Size | None = None
    memory_len: Size | None = None
    segment_len: Size | None = None
    windows: Size | None = None
    cell: str | None = None
    dropout: Share | None = None
    attention_dropout: Share | None = None
    max_len: int = Field(default=128, ge=2)

    def config(self, families: tuple[str, ...], **given: Any) -> BaseModel:
        """The model's numbers; `given` are those that follow from the tokenizer.

        Raises:
            UserError: no such family or preset, a number it does not have, or that does not fit.
        """
        if self.family not in families:
            raise UserError(f"No family {self.family!r}; {nearest(self.family, families)}")
        family = MODELS[self.family]
        if self.preset not in family.presets:
            raise UserError(f"No preset {self.preset!r}; {nearest(self.preset, family.presets)}")
        own = self.model_dump(exclude={"family", "preset"}, exclude_none=True)
        fields = family.config.model_fields
        for name in own:
            if name not in fields and name != "max_len":
                raise UserError(f"model.{name} is not a number of {self.family}; leave it out.")
        values = {**family.presets[self.preset], **own, **given}
        values = {name: value for name, value in values.items() if name in fields}
        try:
            return family.config.model_validate(values)
        except ValidationError as error:
            raise UserError(sentence(error, fields, "model")) from error


class TextEvaluateRecipe(Section):
    """How much of a held-out set is scored: its first so many bytes, by default all."""

    max_bytes: int | None = Field(default=None, ge=1)


def read_texts(data: TextRecipe) -> tuple[TextSplits, dict[str, Any]]:
    """The recipe's documents, cut, and the report of it.

    Raises:
        UserError: no such corpus, a file is missing or is no text, or there is too little.
    """
    origin: dict[str, Any] = {"files": data.files}
    if data.files:
        documents = _own(data)
    elif data.corpus is None:
        raise UserError("The recipe names no text: give data.corpus, or --data FILE.")
    else:
        documents = load_documents(data.corpus)
        corpus = TEXT_CORPORA[data.corpus]
        origin = {"corpus": data.corpus, "attribution": corpus.attribution}
        origin["licence"] = corpus.licence
    splits = split_documents(
        documents,
        by=data.split,
        validation=data.validation_share,
        test=data.test_share,
        block_bytes=data.block_bytes,
    )
    sizes = {name: [len(part), n_bytes(part)] for name, part in splits._asdict().items()}
    return splits, {"origin": origin, "documents_and_bytes": sizes}


def _own(data: TextRecipe) -> list[Document]:
    paths = [Path(name) for name in data.files]
    if data.documents == "file":
        return read_documents(paths)
    found = [document for path in paths for document in lines_as_documents(path)]
    if not found:
        raise UserError(f"There is no text to learn from in {', '.join(data.files)}.")
    return found


def sizes_text(report: dict[str, Any]) -> list[str]:
    """Lines for people: whose text it is, and how much of it is in each set."""
    origin = report["origin"]
    lines = [f"Data: {origin['attribution']}"] if origin.get("attribution") else []
    parts = (
        f"{name} {size:,} bytes ({n:,} {'document' if n == 1 else 'documents'})"
        for name, (n, size) in report["documents_and_bytes"].items()
    )
    return [*lines, "Text: " + ", ".join(parts)]


def learnt(recipe: PieceRecipe, splits: TextSplits) -> TextTokenizer:
    """A tokenizer of the training documents' lines."""
    lines = (line for document in splits.train for line in document.text.splitlines(keepends=True))
    kept = recipe.lowercase if recipe.kind == "wordpiece" else True
    return TextTokenizer.train(
        lines, kind=recipe.kind, vocab_size=recipe.vocab_size, lowercase=kept
    )
