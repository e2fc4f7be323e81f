"""The options that several commands have, each once."""

from pathlib import Path
from typing import Annotated

import typer

from jspec.cli.parsers import integer, number, text
from jspec.methods import BUNDLED, DEFAULT
from jspec.sessions import conversations

Prompt = Annotated[
    str | None,
    typer.Argument(help="Text to continue; - reads standard input.", show_default=False),
]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|FILE|ID",
        help="Folder, GGUF file, hub id, or a name: jspec-7m, jspec-800k, smollm2-135m.",
        show_default=BUNDLED,
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|FILE|ID",
        help="Draft model, if the method needs one: folder, GGUF file, or hub id.",
        show_default="the bundled one, if --model is bundled",
    ),
]
Head = Annotated[
    str | None,
    typer.Option(
        metavar="DIR|NAME",
        help="Trained head, if the method has one.",
        show_default="the bundled one, if --model is bundled",
    ),
]
Questions = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Questions in Spec-Bench's schema: JSON lines with question_id, category, turns.",
        show_default="a small bundled set",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Instead of questions: one prompt per line, text or a JSON list of token ids.",
        show_default=False,
    ),
]
MethodName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Drafting method; `jspec methods` lists them.", show_default=DEFAULT
    ),
]
SpeculativeConfig = Annotated[
    str | None,
    typer.Option(
        parser=text,
        metavar="JSON",
        help='Method and its options, such as {"method": "eagle", "head": "my-head"}; '
        "`jspec methods` lists the keys.",
        show_default=False,
    ),
]
MaxNewTokens = Annotated[
    int,
    typer.Option(
        parser=integer,
        metavar="N",
        help="Maximum number of new tokens per prompt; the context may end it earlier.",
    ),
]
Temperature = Annotated[float, typer.Option(parser=number, metavar="T", help="0 is greedy.")]
TopK = Annotated[int, typer.Option(parser=integer, metavar="K", help="0 is off.")]
TopP = Annotated[float, typer.Option(parser=number, metavar="P", help="1 is off.")]
MinP = Annotated[float, typer.Option(parser=number, metavar="P", help="0 is off.")]
Seed = Annotated[
    int,
    typer.Option(
        parser=integer, metavar="S", help="Seed of the sampling; prompt i draws from (seed, i)."
    ),
]
IgnoreEos = Annotated[
    bool, typer.Option("--ignore-eos", help="Keep generating after the end token.")
]
Memory = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Load the drafter's memory from this file, and save it there.",
        show_default=False,
    ),
]
BatchSize = Annotated[
    int, typer.Option(parser=integer, metavar="B", help="Prompts decoded together.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="D",
        help="float32, bfloat16: weights and computation. int8, float8_e4m3fn: 8-bit "
        "weights. q8_0, q4_0, q4_1, q4_k, q6_k: weights in the blocks of GGUF files. w8a8, "
        "q8_0a8, q4_0a8 and so on: activations are rounded to 8 bits too.",
        show_default="CPU: computation in float32, weights as stored; else bfloat16",
    ),
]
KvDtype = Annotated[
    str | None,
    typer.Option(
        metavar="D",
        help="The dtype of keys and values; int8 and float8_e4m3fn take a quarter of float32's "
        "memory.",
        show_default="the dtype of computation",
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=DIR|ID",
        help="LoRA adapter: a folder that PEFT saved, or a hub id; may be repeated. Requests name "
        "it as their model.",
        show_default=False,
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        "--lora",
        metavar="DIR|ID",
        help="LoRA adapter: a folder that PEFT saved, or a hub id.",
        show_default=False,
    ),
]
Logprobs = Annotated[
    int | None,
    typer.Option(
        parser=integer,
        metavar="K",
        help="With --json: log-probabilities of tokens and of the K likeliest.",
        show_default=False,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        parser=text,
        metavar="TEXT",
        help="Stop string: end before this text; may be repeated.",
        show_default=False,
    ),
]
JSONSchema = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="JSON|FILE",
        help="Constrain the answer to JSON of this schema.",
        show_default=False,
    ),
]
Regex = Annotated[
    str | None,
    typer.Option(
        parser=text,
        metavar="PATTERN",
        help="Constrain the answer to this regular expression.",
        show_default=False,
    ),
]
Choice = Annotated[
    list[str] | None,
    typer.Option(
        parser=text,
        metavar="TEXT",
        help="Constrain the answer to one of these; may be repeated.",
        show_default=False,
    ),
]
RepetitionPenalty = Annotated[
    float,
    typer.Option(
        parser=number, metavar="X", help="Divide logits of tokens in the text by this; 1 is off."
    ),
]
FrequencyPenalty = Annotated[
    float,
    typer.Option(
        parser=number, metavar="X", help="Subtracted per occurrence in the output; 0 is off."
    ),
]
PresencePenalty = Annotated[
    float,
    typer.Option(
        parser=number,
        metavar="X",
        help="Subtracted once from logits of tokens in the output; 0 is off.",
    ),
]
LogitBias = Annotated[
    str | None,
    typer.Option(
        parser=text,
        metavar="JSON",
        help='Added to logits, such as {"15": -2.5}.',
        show_default=False,
    ),
]
MinTokens = Annotated[
    int, typer.Option(parser=integer, metavar="N", help="Minimum number of tokens.")
]
Answers = Annotated[
    int, typer.Option("-n", parser=integer, metavar="N", help="Answers per prompt.")
]
Drop = Annotated[
    conversations.Drop,
    typer.Option(
        help="If a conversation has outgrown the context: none refuses the turn, oldest drops the "
        "oldest turns, middle keeps the first turn and drops the oldest others."
    ),
]
