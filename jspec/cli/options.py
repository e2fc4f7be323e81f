"""The options that several commands have, each once."""

from pathlib import Path
from typing import Annotated, Any

import typer

from jspec.cli.parsers import integer, number, text
from jspec.methods import BUNDLED, DEFAULT
from jspec.sessions import conversations
from jspec.sessions.generation_config import GenerationConfig


def integer_option(
    help: str, *names: str, metavar: str = "N", show_default: bool | str = True
) -> Any:
    """Returns an option that takes a whole number."""
    return typer.Option(
        *names, parser=integer, metavar=metavar, help=help, show_default=show_default
    )


def number_option(help: str, metavar: str = "X") -> Any:
    """Returns an option that takes a number."""
    return typer.Option(parser=number, metavar=metavar, help=help)


def names_of(context: typer.Context) -> set[str]:
    """Returns the names of the options that the command line has."""
    source = context.get_parameter_source
    return {name for name in context.params if getattr(source(name), "name", "") == "COMMANDLINE"}


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
        help="Trained draft head, if the method needs one: a folder or a bundled name.",
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
    integer_option(
        "Maximum number of new tokens per prompt; a full context ends the answer earlier."
    ),
]
MaxModelLen = Annotated[
    int | None,
    integer_option(
        "Maximum number of tokens of a row, prompt and output together.",
        show_default="the model's context, 2048 at most",
    ),
]
Temperature = Annotated[float, number_option("0 is greedy.", metavar="T")]
TopK = Annotated[int, integer_option("Draw from the K likeliest; 0: from all.", metavar="K")]
TopP = Annotated[
    float,
    number_option(
        "Draw from the likeliest tokens that reach probability P together; 1: from all.",
        metavar="P",
    ),
]
MinP = Annotated[
    float,
    number_option(
        "Never draw a token less likely than P times the likeliest; 0: draw from all.", metavar="P"
    ),
]
Generation = Annotated[
    GenerationConfig,
    typer.Option(
        help="Sampling where nothing is named: auto (the model's generation_config.json) or none "
        "(the defaults shown here)."
    ),
]
Seed = Annotated[
    int, integer_option("Seed of the sampling; prompt i draws from (seed, i).", metavar="S")
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
BatchSize = Annotated[int, integer_option("Prompts decoded together.", metavar="B")]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="D",
        help="float32, bfloat16: dtype of weights and computation. int8, float8_e4m3fn: 8-bit "
        "weights. q8_0, q4_0, q4_1, q4_k, q6_k: GGUF's block-quantized weights. w8a8, or the "
        "ending a8 (q8_0a8): 8-bit activations as well.",
        show_default="CPU: computation in float32, weights as stored; else bfloat16",
    ),
]
KvDtype = Annotated[
    str | None,
    typer.Option(
        metavar="D",
        help="Dtype of cached keys and values; int8 and float8_e4m3fn take a quarter of the "
        "memory that float32 takes.",
        show_default="the dtype of computation",
    ),
]
BatchInvariance = Annotated[
    int | None,
    integer_option(
        "Score all rounds by forward passes of N tokens, and attend in the order of positions: no "
        "drafter and no company changes a bit of the logits.",
        show_default="as the model is",
    ),
]
Lora = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=DIR|ID",
        help="LoRA adapter: a folder that PEFT saved, or a hub id. Requests choose it by NAME as "
        "their model. May be repeated.",
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
    integer_option(
        "With --json: log-probabilities of each token and of the K likeliest in its place.",
        metavar="K",
        show_default=False,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(
        parser=text,
        metavar="TEXT",
        help="End the answer before this text; may be repeated.",
        show_default=False,
    ),
]
JSONSchema = Annotated[
    str | None,
    typer.Option(
        "--json-schema",
        metavar="JSON|FILE",
        help="Constrain the answer to JSON that this schema allows.",
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
        help="Constrain the answer to this text; repeat the option for several choices.",
        show_default=False,
    ),
]
RepetitionPenalty = Annotated[
    float,
    number_option(
        "For tokens in the prompt or output, divide positive logits by this and multiply "
        "negative ones by it; 1: off."
    ),
]
FrequencyPenalty = Annotated[
    float,
    number_option(
        "Lower a token's logit by this for each time that it occurs in the output; 0: off."
    ),
]
PresencePenalty = Annotated[
    float,
    number_option("Lower the logits of tokens that occur in the output by this; 0: off."),
]
LogitBias = Annotated[
    str | None,
    typer.Option(
        parser=text,
        metavar="JSON",
        help='Numbers to add to logits, by token id, such as {"15": -2.5}.',
        show_default=False,
    ),
]
MinTokens = Annotated[int, integer_option("Minimum number of new tokens.")]
Answers = Annotated[
    int,
    integer_option(
        "Answers per prompt; answer j to prompt i, from 0, draws from (seed, i*N + j).", "-n"
    ),
]
Drop = Annotated[
    conversations.Drop,
    typer.Option(
        help="Turns to drop when a chat exceeds the context: none (the new turn is refused), "
        "oldest, or middle (the oldest except the first)."
    ),
]
