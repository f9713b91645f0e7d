"""A recipe: everything that decides a training run, in one TOML file.

The recipe that was used is written into the run, complete with defaults; training again from it
gives the same run. Keys that do not exist are errors that name the nearest right one, and so are
overrides (`train.max_steps=5000`).
"""

import difflib
import tomllib
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everyhead.errors import UserError
from everyhead.models.transformer import PRESETS, TransformerConfig
from everyhead.training.optimizers import OPTIMIZERS
from everyhead.training.precision import PRECISIONS


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataRecipe(_Section):
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


class TokenizerRecipe(_Section):
    """Subwords: one vocabulary for both sides, learnt together or side by side, or two."""

    kind: Literal["byte-fallback", "byte-level"] = "byte-fallback"
    vocab_size: int | tuple[int, int] = 8000
    shared: bool = True
    min_count: int = Field(default=3, ge=1)


class ModelRecipe(_Section):
    """A preset and what differs from it."""

    preset: str = "small"
    d_model: int | None = None
    n_heads: int | None = None
    n_layers: int | None = None
    n_encoder_layers: int | None = None
    n_decoder_layers: int | None = None
    d_ff: int | None = None
    dropout: float | None = Field(default=None, ge=0, lt=1)
    attention_dropout: float | None = Field(default=None, ge=0, lt=1)
    activation: str | None = None
    norm: str | None = None
    positions: str | None = None
    max_len: int = Field(default=256, ge=2)

    def config(self, vocab_size: int, source_vocab_size: int | None) -> TransformerConfig:
        """The model's numbers for these vocabularies.

        Raises:
            UserError: no such preset, or numbers that do not fit together.
        """
        if self.preset not in PRESETS:
            raise UserError(f"No preset {self.preset!r}; {_nearest(self.preset, PRESETS)}")
        values: dict[str, Any] = dict(PRESETS[self.preset])
        if self.n_layers is not None:
            values |= {"n_encoder_layers": self.n_layers, "n_decoder_layers": self.n_layers}
        given = self.model_dump(exclude={"preset", "n_layers"}, exclude_none=True)
        sizes = {"vocab_size": vocab_size, "source_vocab_size": source_vocab_size}
        try:
            config = TransformerConfig.model_validate({**values, **given, **sizes})
        except ValidationError as error:
            raise UserError(_sentence(error, "model")) from error
        if config.d_model % config.n_heads:
            raise UserError(
                f"model.d_model {config.d_model} does not divide into {config.n_heads} heads; "
                "choose model.n_heads so that it does."
            )
        return config


class TrainRecipe(_Section):
    """The optimizer's steps. Everything is counted in steps, nothing in seconds."""

    max_steps: int = Field(default=10_000, ge=1)
    batch_tokens: int | None = Field(default=None, ge=1)  # rows × longest, of either side
    batch_sentences: int | None = Field(default=None, ge=1)
    sort: bool | None = None  # like lengths together: by default with batch_tokens
    accumulate: int = Field(default=1, ge=1)
    optimizer: Literal[OPTIMIZERS] = "adam"  # type: ignore[valid-type]
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["cosine", "inverse_square_root"] = "cosine"
    peak: float = Field(default=1e-3, gt=0)  # of the cosine
    low: float = Field(default=0.0, ge=0)  # where the cosine ends
    factor: float = Field(default=1.0, gt=0)  # of the inverse square root
    warmup: int = Field(default=400, ge=0)
    label_smoothing: float = Field(default=0.1, ge=0, lt=1)
    clip: float | None = Field(default=1.0, gt=0)
    precision: Literal[PRECISIONS] = "auto"  # type: ignore[valid-type]
    compile: bool = False
    seed: int = Field(default=1, ge=0)
    log_every: int = Field(default=50, ge=1)
    evaluate_every: int = Field(default=500, ge=1)
    save_every: int = Field(default=500, ge=1)
    best: Literal["bleu", "loss"] = "bleu"
    max_bad_steps: int = Field(default=5, ge=1)  # non-finite in a row


class EvaluateRecipe(_Section):
    """How translations are made and scored; `tokenize` is sacreBLEU's."""

    beam: int = Field(default=4, ge=1)
    length_penalty: float = 1.0
    tokenize: str = "13a"
    max_sentences: int = Field(default=500, ge=1)  # of the validation set while training


