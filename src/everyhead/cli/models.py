"""everyhead models: families and presets; the flow, parameters and costs of one of them."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from everyhead.cli.options import utf8

if TYPE_CHECKING:
    from everyhead.cli.described import Described
    from everyhead.inspection.costs import Costs

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""))


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A family, a preset (minilm-l6, gpt2/small) or a model folder; without it all.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option("--length", metavar="N", min=1, help="Tokens of a row to count with."),
    ] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, help="Pieces in the vocabulary, if not the preset's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List models and their sizes, or show what one is made of and what it costs.

    Of a preset or a folder it prints each step with the shape that leaves it, parameters by part,
    and operations and memory a token, in training and in decoding. No weights are made or read,
    so gpt3-175b takes no longer than a small one.
    """
    from everyhead.cli import described

    what = None if name is None else described.named(utf8(name), vocab_size)
    if what is None:
        _list(name, vocab_size, as_json)
        return
    found = described.described(what, length)
    if as_json:
        print(json.dumps(described.as_json(found), ensure_ascii=False, indent=2))
        return
    print(f"{found.title}: {found.parameters:,} parameters")
    _print_flow(found)
    _print_parts(found)
    if found.costs is not None:
        _print_costs(found.costs)


def _list(name: str | None, vocab_size: int | None, as_json: bool) -> None:
    from everyhead.cli import described
    from everyhead.models import MODELS

    table: dict[str, dict[str, int]] = {}
    for family in MODELS if name is None else [name]:
        table[family] = {}
        for preset in MODELS[family].presets:
            config = described.preset_config(family, preset, vocab_size)
            model = described.made(described.Named(f"{family}/{preset}", family, config))
            table[family][preset] = sum(p.numel() for p in model.parameters())
    if as_json:
        print(json.dumps(table, indent=2))
        return
    for family, presets in table.items():
        print(family)
        if not presets:
            print("  made around another family by `everyhead train`; give its folder")
        for preset, size in presets.items():
            facts = MODELS[family].presets[preset].items()
            listed = ", ".join(f"{key} {value}" for key, value in facts)
            print(f"  {preset:<13} {size:>15,} parameters   {listed}")
    if name is None:
        print("\neveryhead models PRESET shows its flow and costs; names that several families")
        print("have are said with theirs: gpt2/small.")


def _print_flow(found: "Described") -> None:
    print("\nflow (B rows, T tokens, S tokens of the source)")
    stack = ""
    width = max((len(_inside(step.name)[1]) for step in found.steps), default=0) + 4
    for step in found.steps:
        block, own = _inside(step.name)
        if block and block != stack:
            print(f"  {block}, {step.times} alike")
        stack = block
        label = f"    {own}" if block else f"  {own}"
        shape = f"({', '.join(map(str, step.shape))})"
        count = f"{step.parameters:,}" if step.parameters else "tied, or none"
        print(f"{label:<{width}}  {shape:<22} {count:>15}   {step.kind}")


def _inside(name: str) -> tuple[str, str]:
    """`decoder.*.self_attn` → the stack of blocks and the name inside."""
    stack, star, own = name.partition(".*.")
    return (stack, own) if star else ("", name)


def _print_parts(found: "Described") -> None:
    print("\nparameters")
    for part in found.parts:
        count = f"{part.parameters:,}" if part.parameters else "tied"
        print(f"  {part.name:<22} {count:>18}")
    print(f"  {'together':<22} {found.parameters:>18,}")


def _print_costs(costs: "Costs") -> None:
    from everyhead.inspection.costs import ADAM, FLOAT32

    unit = "token" if costs.tokens > 1 else "picture"
    row = f"rows of {costs.length:,} tokens"
    if costs.tokens == 1:
        row = f"a picture at a time; a text with it has {costs.length:,} tokens"
    lines = [
        ("weights", f"{_bytes(costs.parameters * FLOAT32)} in float32, "
                    f"{_bytes(costs.parameters * 2)} in bf16"),
        ("forward", f"{_short(costs.forward / costs.tokens)}FLOP a {unit}"),
        ("training", f"{_short(costs.training)}FLOP a {unit}; "
                     f"{_bytes(costs.parameters * ADAM)} for weights, gradients and Adam, and "
                     f"{_bytes(costs.kept / costs.tokens)} a {unit} until backward, float32"),
    ]  # fmt: skip
    if costs.decoding is not None:
        d = costs.decoding
        lines.append(("decoding", f"{_short(d.flops)}FLOP a token behind {costs.length:,} others"))
        cache = f"{_bytes(d.cache_per_token * FLOAT32)} a token in float32, "
        cache += f"{_bytes(d.cache_per_token * 2)} in bf16"
        if d.cache_fixed:
            cache += f"; and {_bytes(d.cache_fixed * FLOAT32)} once, in float32"
        lines.append(("cache", cache))
    print(f"\ncosts, {row}")
    for label, text in lines:
        print(f"  {label:<9} {text}")


def _short(number: float) -> str:
    """1,234,567 → `1.23 M`."""
    for size, letter in UNITS:
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g} "


def _bytes(number: float) -> str:
    """In powers of 1,000, as disks and models are sold."""
    return f"{_short(number)}B"
