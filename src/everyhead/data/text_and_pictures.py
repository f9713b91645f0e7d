"""What belongs to a model that reads texts and pictures: its tokenizer and its preparation."""

from pathlib import Path

from tokenizers import Tokenizer

from everyhead.data.image_preparation import Preparation
from everyhead.data.text_tokenizer import TextTokenizer


class TextAndPictures:
    """text: texts ↔ ids. pictures: from a file to what the model takes."""

    def __init__(self, text: TextTokenizer, pictures: Preparation) -> None:
        self.text, self.pictures = text, pictures

    @property
    def inner(self) -> Tokenizer:
        return self.text.inner

    @property
    def vocab_size(self) -> int:
        return self.text.vocab_size

    def save(self, folder: Path, *, model_max_length: int | None = None) -> None:
        """The files of both."""
        self.text.save(folder, model_max_length=model_max_length)
        self.pictures.save(folder)

    @classmethod
    def load(cls, folder: Path) -> "TextAndPictures":
        """Those of a model folder.

        Raises:
            UserError: one of them is missing or broken.
        """
        return cls(TextTokenizer.load(folder), Preparation.load(folder))
