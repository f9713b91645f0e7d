"""The job of answering questions about pictures: VisionText on easy-VQA or a list of one's own.

Σ −log p over the answers' pieces and their end, given the picture and the question.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from everyhead.data import easy_vqa, questions
from everyhead.data.easy_vqa import EasyVQA
from everyhead.data.questions import Baselines, QuestionBatch, Questions
from everyhead.data.text_and_pictures import TextAndPictures
from everyhead.data.text_tokenizer import TextTokenizer
from everyhead.errors import UserError
from everyhead.models.vision_text import PRESETS, VisionText, VisionTextConfig
from everyhead.training.job import Job, JobKind, Prepared, Scores, Tools, loss_of
from everyhead.training.jobs.picture_recipe import MovesRecipe, PictureModelRecipe, preparation_of
from everyhead.training.objectives import TokenLoss, label_smoothed_loss
from everyhead.training.sections import MOST_PIECES, Recipe, Section, Size, TrainRecipe
from everyhead.training.stream import Stream, fingerprint_of, shuffled

EVALUATED = 32  # pictures in a batch where nothing is learnt


class DataRecipe(Section):
    """Where pictures and questions come from, and how they are cut: by picture."""

    corpus: str | None = None
    files: list[str] = Field(default_factory=list, max_length=1)  # picture TAB question TAB answer
    validation_share: float = Field(default=0.1, gt=0, lt=0.5)
    test_share: float = Field(default=0.2, gt=0, lt=0.5)
    questions: Size = 4  # about a picture in one batch; others in other epochs
    text_only: bool = False  # without the pictures, to see what the questions alone tell


class TokenizerRecipe(Section):
    """WordPiece, in small letters."""

    vocab_size: int = Field(default=400, ge=100, le=MOST_PIECES)


class VqaModelRecipe(PictureModelRecipe):
    start: None = None
    max_len: Size = 32


class VqaTrainRecipe(TrainRecipe):
    best: str = "accuracy"


class VqaRecipe(Recipe):
    """Learning to answer questions about pictures."""

    rivals = (*Recipe.rivals, (("data.corpus",), ("data.files",)))

    job: Literal["vqa"] = "vqa"
    data: DataRecipe = DataRecipe()
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    moves: MovesRecipe = MovesRecipe()
    model: VqaModelRecipe = VqaModelRecipe()
    train: VqaTrainRecipe = VqaTrainRecipe()


class PreparedVqa(Prepared):
    """The questions of each set, and the model's numbers."""

    def __init__(
        self,
        recipe: VqaRecipe,
        tools: Tools,
        *,
        splits: EasyVQA,
        report: dict[str, Any],
        tokenizer: TextTokenizer,
    ) -> None:
        self.recipe, self.tools, self.splits, self.report = recipe, tools, splits, report
        ends = {"sep_id": tokenizer.sep_id, "eos_id": tokenizer.sep_id, "pad_id": tokenizer.pad_id}
        self.config = recipe.model.config(
            VisionTextConfig, PRESETS, vocab_size=tokenizer.vocab_size, **ends
        )
        self.companion = TextAndPictures(tokenizer, preparation_of(self.config))
        self.sets = {
            name: Questions(
                part,
                self.companion,
                max_len=self.config.max_len,
                blind=recipe.data.text_only,
            )
            for name, part in splits._asdict().items()
        }

    def introduction(self) -> list[str]:
        sizes, c = self.report["splits"], self.config
        lines = [f"Data: {self.report['origin']['attribution']}"] if "origin" in self.report else []
        parts = (f"{q:,} {name} on {p:,} pictures" for name, (p, q) in sizes.items())
        known = self.report["baselines"]
        return [
            *lines,
            f"Questions: {', '.join(parts)}",
            f"Without the picture: {known['majority']:.1%} of the test questions by the commonest "
            f"answer, {known['text_only']:.1%} by each question's commonest",
            f"Model: VisionText, {c.n_layers} layers, d_model {c.d_model}, {c.n_heads} heads, "
            f"{c.vocab_size} pieces, patches of {c.patch_size[0]} × {c.patch_size[1]}"
            + (", without the pictures" if self.recipe.data.text_only else ""),
        ]

    def job(self, device: str) -> Job:
        train, data, moves = self.recipe.train, self.recipe.data, self.recipe.moves.moves()
        torch.manual_seed(train.seed)
        model, asked = VisionText(self.config).to(device), self.sets["train"]
        size = train.batch_sentences or 32

        def collate(rows: list[int], epoch: int) -> QuestionBatch:
            drawn = {"moves": moves, "seed": train.seed, "epoch": epoch}
            return asked.batch(rows, most=data.questions, **drawn)

        content = (repr(row).encode("ascii") for row in asked.rows)
        rule = (size, train.seed, moves, data.questions, data.text_only)
        return Job(
            model=model,
            stream=Stream(
                shuffled(asked.size, size, train.seed),
                collate,
                fingerprint=fingerprint_of(rule, content),
            ),
            validation=self.sets["validation"].batches(EVALUATED),
            loss=answer_loss,
            measures=loss_of,
            score=lambda model: {"accuracy": accuracy(model, self.sets["validation"])},
        )

    def write(self, folder: Path) -> None:
        self.companion.save(folder, model_max_length=self.config.max_len)

    def save(self, model: Any, folder: Path) -> None:
        self.tools.save(model, self.companion, folder)

    def evaluate(self, model: Any, split: str) -> Scores:
        """The share of questions answered exactly, beside what is known without the picture."""
        if split not in self.sets:
            raise UserError(f"There is no split {split!r}; there are {', '.join(self.sets)}.")
        part = self.splits._asdict()[split]
        known = Baselines.of(self.splits.train).scores(part)
        found = accuracy(model, self.sets[split])
        return {"accuracy": found, **known, "questions": part.n_questions}


