"""The options that the papers' benches have in common; most are the command line's own."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.prompts import CLASSES
from jspec.cli import options

Model = options.Model
DraftModel = options.DraftModel
Head = options.Head
Prompts = options.Prompts
Questions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Questions in Spec-Bench's schema: JSON lines with question_id, category, turns.",
        show_default="the shared texts",
    ),
]
Classes = Annotated[
    str,
    typer.Option(help="Classes of the shared texts, comma-separated.", show_default="all"),
]
ALL_CLASSES = ",".join(CLASSES)
PromptTokens = Annotated[
    int,
    typer.Option(
        min=0, help="First tokens of each text that are read, 0 for all; questions are whole."
    ),
]
NewTokens = Annotated[
    int, typer.Option(min=1, help="Tokens per prompt; the round that passes them counts whole.")
]
Count = Annotated[int, typer.Option(min=1, help="Prompts per class.")]
Out = Annotated[Path | None, typer.Option(help="JSON lines: what is there is not measured again.")]
