"""A conversation in the terminal: `generate --chat`.

Ctrl-C ends an answer, which stays in the conversation as far as it came; Ctrl-D ends the program.
"""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from everyhead.cli.options import utf8
from everyhead.cli.writing import decoded, is_terminal, note, show
from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.opened_model import OpenedModel
    from everyhead.generation.chat import ChatTemplate
    from everyhead.generation.tasks import Options


def converse(opened: "OpenedModel", asked: "Options", first: str | None, system: str) -> None:
    """Answer the first message and end, or answer each line of standard input.

    Raises:
        UserError: the model does not converse, or options that are not for conversations.
    """
    from everyhead.generation.chat import ChatTemplate

    if asked.samples > 1 or asked.beam > 1:
        raise UserError("A conversation has one answer at a time: leave --samples and --beam out.")
    template = ChatTemplate(opened.tokenizer)
    asked = asked._replace(ends=template.ends)
    conversation = Conversation(opened, template, asked=asked, system=system)
    if first is not None:
        if not first.strip():
            raise UserError("The message is empty: give something to answer.")
        conversation.answer(first)
        return
    by_hand = is_terminal(sys.stdin)
    if by_hand:
        note("type a message and Enter; Ctrl-C ends an answer, Ctrl-D ends the conversation.")
    for message in _typed() if by_hand else _piped():
        if not message.strip():
            continue
        try:
            conversation.answer(message)
        except KeyboardInterrupt:
            print(flush=True)
        except UserError as error:
            if not by_hand:
                raise
            note(str(error))


class Conversation:
    """The messages so far, and a model that answers."""

    def __init__(
        self, opened: "OpenedModel", template: "ChatTemplate", *, asked: "Options", system: str
    ) -> None:
        from everyhead.generation.chat import Message

        self.opened, self.template, self.asked = opened, template, asked
        self.system = [Message("system", system)] if system else []
        self.messages: list[Message] = []

    def answer(self, message: str) -> None:
        """Show the answer as it is written; an interrupted one is kept as far as it came.

        Raises:
            UserError: the message alone is too long; it is then forgotten.
            KeyboardInterrupt: Ctrl-C.
        """
        from everyhead.generation.chat import Message
        from everyhead.generation.generate import streamed

        self.messages.append(Message("user", message))
        try:
            ids = self._fitting()
            row, pieces = streamed(self.opened.model, self.opened.tokenizer, ids, self.asked)
        except UserError:
            self.messages.pop()
            raise
        shown: list[str] = []
        try:
            show(_kept(pieces, shown))
        finally:
            self.messages.append(Message("assistant", "".join(shown)))
        if row.reason == "context":
            note("the answer ends because the model reads no more.")

    def _fitting(self) -> list[int]:
        """Ids of the conversation; the oldest messages go where it is too long for an answer."""
        limit = self.opened.model.config.max_len
        room = min(self.asked.max_new_tokens, limit // 4)
        n_before = len(self.messages)
        while True:
            ids = self.template.ids([*self.system, *self.messages])
            if len(ids) + room <= limit or len(self.messages) < 3:
                break
            del self.messages[:2]
        left_out = n_before - len(self.messages)
        if left_out:
            note(f"the {left_out} oldest messages are left out: the model reads {limit:,} tokens.")
        return ids


def _kept(pieces: Iterator[str], shown: list[str]) -> Iterator[str]:
    for piece in pieces:
        shown.append(piece)
        yield piece


def _typed() -> Iterator[str]:
    """Lines that a person types, with the keys of a shell where there is a readline."""
    with suppress(ImportError):
        import readline  # noqa: F401
    while True:
        try:
            yield utf8(input("> "))
        except KeyboardInterrupt:  # nothing is being written that it could end
            print(file=sys.stderr)
        except EOFError:
            print(file=sys.stderr)
            return


def _piped() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer if sys.stdin is not None else (), 1):
        yield decoded(line, f"standard input, message {number}").removesuffix("\n")
