"""The sections of a recipe that all jobs share, and their keys; units stand beside the numbers."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from everyhead.training.optimizers import OPTIMIZERS
from everyhead.training.precision import PRECISIONS

Share = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int, Field(ge=1)]
MOST_PIECES = 10_000_000  # of a vocabulary
Rivals = tuple[tuple[str, ...], ...]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_switch_is_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Python counts with true as with 1."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and bool not in (kind, *get_args(kind)):
            raise ValueError(f"{str(value).lower()} is a switch, and this key is none")
        return value


class TrainRecipe(Section):
    """The optimizer's steps. Everything is counted in steps, nothing in seconds."""

    max_steps: int = Field(default=10_000, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)  # rows × longest, of either side
    batch_sentences: int | None = Field(default=None, ge=1)  # rows
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
    seed: int = Field(default=1, ge=0, lt=2**63)
    log_every: int = Field(default=50, ge=1)
    evaluate_every: int = Field(default=500, ge=1)
    save_every: int = Field(default=500, ge=1)
    best: str = "loss"  # which entry of the validation's row says which weights to keep
    max_bad_steps: int = Field(default=5, ge=1)  # non-finite in a row

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.batch_tokens is not None and self.batch_sentences is not None:
            raise ValueError("give either batch_tokens or batch_sentences, and not both")
        return self


class FineTuneRecipe(TrainRecipe):
    """Going on from published weights: what stays as it is, and what learns how fast.

    Howard & Ruder 2018 (1801.06146) section 3.2: lower layers learn slower.
    """

    freeze_embeddings: bool = False  # everything below the first layer
    freeze_layers: int = Field(default=0, ge=0)  # the first so many, and then the embeddings too
    layer_decay: float = Field(default=1.0, gt=0, le=1)  # rate of a layer: times this a layer down
    head_rate: float = Field(default=1.0, gt=0)  # of what is new: times this


class Recipe(Section):
    """One trainable thing; each job adds its own sections."""

    # Of each row at most one group is given; an override of one leaves the others out.
    rivals: ClassVar[tuple[Rivals, ...]] = ((("train.batch_tokens",), ("train.batch_sentences",)),)

    name: str
    job: str
    about: str = ""
    train: TrainRecipe = TrainRecipe()

    @classmethod
    def with_files(cls, values: dict[str, Any], files: list[Path]) -> None:
        """Put a user's own files (`--data`) where the built-in data stood."""
        data = values.setdefault("data", {})
        data.pop("corpus", None)
        data["files"] = [str(path.resolve()) for path in files]
