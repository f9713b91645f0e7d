"""The job of matching pictures and texts: CLIP on easy-VQA's captions or a list of one's own.

Scores on held-out pictures: zero-shot accuracy (which of all meanings' plainest captions is
likeliest), recall@1 from picture to text and from text to picture, each beside chance.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from everyhead.data import captions, easy_vqa
from everyhead.data.captions import Captioned, CaptionSplits
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models.clip import PRESETS, Clip, ClipConfig
from everyhead.training.contrast import PairBatch, pair_loss
from everyhead.training.job import Job, JobKind, Prepared, Scores, Tools, loss_of
from everyhead.training.jobs.picture_recipe import MovesRecipe, PictureModelRecipe, preparation_of
from everyhead.training.sections import MOST_PIECES, Recipe, Section, Size, TrainRecipe
from everyhead.training.stream import Stream, fingerprint_of, shuffled

EVALUATED = 128  # pictures in a batch where nothing is learnt


class DataRecipe(Section):
    """Where pictures and captions come from, and how they are cut."""

    corpus: str | None = None
    files: list[str] = Field(default_factory=list, max_length=1)  # picture TAB caption
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.2, gt=0, lt=0.5)
    unseen: list[str] = Field(default_factory=list)  # classes that are only tested on


class TokenizerRecipe(Section):
    """WordPiece, in small letters."""

    vocab_size: int = Field(default=400, ge=100, le=MOST_PIECES)


class ClipModelRecipe(PictureModelRecipe):
    start: None = None
    max_len: Size = 32
    image_d_model: Size | None = None
    image_n_heads: Size | None = None
    image_n_layers: Size | None = None
    image_d_ff: Size | None = None
    d_embed: Size | None = None
    dropout: None = None


class ClipTrainRecipe(TrainRecipe):
    best: str = "zero_shot"
    label_smoothing: float = Field(default=0.0, ge=0, le=0)  # CLIP has none


class ClipRecipe(Recipe):
    """Learning which pictures and texts belong together."""

    rivals = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["clip"] = "clip"
    data: DataRecipe = DataRecipe()
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    moves: MovesRecipe = MovesRecipe()
    model: ClipModelRecipe = ClipModelRecipe()
    train: ClipTrainRecipe = ClipTrainRecipe()


class PreparedClip(Prepared):
    """The captioned pictures of each set, and the model's numbers."""

    def __init__(
        self,
        recipe: ClipRecipe,
        tools: Tools,
        *,
        splits: CaptionSplits,
        report: dict[str, Any],
        tokenizer: TextTokenizer,
    ) -> None:
        self.recipe, self.tools, self.splits, self.report = recipe, tools, splits, report
        ends = {"bos_id": tokenizer.cls_id, "eos_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id}
        self.config = recipe.model.config(
            ClipConfig, PRESETS, vocab_size=tokenizer.vocab_size, **ends
        )
        self.companion = TextAndPictures(tokenizer, preparation_of(self.config))
        self.sets = {
            name: Captioned(
                part, splits.texts, companion=self.companion, max_len=self.config.max_len
            )
            for name, part in splits.sets._asdict().items()
        }

    def introduction(self) -> list[str]:
        sizes, c = self.report["splits"], self.config
        lines = [f"Data: {self.report['origin']['attribution']}"] if "origin" in self.report else []
        parts = ", ".join(f"{n:,} {name}" for name, n in sizes.items())
        unseen = self.recipe.data.unseen
        return [
            *lines,
            f"Pictures with captions: {parts}; {len(self.splits.texts)} different captions"
            + (f", of which never in training: {', '.join(unseen)}" if unseen else ""),
            f"Model: CLIP, {c.image_n_layers} layers of {c.image_d_model} over patches of "
            f"{c.patch_size[0]} × {c.patch_size[1]}, {c.n_layers} of {c.d_model} over "
            f"{c.vocab_size} pieces",
        ]

    def job(self, device: str) -> Job:
        train, moves = self.recipe.train, self.recipe.moves.moves()
        torch.manual_seed(train.seed)
        model, pairs = Clip(self.config).to(device), self.sets["train"]
        size = train.batch_sentences or 64

        def collate(rows: list[int], epoch: int) -> PairBatch:
            return PairBatch(*pairs.batch(rows, moves, seed=train.seed, epoch=epoch))

        images = pairs.images.images
        content = (images.content(row) for row in range(images.size))
        return Job(
            model=model,
            stream=Stream(
                shuffled(pairs.size, size, train.seed),
                collate,
                fingerprint=fingerprint_of((size, train.seed, moves, pairs.ids), content),
            ),
            validation=[
                PairBatch(*self.sets["validation"].batch(rows))
                for rows in _rows(self.sets["validation"].size)
            ],
            loss=pair_loss,
            measures=loss_of,
            score=lambda model: {"zero_shot": self.evaluate(model, "validation")["zero_shot"]},
        )

    def write(self, folder: Path) -> None:
        self.companion.save(folder, model_max_length=self.config.max_len)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.companion, folder)

    @torch.no_grad()
    def evaluate(self, model: Any, split: str) -> Scores:
        """Zero-shot accuracy and recall@1 both ways, beside chance."""
        if split not in self.sets:
            raise UserError(f"There is no split {split!r}; there are {', '.join(self.sets)}.")
        pairs, device = self.sets[split], next(model.parameters()).device
        plainest = [every[0] for every in pairs.ids]
        pad_id = self.companion.text.pad_id or 0
        texts = [
            model.text_features(ids.to(device), mask.to(device))
            for ids, mask in (
                captions.padded([plainest[i] for i in rows], pad_id)
                for rows in _rows(len(plainest))
            )
        ]
        pictures = [
            model.image_features(pairs.images.pixels(rows).to(device)) for rows in _rows(pairs.size)
        ]
        logits = model.logits(torch.cat(pictures), torch.cat(texts)).cpu()
        return retrieval(logits, torch.from_numpy(pairs.labels), self.splits.unseen)


