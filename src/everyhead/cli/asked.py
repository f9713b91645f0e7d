"""What `look` and its page ask: the session of a run of ours or of any Hugging Face model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.cli.opened import Opened
    from everyhead.explorer.scene import Scene
    from everyhead.explorer.sessions import Session
    from everyhead.explorer.translators import Translator


@dataclass(frozen=True)
class Wanted:
    """The texts that were typed: two to compare, or a pair that is one input."""

    text: str | None
    second: str | None = None
    translation: str | None = None
    pair: bool = False

    def check(self, *, drawn: bool = False) -> None:
        """
        Args:
            drawn: a picture is wanted, which shows one scene.

        Raises:
            UserError: a text is blank, or the texts do not make sense together.
        """
        for each in (self.text, self.second):
            if each is not None and not each.strip():
                raise UserError("The sentence is blank: there is nothing to look at.")
        if self.pair and self.second is None:
            raise UserError("--pair takes two texts, the two sentences of one input.")
        if self.translation is not None and self.second is not None:
            raise UserError("--translation belongs to one text: leave TEXT2 out.")
        if drawn and self.second is not None and not self.pair:
            raise UserError(
                "A picture shows one text: leave TEXT2 out, or compare both in the page (--html)."
            )

    def check_session(self, session: "Session") -> None:
        """
        Raises:
            UserError: the model would leave out something that was typed.
        """
        from everyhead.explorer.pictures import PictureReader
        from everyhead.explorer.readers import Answerer, TextReader
        from everyhead.explorer.translators import Translator

        reads = not isinstance(session, PictureReader) or session.reads_text
        if self.text is None and reads:
            raise UserError(f"{session.name} reads text: give it one after the model's name.")
        if self.text is not None and not reads:
            raise UserError(
                f"{session.name} looks at a picture and reads no text: leave TEXT out, and give "
                "the picture with --image."
            )
        if self.pair and not isinstance(session, TextReader):
            raise UserError(
                f"--pair is for models that read two sentences at once, and {session.name} reads "
                "one: leave --pair out, to compare both."
            )
        if self.translation is not None and not isinstance(session, Answerer | Translator):
            raise UserError(
                f"--translation is for models that translate or answer, and {session.name} does "
                "neither: leave it out."
            )

    def scenes(
        self, session: "Session", *, serve: bool = False, measured: bool = False
    ) -> "list[Scene]":
        """One scene a text; `measured`: with what switching each head off does.

        serve: the texts may be as long as a served page shows.
        """
        from everyhead.explorer.sessions import MOST_SAVED, MOST_SERVED, Asked

        self.check_session(session)
        most = MOST_SERVED if serve else MOST_SAVED
        if self.pair:
            return [
                session.scene(Asked(self.text or "", self.second, most=most, measured=measured))
            ]
        texts = [self.text or ""] if self.second is None else [self.text or "", self.second]
        shared: Any = {"target": self.translation, "most": most, "measured": measured}
        return [session.scene(Asked(text, **shared)) for text in texts]


def is_ours(place: str) -> bool:
    """A run's folder, or a model folder that everyhead wrote; a file, too, which is neither.

    So is a folder of others whose attention shows in our model alone.
    """
    from everyhead.cli.checked import written_here
    from everyhead.training.run import is_run
    from everyhead.weights.opening import hidden_there

    folder = Path(place)
    if folder.is_dir():
        foreign = (folder / "config.json").is_file() and not written_here(folder)
        return is_run(folder) or not foreign or hidden_there(folder)
    return folder.exists()


def session_of_run(opened: "Opened", name: str, beam: int | None = None) -> "Translator":
    """A run's translator, searching as its recipe says."""
    from everyhead.explorer.translators import Translator
    from everyhead.generation.translate import Options

    settings = opened.evaluation
    options = Options(
        beam=settings.beam if beam is None else beam, length_penalty=settings.length_penalty
    )
    return Translator(opened.model, opened.tokenizer, name=name, options=options)


def open_session(
    place: str,
    *,
    image: Path | None = None,
    beam: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> "Session":
    """Open whatever `place` names.

    Raises:
        UserError: there is no such model, or it cannot be looked into.
    """
    from everyhead.cli.opened import choose_device, choose_threads, open_run
    from everyhead.weights.gguf import gguf_named

    file = gguf_named(place)
    if file is not None or is_ours(place):
        opened = open_run(file or Path(place), device=device, threads=threads)
        if hasattr(getattr(opened.model, "config", None), "image_size"):
            from everyhead.explorer.own_pictures import OwnPictureReader

            return OwnPictureReader(opened.model, opened.tokenizer, image=image, name=place)
        if image is not None:
            raise UserError(f"{place} reads text and looks at no picture: leave --image out.")
        if not hasattr(opened.model, "encode"):
            from everyhead.explorer.own_texts import OwnTextReader

            if beam is not None:
                raise UserError("--beam is for translators of everyhead's; leave it out here.")
            return OwnTextReader(opened.model, opened.tokenizer, name=place)
        return session_of_run(opened, place, beam)
    from everyhead.explorer.readers import reader
    from everyhead.weights.foreign import open_foreign

    choose_threads(threads)
    where = choose_device(device)
    foreign = open_foreign(place)
    if beam is not None:
        raise UserError("--beam is for translators of everyhead's; leave it out here.")
    foreign.model.to(where)
    return reader(foreign, image)
