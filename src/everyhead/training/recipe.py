"""A recipe: everything that decides a training run, in one TOML file.

The recipe that was used is written into the run, complete with defaults; training again from it
gives the same run. Keys that do not exist are errors that name the nearest right one, and so are
overrides (`train.max_steps=5000`).
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from everyhead.errors import UserError
from everyhead.training.complaints import nearest, sentence
from everyhead.training.jobs import job_kind
from everyhead.training.sections import Recipe
from everyhead.training.toml import toml_text

JOB = "translate"  # of a recipe that does not say
PATHS = ("pairs", "source", "target", "validation", "test", "files")  # of [data], in any job


def built_in_recipes() -> dict[str, str]:
    """Name → what it is about, of the recipes inside the package."""
    folder = resources.files("everyhead") / "recipes"
    texts = {
        item.name.removesuffix(".toml"): item.read_text(encoding="utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".toml")
    }
    return {name: tomllib.loads(texts[name]).get("about", "") for name in sorted(texts)}


def load_recipe(
    name_or_path: str, overrides: Iterable[str] = (), *, files: Sequence[Path] = ()
) -> Recipe:
    """A built-in recipe by name, or a recipe file by path, with `section.key=value` overrides.

    Data of a user's own, `files`, take the place of the recipe's.

    Raises:
        UserError: no such recipe, broken TOML, an unknown key or a value out of range.
    """
    text, origin = _recipe_text(name_or_path)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{origin} is not valid TOML: {error}.") from error
    if files:
        recipe_class(values).with_files(values, list(files))
    for change in overrides:
        override(values, change)
    return parse_recipe(values, origin)


def placed(recipe: Recipe) -> Recipe:
    """The recipe with its data's paths made absolute: a run finds them from anywhere."""
    data: Any = getattr(recipe, "data", None)
    given = {key: getattr(data, key, None) for key in PATHS}
    found = {
        key: str(Path(value).resolve())
        if isinstance(value, str)
        else [str(Path(name).resolve()) for name in value]
        for key, value in given.items()
        if value
    }
    return recipe.model_copy(update={"data": data.model_copy(update=found)}) if found else recipe


def parse_recipe(values: dict[str, Any], origin: str) -> Recipe:
    """A recipe from nested values.

    Raises:
        UserError: no such job, an unknown key or a value out of range, named with its section.
    """
    try:
        recipe: Recipe = recipe_class(values).model_validate(values)
    except ValidationError as error:
        known = known_keys(recipe_class(values))
        raise UserError(f"{origin}: {sentence(error, known)}") from error
    return recipe


def recipe_class(values: Mapping[str, Any]) -> type[Recipe]:
    """The recipe of the job that the values name.

    Raises:
        UserError: there is no such job.
    """
    kind: type[Recipe] = job_kind(values.get("job", JOB)).recipe
    return kind


def recipe_text(recipe: Recipe) -> str:
    """The recipe as TOML, complete with defaults; keys without a value are left out."""
    return toml_text(recipe.model_dump(mode="json", exclude_none=True))


def _recipe_text(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UserError(f"There is no recipe file {path}; check the path.")
        try:
            return path.read_text(encoding="utf-8-sig"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"Could not read the recipe {path} as UTF-8 text: {error}.") from error
    names = built_in_recipes()
    if name_or_path not in names:
        raise UserError(f"No recipe {name_or_path!r}; {nearest(name_or_path, names)}")
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
        found = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        found = {"value": text}
    if len(found) > 1:
        raise UserError(f"--set takes one section.key=value at a time; got {change!r}")
    value = found["value"]
    path = path.strip()
    _leave_out_rivals(values, path)
    *sections, key = path.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"{path!r} does not name a key: {section!r} is a value itself.")
    values[key] = value


def _leave_out_rivals(values: dict[str, Any], path: str) -> None:
    for groups in recipe_class(values).rivals:
        if any(path in group for group in groups):
            for rival in (name for group in groups if path not in group for name in group):
                section, _, key = rival.partition(".")
                if isinstance(values.get(section), dict):
                    values[section].pop(key, None)


def known_keys(kind: type[Recipe]) -> list[str]:
    """Every key of a job's recipe with its section, like train.max_steps."""
    keys = []
    for name, field in kind.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        keys += [f"{name}.{key}" for key in inner] if inner else [name]
    return keys
