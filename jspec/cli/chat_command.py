"""The command `jspec chat`. The work is in a file of its own, so that `--help` needs no JAX."""

from typing import Annotated

import typer

from jspec.cli import options
from jspec.cli.parsers import text
from jspec.sessions import method_choice
from jspec.sessions.conversations import Drop
from jspec.sessions.generation_config import GenerationConfig
from jspec.sessions.run_settings import RunSettings, sampling_request

MODEL = "smollm2-135m"
"""The model that is talked to if none is named."""


def chat(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(metavar="DIR|FILE|ID", help="Folder, GGUF file, name, or hub id.")
    ] = MODEL,
    draft_model: options.DraftModel = None,
    method: options.MethodName = None,
    speculative_config: options.SpeculativeConfig = None,
    system: Annotated[
        str | None,
        typer.Option(parser=text, metavar="TEXT", help="System message.", show_default=False),
    ] = None,
    drop: options.Drop = Drop.NONE,
    max_new_tokens: options.MaxNewTokens = 512,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    generation_config: options.Generation = GenerationConfig.AUTO,
    memory: options.Memory = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
) -> None:
    """Talk to a chat model in the terminal."""
    request = sampling_request(temperature, top_k, top_p, min_p, seed)
    settings = RunSettings(max_new_tokens, request, memory=memory)
    choice = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(choice, model, draft_model)

    # From here on JAX is imported.
    from jspec.cli import chat as chats
    from jspec.sessions import compilation
    from jspec.sessions import session as sessions

    compilation.keep_on_disk()
    session = sessions.start(model, draft, choice, dtype, kv_dtype)
    settings = settings.by_model(session.target, generation_config, options.names_of(context))
    chats.talk(session, settings, system, drop)
