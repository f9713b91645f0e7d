"""A model by name (a family, one of its presets, a folder), made without weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everyhead.errors import UserError

if TYPE_CHECKING:
    from everyhead.inspection.costs import Costs
    from everyhead.inspection.flow import Part, Step

DEFAULT_LENGTH = 2048
COUNTED_LENGTH = 512  # of attention that is counted at the length itself, chunk by chunk
VOCABULARY = 37_000  # of families whose papers leave it open


class Named(NamedTuple):
    """What is to be described: its title, its family in MODELS, and its config."""

    title: str
    family: str
    config: Any


class Described(NamedTuple):
    """All that `everyhead models NAME` says of one model."""

    title: str
    family: str
    config: dict[str, Any]
    parameters: int
    parts: "list[Part]"
    steps: "list[Step]"
    costs: "Costs | None"


def named(name: str, vocab_size: int | None = None) -> Named | None:
    """A preset (`minilm-l6`, or `bert/minilm-l6`) or a model folder; None for a family's name.

    Raises:
        UserError: nothing is called so, or several presets are.
    """
    from everyhead.models import MODELS

    if name in MODELS:
        return None
    family, slash, preset = name.partition("/")
    if slash and family in MODELS and preset in MODELS[family].presets:
        return _preset(family, preset, vocab_size)
    homes = [family for family, each in MODELS.items() if name in each.presets]
    if len(homes) == 1:
        return _preset(homes[0], name, vocab_size)
    if homes:
        several = ", ".join(f"{family}/{name}" for family in homes)
        raise UserError(f"Several families have a preset {name!r}: say {several}.")
    if Path(name).exists() or _fetched(name):
        return _folder(name)
    raise UserError(
        f"There is no family, preset or folder {name!r}; there is {', '.join(MODELS)} "
        "(`everyhead models` lists their presets)."
    )


def preset_config(family: str, preset: str, vocab_size: int | None = None) -> Any:
    """The preset's config; vocab_size, where given, in place of its own."""
    from everyhead.models import MODELS

    make, fields = MODELS[family].config, dict(MODELS[family].presets[preset])
    field = make.model_fields.get("vocab_size")
    if field is not None and vocab_size is not None:
        fields["vocab_size"] = vocab_size
    elif field is not None and field.is_required() and "vocab_size" not in fields:
        fields["vocab_size"] = VOCABULARY
    try:
        return make.model_validate(fields)
    except ValueError as error:
        reason = str(error).splitlines()[-2].strip() if "\n" in str(error) else str(error)
        raise UserError(f"{family}/{preset} cannot have that vocabulary: {reason}") from error


def described(what: Named, length: int | None = None) -> Described:
    """Flow, parameters and costs at `length` tokens.

    Raises:
        UserError: the length is beyond the model's longest, or its numbers do not fit together.
    """
    from everyhead.inspection.costs import costs
    from everyhead.inspection.flow import parts, steps
    from everyhead.inspection.weightless import has_variants

    model = made(what)
    longest = getattr(what.config, "max_len", None)
    if length is not None and longest is not None and length > longest:
        raise UserError(f"--length {length} is beyond the longest text of {what.title}, {longest}.")
    most = COUNTED_LENGTH if has_variants(model) else DEFAULT_LENGTH
    length = length or min(longest or most, most)
    return Described(
        title=what.title,
        family=what.family,
        config=what.config.model_dump(mode="json"),
        parameters=sum(p.numel() for p in model.parameters()),
        parts=parts(model),
        steps=steps(model),
        costs=costs(model, length),
    )


def made(what: Named) -> Any:
    """The model, its large tensors one number each."""
    from everyhead.inspection.weightless import Unmade
    from everyhead.models import MODELS

    try:
        with Unmade():
            return MODELS[what.family].model(what.config)
    except ValueError as error:
        raise UserError(f"{what.title} does not fit together: {error}") from error


def as_json(found: Described) -> Mapping[str, Any]:
    """The same as plain numbers and names."""
    values = found._asdict()
    values["parts"] = {part.name: part.parameters for part in found.parts}
    values["steps"] = [step._asdict() for step in found.steps]
    if found.costs is not None:
        costs = found.costs._asdict()
        costs["decoding"] = costs["decoding"] and costs["decoding"]._asdict()
        values["costs"] = costs | {"training_flops_per_token": found.costs.training}
    return values


def _preset(family: str, preset: str, vocab_size: int | None) -> Named:
    return Named(f"{family}/{preset}", family, preset_config(family, preset, vocab_size))


def _fetched(name: str) -> bool:
    from everyhead.weights.named import located

    return located(name).is_dir()


def _folder(name: str) -> Named:
    from everyhead.weights.gguf import config_of, gguf_at
    from everyhead.weights.gguf_file import GgufFile
    from everyhead.weights.named import located
    from everyhead.weights.opening import MODEL_CONFIG, kind_for, read_config

    folder = located(name)
    if (file := gguf_at(folder)) is not None:
        return Named(name, "llama", config_of(GgufFile(file)))
    values, where = read_config(folder), folder / MODEL_CONFIG
    kind = kind_for(values, where)
    return Named(name, kind.family, kind.config(values, where))