def retrieval(logits: Tensor, labels: Tensor, unseen: tuple[int, ...] = ()) -> Scores:
    """Scores of logits (pictures, meanings) where picture i means labels[i].

    Of the texts only those count that some picture here means.
    """
    right = logits.argmax(1) == labels
    meant = labels.unique()
    counts = torch.bincount(labels, minlength=logits.shape[1])[meant]
    found = labels[logits[:, meant].argmax(0)] == meant
    scores: Scores = {
        "zero_shot": float(right.double().mean()),
        "chance": 1 / logits.shape[1],
        "text_to_picture": float(found.double().mean()),
        "text_to_picture_chance": float((counts / len(labels)).mean()),
        "pictures": len(labels),
    }
    hidden = torch.from_numpy(np.isin(labels.numpy(), unseen))
    if unseen and bool(hidden.any()):
        scores["zero_shot_seen"] = float(right[~hidden].double().mean())
        scores["zero_shot_unseen"] = float(right[hidden].double().mean())
        scores["pictures_unseen"] = int(hidden.sum())
    return scores


def _rows(n: int) -> list[range]:
    return [range(i, min(i + EVALUATED, n)) for i in range(0, n, EVALUATED)]


def read_splits(data: DataRecipe) -> tuple[CaptionSplits, dict[str, Any]]:
    """The recipe's pictures and captions, and where they are from.

    Raises:
        UserError: no such corpus, a file is missing or broken, or too little is left.
    """
    report: dict[str, Any] = {}
    if data.files:
        shares = {"validation": data.validation_share, "test": data.test_share}
        splits = captions.of_list(Path(data.files[0]), **shares)
    elif data.corpus == "easy-vqa-shapes":
        found = easy_vqa.read(validation=data.validation_share)
        splits = captions.shapes(found, data.unseen)
        report["origin"] = {"attribution": easy_vqa.ATTRIBUTION, "licence": "MIT"}
    else:
        raise UserError(
            f"No corpus of captions {data.corpus!r}; there is easy-vqa-shapes, or give your own "
            "with --data FILE (picture and caption on each line, a tab between)."
        )
    report["splits"] = {name: part.size for name, part in splits.sets._asdict().items()}
    return splits, report


def prepare(recipe: ClipRecipe, begun: Path | None, tools: Tools) -> PreparedClip:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_splits(recipe.data)
    if begun is not None:
        tokenizer = TextTokenizer.load(begun)
    else:
        known = set(splits.sets.train.labels.tolist())
        lines = [text for label in sorted(known) for text in splits.texts[label]]
        size = recipe.tokenizer.vocab_size
        tokenizer = TextTokenizer.train(lines, kind="wordpiece", vocab_size=size)
    return PreparedClip(recipe, tools, splits=splits, report=report, tokenizer=tokenizer)


KIND = JobKind(ClipRecipe, prepare, verb="predict", unit="pairs")
