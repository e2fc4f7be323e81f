"""The command `jspec chat`. The work is in a file of its own, so that `--help` needs no JAX."""

from typing import Annotated

import typer

from jspec.app import method_choice
from jspec.app.parsers import integer, number
from jspec.app.run_settings import RunSettings
from jspec.methods import DEFAULT

MODEL = "smollm2-135m"
"""The model that is talked to if none is named."""


def chat(
    model: Annotated[
        str, typer.Option(metavar="DIR|FILE|ID", help="Folder, GGUF file, name, or hub id.")
    ] = MODEL,
    draft_model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR|FILE|ID",
            help="The draft model, if the method needs one.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="How to draft; `jspec methods` lists them.", show_default=DEFAULT
        ),
    ] = None,
    speculative_config: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="Method and options, as an object.", show_default=False),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message.", show_default=False)
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option(parser=integer, metavar="N", help="Longest answer.")
    ] = 512,
    temperature: Annotated[
        float, typer.Option(parser=number, metavar="T", help="0 is greedy.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(parser=integer, metavar="K", help="0 switches it off.")] = 0,
    top_p: Annotated[
        float, typer.Option(parser=number, metavar="P", help="1 switches it off.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(parser=number, metavar="P", help="0 switches it off.")
    ] = 0.0,
    seed: Annotated[
        int, typer.Option(parser=integer, metavar="S", help="Seed of the sampling.")
    ] = 0,
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="D",
            help="The dtype of weights and computation.",
            show_default="float32 on CPU, else bfloat16",
        ),
    ] = None,
) -> None:
    """Talk to a chat model in the terminal."""
    settings = RunSettings(max_new_tokens, temperature, top_k, top_p, min_p, seed)
    choice = method_choice.choose(method, speculative_config)
    method_choice.check_temperature(choice, settings.temperature)
    draft = method_choice.draft_model(choice, model, draft_model)

    # From here on JAX is imported.
    from jspec.app import chat as chats
    from jspec.app import compilation, sessions

    compilation.keep_on_disk()
    chats.talk(sessions.start(model, draft, choice, dtype), settings, system)
