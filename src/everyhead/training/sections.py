"""The sections of a recipe and their keys; units stand beside the numbers."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from everyhead.errors import UserError
from everyhead.models.transformer import PRESETS, TransformerConfig
from everyhead.training.complaints import nearest, sentence
from everyhead.training.optimizers import OPTIMIZERS
from everyhead.training.precision import PRECISIONS

Share = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


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


class ModelRecipe(Section):
    """A preset and what differs from it."""

    preset: str = "small"
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

    def config(self, vocab_size: int, source_vocab_size: int | None) -> TransformerConfig:
        """The model's numbers for these vocabularies.

        Raises:
            UserError: no such preset, or numbers that do not fit together.
        """
        if self.preset not in PRESETS:
            raise UserError(f"No preset {self.preset!r}; {nearest(self.preset, PRESETS)}")
        values: dict[str, Any] = dict(PRESETS[self.preset])
        if self.n_layers is not None:
            values |= {"n_encoder_layers": self.n_layers, "n_decoder_layers": self.n_layers}
        given = self.model_dump(exclude={"preset", "n_layers"}, exclude_none=True)
        sizes = {"vocab_size": vocab_size, "source_vocab_size": source_vocab_size}
        try:
            config = TransformerConfig.model_validate({**values, **given, **sizes})
        except ValidationError as error:
            raise UserError(sentence(error, ModelRecipe.model_fields, "model")) from error
        if config.d_model % config.n_heads:
            raise UserError(
                f"model.d_model {config.d_model} does not divide into {config.n_heads} heads; "
                "choose model.n_heads so that it does."
            )
        return config


class TrainRecipe(Section):
    """The optimizer's steps. Everything is counted in steps, nothing in seconds."""

    max_steps: int = Field(default=10_000, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)  # rows × longest, of either side
    batch_sentences: int | None = Field(default=None, ge=1)
    sort: bool | None = None  # like lengths together: by default with batch_tokens
    accumulate: int = Field(default=1, ge=1)
    optimizer: Literal[OPTIMIZERS] = "adam"  # type: ignore[valid-type]
    betas: tuple[Share, Share] = (0.9, 0.98)
    eps: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["cosine", "inverse_square_root"] = "cosine"
    peak: float = Field(default=1e-3, gt=0)  # of the cosine
    low: float = Field(default=0.0, ge=0)  # where the cosine ends
    factor: float = Field(default=1.0, gt=0)  # of the inverse square root
    warmup: int = Field(default=400, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    clip: float = Field(default=1.0, ge=0)  # the gradients' norm; 0 does not clip
    precision: Literal[PRECISIONS] = "auto"  # type: ignore[valid-type]
    compile: bool = False
    seed: int = Field(default=1, ge=0)
    log_every: int = Field(default=50, ge=1)
    evaluate_every: int = Field(default=500, ge=1)
    save_every: int = Field(default=500, ge=1)
    best: Literal["bleu", "loss"] = "bleu"
    max_bad_steps: int = Field(default=5, ge=1)  # non-finite in a row

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.batch_tokens is not None and self.batch_sentences is not None:
            raise ValueError("give either batch_tokens or batch_sentences, and not both")
        return self


class EvaluateRecipe(Section):
    """How translations are made and scored; `tokenize` is sacreBLEU's."""

    beam: int = Field(default=4, ge=1)
    length_penalty: float = 1.0
    tokenize: str = "13a"
    max_sentences: int = Field(default=500, ge=1)  # of the validation set while training