class Recipe(_Section):
    """One trainable thing."""

    name: str
    job: Literal["translate"] = "translate"
    about: str = ""
    source_language: str | None = None
    target_language: str | None = None
    data: DataRecipe = DataRecipe()
    tokenizer: TokenizerRecipe = TokenizerRecipe()
    model: ModelRecipe = ModelRecipe()
    train: TrainRecipe = TrainRecipe()
    evaluate: EvaluateRecipe = EvaluateRecipe()


def built_in_recipes() -> dict[str, str]:
    """Name → what it is about, of the recipes inside the package."""
    folder = resources.files("everyhead") / "recipes"
    texts = {
        item.name.removesuffix(".toml"): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".toml")
    }
    return {name: tomllib.loads(texts[name]).get("about", "") for name in sorted(texts)}


def load_recipe(name_or_path: str, overrides: Iterable[str] = ()) -> Recipe:
    """A built-in recipe by name, or a recipe file by path, with `section.key=value` overrides.

    Raises:
        UserError: no such recipe, broken TOML, an unknown key or a value out of range.
    """
    text, origin = _recipe_text(name_or_path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{origin} is not valid TOML: {error}.") from error
    for change in overrides:
        override(values, change)
    return parse_recipe(values, origin)


def parse_recipe(values: dict[str, Any], origin: str) -> Recipe:
    """A recipe from nested values.

    Raises:
        UserError: an unknown key or a value out of range, named with its section.
    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{origin}: {_sentence(error)}") from error


def recipe_text(recipe: Recipe) -> str:
    """The recipe as TOML, complete with defaults; keys without a value are left out."""
    values = recipe.model_dump(mode="json", exclude_none=True)
    lines = [f"{k} = {_toml(v)}" for k, v in values.items() if not isinstance(v, dict)]
    for section, keys in values.items():
        if isinstance(keys, dict):
            lines += ["", f"[{section}]", *(f"{k} = {_toml(v)}" for k, v in keys.items())]
    return "\n".join(lines) + "\n"


def _recipe_text(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UserError(f"There is no recipe file {path}; check the path.")
        return path.read_text(encoding="utf-8-sig"), str(path)
    names = built_in_recipes()
    if name_or_path not in names:
        raise UserError(f"No recipe {name_or_path!r}; {_nearest(name_or_path, names)}")
    resource = resources.files("everyhead") / "recipes" / f"{name_or_path}.toml"
    return resource.read_text(encoding="utf-8"), f"recipe {name_or_path}"


def override(values: dict[str, Any], change: str) -> None:
    """Put `section.key=value` into the nested values; the value is read as TOML, else as text.

    Raises:
        UserError: no equals sign, or the path goes through a value.
    """
    path, equals, text = change.partition("=")
    if not equals:
        raise UserError(f"--set takes section.key=value, like train.max_steps=5000; got {change!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, key = path.strip().split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"{path!r} does not name a key: {section!r} is a value itself.")
    values[key] = value


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
        return '"' + "".join(escapes.get(c, c) for c in value) + '"'
    return repr(value)


def _sentence(error: ValidationError, section: str = "") -> str:
    """Every complaint of pydantic's as one sentence, with the nearest right key for a wrong one."""
    parts = []
    for item in error.errors():
        place = ".".join([*([section] if section else []), *map(str, item["loc"])])
        if item["type"] == "extra_forbidden":
            parts.append(f"there is no key {place}; {_nearest(place, known_keys())}")
        else:
            parts.append(f"{place}: {item['msg']} (got {item.get('input')!r})")
    return "; ".join(parts)


def known_keys() -> list[str]:
    """Every key of a recipe with its section, like train.max_steps."""
    keys = []
    for name, field in Recipe.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys += [f"{name}.{key}" for key in inner] if inner else [name]
    return keys


def _nearest(wrong: str, right: Iterable[str]) -> str:
    names = list(right)
    close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.5)
    if not close:
        last = {name.rsplit(".", 1)[-1]: name for name in names}
        close = [last[c] for c in difflib.get_close_matches(wrong.rsplit(".", 1)[-1], last, n=1)]
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}."
