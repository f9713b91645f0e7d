"""A conversation as the text that a model was taught to go on with: its tokenizer's template.

A chat template is a program in Jinja that comes with the model, so it runs in Jinja's sandbox: it
reads the messages and writes a text, and reaches nothing else. What a person types is text: special
pieces in it are spelled out, so nobody can end a turn, or begin one, by typing what ends turns.
"""

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from everyhead.errors import UserError

# Stands for a message in a template's text; templates write ordinary characters.
MARK = "\ue000{}\ue001"
MARKED = re.compile("\ue000(\\d+)\ue001")
# {% generation %} marks what was generated, for training; it writes nothing.
GENERATION = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


class Message(NamedTuple):
    """role: "system", "user" or "assistant"."""

    role: str
    content: str


class Converser(Protocol):
    """What is needed of a text tokenizer."""

    special_pieces: dict[str, str]

    @property
    def chat_template(self) -> str | None: ...
    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def inner(self) -> Any: ...
    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, literal: bool = False
    ) -> list[int]: ...


class ChatTemplate:
    """A tokenizer's template; `ids` of a conversation, and what `ends` an answer."""

    def __init__(self, tokenizer: Converser) -> None:
        """
        Raises:
            UserError: the model was not taught to converse, its template is broken, or Jinja is
                not installed.
        """
        if tokenizer.chat_template is None:
            raise UserError(
                "The model has no chat template, so it was not taught to converse: leave --chat "
                "out, and give the beginning of a text."
            )
        self.tokenizer = tokenizer
        self._template = _compiled(tokenizer.chat_template)

    def text(self, messages: Sequence[Message], *, answer: bool = True) -> str:
        """The conversation as one text; `answer`: up to where the model's next turn begins.

        Raises:
            UserError: the template refuses the messages, such as a role that it does not know.
        """
        pieces = {f"{role}_token": piece for role, piece in self.tokenizer.special_pieces.items()}
        try:
            found: str = self._template.render(
                messages=[each._asdict() for each in messages],
                add_generation_prompt=answer,
                tools=None,
                documents=None,
                **pieces,
            )
        except Exception as error:  # it is a program of somebody's, and may fail in any way
            raise UserError(f"The model's chat template refuses these messages: {error}") from error
        if answer and not found:
            raise UserError(
                "The model's chat template writes nothing for these messages: leave --chat out, "
                "or take a model whose template is whole."
            )
        return found

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The conversation up to where the model's next turn begins.

        Raises:
            UserError: as `text`.
        """
        special = [token.content for token in self._added.values() if token.special]
        typed = any(piece in each.content for each in messages for piece in special)
        if not typed:
            return self.tokenizer.encode(self.text(messages), special=False)
        marked = [each._replace(content=MARK.format(i)) for i, each in enumerate(messages)]
        ids: list[int] = []
        for i, part in enumerate(MARKED.split(self.text(marked))):
            number = i % 2  # the split's odd parts are the numbers of messages
            text = messages[int(part)].content if number else part
            ids += self.tokenizer.encode(text, special=False, literal=bool(number))
        return ids

    @cached_property
    def ends(self) -> frozenset[int]:
        """The special piece that the template writes after an answer, if it writes one."""
        marks = [Message("user", MARK.format(0)), Message("assistant", MARK.format(1))]
        try:
            after = self.text(marks, answer=False).rpartition(MARK.format(1))[2]
        except UserError:
            return frozenset()
        numbers = self.tokenizer.encode(after, special=False)
        return frozenset([n for n in numbers if n in self.tokenizer.special_ids][:1])

    @property
    def _added(self) -> dict[int, Any]:
        found: dict[int, Any] = self.tokenizer.inner.get_added_tokens_decoder()
        return found


def _compiled(template: str) -> Any:
    try:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError as error:
        raise UserError(
            "A conversation needs Jinja, in which chat templates are written: "
            "pip install 'everyhead[hf]'"
        ) from error

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None, **_: Any) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    # Block tags take their own line away, as where the templates were written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(GENERATION.sub("", template))
    except jinja2.TemplateError as error:
        raise UserError(f"The model's chat template is broken: {error}") from error
