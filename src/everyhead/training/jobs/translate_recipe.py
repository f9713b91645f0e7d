"""The recipe of a translation model: its sections and their keys."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator

from everyhead.errors import UserError
from everyhead.models import MODELS
from everyhead.training.complaints import nearest, sentence
from everyhead.training.sections import (
    MOST_PIECES,
    Recipe,
    Rivals,
    Section,
    Share,
    Size,
    TrainRecipe,
)

FINGERPRINT = "splits_sha256"  # in data.json: of the pairs that the run learnt from


class DataRecipe(Section):
    """Where pairs come from, what is left out, and how they are cut."""

    corpus: str | None = None
    pairs: str | None = None
    source: str | None = None
    target: str | None = None
    validation: list[str] = Field(default_factory=list, max_length=2)  # a TSV, or two files
    test: list[str] = Field(default_factory=list, max_length=2)
    max_bytes: int = Field(default=1000, ge=1)
    max_ratio: float = Field(default=4.0, ge=1)
    validation_share: float = Field(default=0.05, gt=0, lt=0.5)
    test_share: float = Field(default=0.05, gt=0, lt=0.5)
    block: int = Field(default=50, ge=1)
    every: int = Field(default=20, ge=3)


class TokenizerRecipe(Section):
    """Subwords: one vocabulary for both sides, learnt together or side by side, or two."""

    kind: Literal["byte-fallback", "byte-level"] = "byte-fallback"
    vocab_size: int | tuple[int, int] = 8000
    shared: bool = True
    min_count: int = Field(default=3, ge=1)

    @field_validator("vocab_size")
    @classmethod
    def _not_endless(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        if max([value] if isinstance(value, int) else value) > MOST_PIECES:
            raise ValueError(f"a vocabulary has at most {MOST_PIECES:,} pieces; ask for fewer")
        return value


class ModelRecipe(Section):
    """A preset and what differs from it."""

    family: Literal["transformer", "recurrent-translator"] = "transformer"
    preset: str = "small"
    cell: str | None = None
    d_model: Size | None = None
    n_heads: Size | None = None
    n_layers: Size | None = None
    n_encoder_layers: Size | None = None
    n_decoder_layers: Size | None = None
    d_ff: Size | None = None
    dropout: Share | None = None
    attention_dropout: Share | None = None
    activation: str | None = None
    norm: str | None = None
    positions: str | None = None
    tie_output: bool | None = None
    max_len: int = Field(default=256, ge=2)

    def config(self, vocab_size: int, source_vocab_size: int | None) -> Any:
        """The model's numbers for these vocabularies.

        Raises:
            UserError: no such preset, or numbers that do not fit together.
        """
        family = MODELS[self.family]
        if self.preset not in family.presets:
            raise UserError(f"No preset {self.preset!r}; {nearest(self.preset, family.presets)}")
        fields = family.config.model_fields
        values: dict[str, Any] = dict(family.presets[self.preset])
        if self.n_layers is not None:
            values |= {f"n_{half}_layers": self.n_layers for half in ("encoder", "decoder")}
            values = {name: value for name, value in values.items() if name in fields}
        given = self.model_dump(exclude={"family", "preset", "n_layers"}, exclude_none=True)
        for name in given:
            if name not in fields:
                raise UserError(f"model.{name} is not a number of {self.family}; leave it out.")
        sizes = {"vocab_size": vocab_size, "source_vocab_size": source_vocab_size}
        try:
            config: Any = family.config.model_validate({**values, **given, **sizes})
        except ValidationError as error:
            raise UserError(sentence(error, ModelRecipe.model_fields, "model")) from error
        n_heads = getattr(config, "n_heads", 1)
        if config.d_model % n_heads:
            raise UserError(
                f"model.d_model {config.d_model} does not divide into {n_heads} heads; "
                "choose model.n_heads so that it does."
            )
        return config


class EvaluateRecipe(Section):
    """How translations are made and scored; `tokenize` is sacreBLEU's."""

    beam: int = Field(default=4, ge=1, le=1000)  # generation/search.py takes no more
    length_penalty: float = Field(default=1.0, ge=-10, le=10)  # as generation/search.py
    tokenize: str = "13a"
    max_sentences: int = Field(default=500, ge=1)  # of the validation set while training


class TranslateTrainRecipe(TrainRecipe):
    best: Literal["bleu", "loss"] = "bleu"


class TranslateRecipe(Recipe):
    """Learning to translate from sentence pairs."""

    rivals: ClassVar[tuple[Rivals, ...]] = (
        *Recipe.rivals,
        (("data.corpus",), ("data.pairs",), ("data.source", "data.target")),
    )

    job: Literal["translate"] = "translate"
    source_language: str | None = None
    target_language: str | None = None
    data: DataRecipe = DataRecipe()
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    model: ModelRecipe = ModelRecipe()
    train: TranslateTrainRecipe = TranslateTrainRecipe()
    evaluate: EvaluateRecipe = EvaluateRecipe()

    @classmethod
    def with_files(cls, values: dict[str, Any], files: list[Path]) -> None:
        """One file of pairs, or the sources and their translations."""
        data = values.setdefault("data", {})
        for key in ("corpus", "pairs", "source", "target"):
            data.pop(key, None)
        names = ("pairs",) if len(files) == 1 else ("source", "target")
        if len(files) > 2:
            raise UserError("--data of a translation takes one file of pairs, or two files.")
        data |= {name: str(path.resolve()) for name, path in zip(names, files, strict=True)}