def answer_loss(model: Any, batch: QuestionBatch, smoothing: float) -> TokenLoss:
    """−Σ log p over the answers' pieces and ends."""
    hidden = model.hidden(batch.pixels, batch.ids, batch.mask, documents=batch.documents)
    head = model.output_head
    return label_smoothed_loss(
        hidden[batch.wanted], head.weight, head.bias, batch.labels, smoothing=smoothing
    )


@torch.no_grad()
def accuracy(model: Any, asked: Questions) -> float:
    """The share of questions whose answer, greedily written, is exactly right.

    It is so where every piece is the likeliest after the right ones before it, the end included.
    """
    device, right, total = next(model.parameters()).device, 0, 0
    for batch in asked.batches(EVALUATED):
        batch = batch.to(device)
        hidden = model.hidden(batch.pixels, batch.ids, batch.mask, documents=batch.documents)
        wrong = (model.head(hidden[batch.wanted]).argmax(-1) != batch.labels).long()
        n = int(batch.asked[-1]) + 1
        per_question = torch.zeros(n, dtype=torch.long, device=device)
        per_question.index_add_(0, batch.asked, wrong)
        right, total = right + int((per_question == 0).sum()), total + n
    return right / total


def read_splits(data: DataRecipe) -> tuple[EasyVQA, dict[str, Any]]:
    """The recipe's pictures and questions, and where they are from.

    Raises:
        UserError: no such corpus, a file is missing or broken, or too little is left.
    """
    report: dict[str, Any] = {}
    if data.files:
        shares = {"validation": data.validation_share, "test": data.test_share}
        splits = questions.from_list(Path(data.files[0]), **shares)
    elif data.corpus == "easy-vqa":
        splits = easy_vqa.read(validation=data.validation_share)
        report["origin"] = {"attribution": easy_vqa.ATTRIBUTION, "licence": "MIT"}
    else:
        raise UserError(
            f"No corpus of questions {data.corpus!r}; there is easy-vqa, or give your own with "
            "--data FILE (picture, question and answer on each line, tabs between)."
        )
    report["splits"] = {
        name: (len(part.pictures), part.n_questions) for name, part in splits._asdict().items()
    }
    report["baselines"] = Baselines.of(splits.train).scores(splits.test)
    return splits, report


def prepare(recipe: VqaRecipe, begun: Path | None, tools: Tools) -> PreparedVqa:
    """Raises UserError: the files, the sizes or the numbers are wrong."""
    splits, report = read_splits(recipe.data)
    if begun is not None:
        tokenizer = TextTokenizer.load(begun)
    else:
        every = [q for part in splits.train.questions.values() for q in part]
        lines = [text for q in every for text in (q.text, q.answer)]
        size = recipe.tokenizer.vocab_size
        tokenizer = TextTokenizer.train(lines, kind="wordpiece", vocab_size=size)
    return PreparedVqa(recipe, tools, splits=splits, report=report, tokenizer=tokenizer)


KIND = JobKind(VqaRecipe, prepare, verb="predict", unit="pieces of answers")
