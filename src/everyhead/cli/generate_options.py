"""The options of `generate`, each said once."""

from pathlib import Path
from typing import Annotated

import typer

Model = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run, a model folder, a .gguf file, or a fetched name like smollm2."
    ),
]
Prompt = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="The beginning of a text; without it standard input."),
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", help="A file of prompts, one a line; - is stdin."),
]
MaxNewTokens = Annotated[int, typer.Option(metavar="N", help="Longest text in tokens.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        metavar="T",
        help="0: the most probable token each time; 0.8 by default, more is more surprising.",
    ),
]
TopK = Annotated[
    int, typer.Option(metavar="K", help="Choose among the K most probable tokens; 0: all.")
]
TopP = Annotated[
    float, typer.Option(metavar="P", help="Among the fewest tokens whose probabilities reach P.")
]
MinP = Annotated[
    float, typer.Option(metavar="P", help="Among tokens at least P times as probable as the best.")
]
Penalty = Annotated[
    float,
    typer.Option(metavar="X", help="Above 1: what the text has already becomes less probable."),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="The same seed and prompt give the same text.")
]
Samples = Annotated[int, typer.Option(metavar="N", help="Texts after each prompt, one a line.")]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="End before this text; \\n is a line break; may be repeated."
    ),
]
BeamWidth = Annotated[
    int,
    typer.Option(metavar="N", help="Look for the most probable text with N beams."),
]
Penalised = Annotated[
    float, typer.Option(metavar="X", help="Beams' scores are divided by length to this power.")
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Converse, by the model's chat template; Ctrl-D ends.")
]
System = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What --chat tells the model about its role.")
]
Shots = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Choose labels instead, after examples: text TAB label, one a line."
    ),
]
Labels = Annotated[
    str | None,
    typer.Option(metavar="A,B,…", help="The labels; by default those of the examples."),
]
Template = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="How an example is written, with {text} and {label}; \\n is a line break.",
    ),
]
Mean = Annotated[
    bool, typer.Option("--mean", help="Compare labels by log p of a token, not of the whole label.")
]
Json = Annotated[
    bool, typer.Option("--json", help="A JSON object a line: the prompt, the text, why it ended.")
]
BatchTokens = Annotated[
    int, typer.Option(metavar="N", help="Tokens that are held at once; less needs less memory.")
]
