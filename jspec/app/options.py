"""The options that several commands have, each once."""

from pathlib import Path
from typing import Annotated

import typer

from jspec.app.parsers import integer, number
from jspec.methods import DEFAULT

Prompt = Annotated[
    str | None,
    typer.Argument(help="Text to continue; - reads standard input.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|FILE|ID",
        help="Folder, GGUF file, smollm2-135m, or hub id.",
        show_default="the bundled model",
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|FILE|ID",
        help="The draft model, where a method needs one: folder, GGUF file, or hub id.",
        show_default="bundled, if --model is",
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|NAME",
        help="Trained head, where a method has one.",
        show_default="bundled, if --model is",
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Questions in Spec-Bench's schema: JSON lines with question_id, category, turns.",
        show_default="a few that come along",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Instead: one prompt a line, text or a JSON list of token ids.",
        show_default=False,
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="How to draft; `jspec methods` lists them.", show_default=DEFAULT
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help='Object, such as {"method": "prompt_lookup", "num_speculative_tokens": 5}; '
        "`jspec methods` lists the keys.",
        show_default=False,
    ),
]
MaxNewTokens = Annotated[
    int, typer.Option(parser=integer, metavar="N", help="Most tokens per prompt.")
]
Temperature = Annotated[float, typer.Option(parser=number, metavar="T", help="0 is greedy.")]
TopK = Annotated[int, typer.Option(parser=integer, metavar="K", help="0 switches it off.")]
TopP = Annotated[float, typer.Option(parser=number, metavar="P", help="1 switches it off.")]
MinP = Annotated[float, typer.Option(parser=number, metavar="P", help="0 switches it off.")]
Seed = Annotated[
    int,
    typer.Option(
        parser=integer, metavar="S", help="Seed of the sampling; prompt i draws from (seed, i)."
    ),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the end.")]
BatchSize = Annotated[
    int, typer.Option(parser=integer, metavar="B", help="Prompts that run together.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="D",
        help="The dtype of weights and computation.",
        show_default="float32 on CPU, else bfloat16",
    ),
]
