"""The job of telling pictures apart: a class each, by a Vision Transformer.

Pictures of a corpus, of a folder with a folder a class, or of a list; cut by what they hold.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from everyhead.data import easy_vqa, image_sets
from everyhead.data.image_batches import ImageBatch, Images
from everyhead.data.image_preparation import Preparation
from everyhead.data.image_sets import ImageSet, ImageSplits, renumbered
from everyhead.errors import UserError
from everyhead.models import picture_convolution, vision_transformer
from everyhead.models.family import Family
from everyhead.models.picture_convolution import PictureConvolution, PictureConvolutionConfig
from everyhead.models.vision_transformer import VisionTransformer, VisionTransformerConfig
from everyhead.training.job import (
    Job,
    JobKind,
    Prepared,
    Scores,
    Tools,
    learnt_labels,
    loss_of,
)
from everyhead.training.jobs.picture_recipe import (
    MovesRecipe,
    PictureModelRecipe,
    preparation_of,
)
from everyhead.training.losses import class_loss
from everyhead.training.objectives import TokenLoss
from everyhead.training.sections import Recipe, Section, Size, TrainRecipe
from everyhead.training.stream import Stream, fingerprint_of, shuffled

CORPORA = {
    "digits": "Handwritten digits by E. Alpaydin and C. Kaynak (UCI 1998, CC BY 4.0), as "
    "scikit-learn has them.",
    "easy-vqa-shapes": easy_vqa.ATTRIBUTION,
}
FAMILIES = {
    "vision-transformer": Family(
        VisionTransformer, VisionTransformerConfig, vision_transformer.PRESETS
    ),
    "picture-convolution": Family(
        PictureConvolution, PictureConvolutionConfig, picture_convolution.PRESETS
    ),
}
EVALUATED = 256  # pictures in a batch where nothing is learnt


class DataRecipe(Section):
    """Where the pictures come from, and how they are cut."""

    corpus: str | None = None
    files: list[str] = Field(default_factory=list, max_length=1)  # a folder, or a list
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.2, gt=0, lt=0.5)
    most: int | None = Field(default=None, ge=1)  # training pictures, the first of a random order


class ImageModelRecipe(PictureModelRecipe):
    family: Literal["vision-transformer", "picture-convolution"] = "vision-transformer"
    channels: tuple[Size, ...] | None = None  # of a convolution's stages


class ImageTrainRecipe(TrainRecipe):
    best: str = "accuracy"


class ImageRecipe(Recipe):
    """Learning to tell pictures apart."""

    rivals = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["image"] = "image"
    data: DataRecipe = DataRecipe()
    moves: MovesRecipe = MovesRecipe()
    model: ImageModelRecipe = ImageModelRecipe()
    train: ImageTrainRecipe = ImageTrainRecipe()


class PreparedImages(Prepared):
    """The sets, how pictures are prepared, and the model's numbers."""

    def __init__(
        self, recipe: ImageRecipe, tools: Tools, *, splits: ImageSplits, report: dict[str, Any]
    ) -> None:
        self.recipe, self.tools, self.splits, self.report = recipe, tools, splits, report
        names, self.family = splits.train.names, FAMILIES[recipe.model.family]
        self.config: Any
        if recipe.model.start is None:
            self.config = recipe.model.config(
                self.family.config, self.family.presets, n_classes=len(names), labels=names
            )
            self.preparation = preparation_of(self.config)
        else:
            model, self.preparation = self._opened()
            self.config = model.config
        self.sets = {
            name: Images(part, self.preparation) for name, part in splits._asdict().items()
        }

    def _opened(self) -> tuple[VisionTransformer, Preparation]:
        """Published weights with a new head."""
        start, names = self.recipe.model.start, self.splits.train.names
        if given := self.recipe.model.given():
            raise UserError(f"model.start has a {given[0]} of its own: leave model.{given[0]} out.")
        changes = {"n_classes": len(names), "labels": names, "pooler": False}
        opened = self.tools.open  # of training/job.py: no file is opened here
        model, preparation = opened(str(start), changes=changes)
        if not isinstance(model, VisionTransformer) or not isinstance(preparation, Preparation):
            raise UserError(
                f"model.start {start} is a {type(model).__name__}; this job goes on from a "
                "VisionTransformer with its preprocessor_config.json."
            )
        return model, preparation

    def introduction(self) -> list[str]:
        sizes, c = self.report["splits"], self.config
        height, width = c.image_size
        lines = [f"Data: {self.report['origin']['attribution']}"] if "origin" in self.report else []
        parts = ", ".join(f"{n:,} {name}" for name, n in sizes.items())
        return [
            *lines,
            f"Pictures: {parts}; {len(self.splits.train.names)} classes, the commonest "
            f"{self.report['majority']:.1%} of the test pictures",
            f"Model: {_described(c)}, {height} × {width} pixels",
        ]

    def job(self, device: str) -> Job:
        train, moves = self.recipe.train, self.recipe.moves.moves()
        torch.manual_seed(train.seed)
        fresh = self.recipe.model.start is None
        model = (self.family.model(self.config) if fresh else self._opened()[0]).to(device)
        images, size = self.sets["train"], train.batch_sentences or 64

        def collate(rows: list[int], epoch: int) -> ImageBatch:
            return images.batch(rows, moves, seed=train.seed, epoch=epoch)

        content = (images.images.content(row) for row in range(images.images.size))
        return Job(
            model=model,
            stream=Stream(
                shuffled(images.images.size, size, train.seed),
                collate,
                fingerprint=fingerprint_of((size, train.seed, moves), content),
            ),
            validation=self.sets["validation"].batches(EVALUATED),
            loss=image_loss,
            measures=loss_of,
            score=lambda model: {"accuracy": self.evaluate(model, "validation")["accuracy"]},
        )

    def write(self, folder: Path) -> None:
        self.preparation.save(folder)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.preparation, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """The share of pictures whose likeliest class is right, and that of the commonest class."""
        if split not in self.sets:
            raise UserError(f"There is no split {split!r}; there are {', '.join(self.sets)}.")
        images = self.sets[split]
        device = next(model.parameters()).device
        right = 0
        with torch.no_grad():
            for batch in images.batches(EVALUATED):
                batch = batch.to(device)
                right += int((model(batch.pixels).argmax(1) == batch.labels).sum())
        return {
            "accuracy": right / images.images.size,
            "majority": majority(self.splits.train, images.images),
            "pictures": images.images.size,
        }


