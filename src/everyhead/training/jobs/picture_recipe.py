"""What the recipes of picture models share: sizes of the model, moves of the pictures."""

from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from everyhead.data.image_batches import Moves
from everyhead.data.image_preparation import Preparation
from everyhead.errors import UserError
from everyhead.training.complaints import nearest, sentence
from everyhead.training.sections import Section, Share, Size

Config = TypeVar("Config", bound=BaseModel)
Sides = int | tuple[Size, Size]
GREY = (0.5,)


class MovesRecipe(Section):
    """How training pictures differ from epoch to epoch."""

    shift: int = Field(default=0, ge=0)  # pixels, up to
    flip: bool = False  # left and right

    def moves(self) -> Moves:
        return Moves(self.shift, self.flip)


class PictureModelRecipe(Section):
    """A preset and what differs from it, or published weights to begin with."""

    preset: str = "tiny"
    start: str | None = None  # a folder or a name to go on from; then no preset counts
    image_size: Sides | None = None
    patch_size: Sides | None = None
    n_channels: Size | None = None
    d_model: Size | None = None
    n_heads: Size | None = None
    n_layers: Size | None = None
    d_ff: Size | None = None
    dropout: Share | None = None
    attention_dropout: Share | None = None
    activation: str | None = None

    def config(self, kind: type[Config], presets: dict[str, dict[str, Any]], **more: Any) -> Config:
        """The model's numbers.

        Raises:
            UserError: no such preset, or numbers that do not fit together.
        """
        if self.preset not in presets:
            raise UserError(f"No preset {self.preset!r}; {nearest(self.preset, presets)}")
        given = self.model_dump(exclude={"preset", "start", "family"}, exclude_none=True)
        try:
            config = kind.model_validate({**presets[self.preset], **given, **more})
        except ValidationError as error:
            raise UserError(sentence(error, kind.model_fields, "model")) from error
        for prefix in ("", "image_"):
            width, heads = (getattr(config, f"{prefix}{n}", 0) for n in ("d_model", "n_heads"))
            if heads and width % heads:
                raise UserError(
                    f"model.{prefix}d_model {width} does not divide into {heads} heads; choose "
                    f"model.{prefix}n_heads so that it does."
                )
        return config

    def given(self) -> list[str]:
        """The keys that say numbers, which `start` has of its own."""
        return [*self.model_dump(exclude={"preset", "start", "family"}, exclude_none=True)]


def preparation_of(config: Any) -> Preparation:
    """How pictures become what a new model takes: its size, numbers from −1 to 1."""
    middle = GREY if config.n_channels == 1 else GREY * 3
    if config.n_channels not in (1, 3):
        raise UserError(
            f"model.n_channels is {config.n_channels}; pictures from files have 1 or 3."
        )
    return Preparation(size=config.image_size, mean=middle, std=middle)