def _described(c: Any) -> str:
    if isinstance(c, PictureConvolutionConfig):
        return f"convolution, stages of {', '.join(map(str, c.channels))} channels"
    patch = f"patches of {c.patch_size[0]} × {c.patch_size[1]}"
    return (
        f"Vision Transformer, {c.n_layers} layers, d_model {c.d_model}, {c.n_heads} heads, {patch}"
    )


def image_loss(model: Any, batch: ImageBatch, smoothing: float) -> TokenLoss:
    """−Σ log p of the right classes."""
    return class_loss(model(batch.pixels), batch.labels, smoothing)


def majority(train: ImageSet, held_out: ImageSet) -> float:
    """The accuracy of always saying what is commonest in training."""
    commonest = np.bincount(train.labels, minlength=len(train.names)).argmax()
    return float((held_out.labels == commonest).mean())


def read_splits(data: DataRecipe, tools: Tools) -> tuple[ImageSplits, dict[str, Any]]:
    """The recipe's pictures and where they are from.

    Raises:
        UserError: no such corpus, a file is missing or broken, or too little is left.
    """
    shares = {"validation": data.validation_share, "test": data.test_share}
    report: dict[str, Any] = {}
    if data.files:
        splits = image_sets.from_path(Path(data.files[0]), **shares)
    elif data.corpus in CORPORA:
        licence = "CC-BY-4.0" if data.corpus == "digits" else "MIT"
        report["origin"] = {"attribution": CORPORA[data.corpus], "licence": licence}
        if data.corpus == "digits":
            splits = image_sets.split(image_sets.digits(), **shares)
        else:
            found = easy_vqa.read(validation=data.validation_share)
            splits = easy_vqa.shapes(found)
    else:
        raise UserError(
            f"No corpus of pictures {data.corpus!r}; there are {', '.join(CORPORA)}, or give your "
            "own with --data FOLDER."
        )
    if data.most is not None and data.most < splits.train.size:
        rows = np.random.default_rng(0).permutation(splits.train.size)[: data.most]
        splits = splits._replace(train=splits.train.pick(sorted(rows.tolist())))
    report["splits"] = {name: part.size for name, part in splits._asdict().items()}
    report["majority"] = majority(splits.train, splits.test)
    return splits, report


def prepare(recipe: ImageRecipe, begun: Path | None, tools: Tools) -> PreparedImages:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_splits(recipe.data, tools)
    names = learnt_labels(begun, splits.train.names)
    splits, report["labels"] = renumbered(splits, names), list(names)
    return PreparedImages(recipe, tools, splits=splits, report=report)


KIND = JobKind(ImageRecipe, prepare, verb="predict", unit="pictures")
