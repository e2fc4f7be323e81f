"""The command `jspec serve`. The work is in `jspec.serve`, so that `--help` needs no JAX."""

import os
from pathlib import Path
from typing import Annotated

import typer

from jspec._validate import extras, plain_json
from jspec.cli import options
from jspec.cli.parsers import named_folders, text
from jspec.methods import BUNDLED
from jspec.serve.limits import ServerLimits
from jspec.sessions import method_choice
from jspec.sessions.generation_config import GenerationConfig

LIMITS = ServerLimits()
_NEEDED = ("starlette", "uvicorn", "prometheus_client", "pydantic")


def serve(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    method: options.MethodName = None,
    speculative_config: options.SpeculativeConfig = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is all.")
    ] = "127.0.0.1",
    port: Annotated[int, options.integer_option("Port to listen on; 0 takes a free one.")] = 8000,
    rows: Annotated[
        int, options.integer_option("Requests answered together (slots).", metavar="B")
    ] = 8,
    max_model_len: options.MaxModelLen = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            parser=text,
            metavar="KEY",
            help="Key that clients must send; the variable JSPEC_API_KEY can hold it instead.",
            show_default=False,
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            parser=text,
            metavar="NAME",
            help="Name of the model in requests.",
            show_default="--model",
        ),
    ] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Jinja template that renders chats.",
            show_default="the model's own",
        ),
    ] = None,
    tool_call_parser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Format of the model's tool calls: hermes or llama3_json.",
            show_default="as the chat template shows",
        ),
    ] = None,
    rounds: Annotated[int, options.integer_option("Rounds per device call.")] = 8,
    max_queue: Annotated[
        int, options.integer_option("Maximum waiting requests; further ones get 429.")
    ] = 128,
    prefill_tokens: Annotated[
        int,
        options.integer_option(
            "Maximum prompt tokens read between two device calls while other rows generate."
        ),
    ] = 256,
    prefix_megabytes: Annotated[
        int, options.integer_option("Memory (MB) of the prefix cache; 0: no cache.")
    ] = 512,
    max_logprobs: Annotated[
        int,
        options.integer_option(
            "Maximum logprobs per token that requests may ask for; -1 disables logprobs.",
            metavar="K",
        ),
    ] = 20,
    max_grammar_states: Annotated[
        int, options.integer_option("Maximum automaton states of a grammar; 0 disables grammars.")
    ] = 1024,
    max_grammar_classes: Annotated[
        int, options.integer_option("Maximum classes of tokens that a grammar tells apart.")
    ] = 256,
    max_stop_states: Annotated[
        int, options.integer_option("Maximum automaton states of stop strings.")
    ] = 1024,
    max_stop_classes: Annotated[
        int, options.integer_option("Maximum classes of tokens that stop strings tell apart.")
    ] = 512,
    penalties: Annotated[
        bool, typer.Option(help="Allow penalties, biases and min_tokens in requests.")
    ] = True,
    drain_seconds: Annotated[
        int, options.integer_option("Seconds that running requests may still take after SIGTERM.")
    ] = 60,
    max_forms: Annotated[
        int,
        options.integer_option("Maximum concurrent compilations of grammars and stop strings."),
    ] = LIMITS.forms,
    form_seconds: Annotated[
        int,
        options.integer_option(
            "Time limit (s) for parsing a request, and another for compiling its grammar."
        ),
    ] = LIMITS.form_seconds,
    form_megabytes: Annotated[
        int, options.integer_option("Memory limit (MB) of one grammar compilation.")
    ] = LIMITS.form_megabytes,
    form_kilobytes: Annotated[
        int,
        options.integer_option(
            "Maximum size (KB) of a request's schema, regex, tool list or choice list."
        ),
    ] = LIMITS.form_kilobytes,
    max_form_queue: Annotated[
        int,
        options.integer_option(
            "Maximum waiting grammar compilations; further requests for one get 429."
        ),
    ] = LIMITS.form_queue,
    generation_config: options.Generation = GenerationConfig.AUTO,
    memory: options.Memory = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    batch_invariant: options.BatchInvariance = None,
    lora: options.Lora = None,
) -> None:
    """Serve a model over HTTP with the OpenAI API."""
    extras.require("jspec serve", "serve", *_NEEDED)
    choice = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(choice, model, draft_model)
    adapters = named_folders("--lora", lora or ())

    from jspec.serve import launch, listening

    settings = launch.ServeSettings(
        name=plain_json.with_text_alone(served_model_name or model or BUNDLED),
        adapters=tuple(adapters),
        host=host,
        port=port,
        rows=rows,
        max_model_len=max_model_len,
        api_key=os.environ.get("JSPEC_API_KEY") if api_key is None else api_key,
        rounds=rounds,
        max_queue=max_queue,
        prefill_tokens=prefill_tokens,
        prefix_megabytes=prefix_megabytes,
        max_logprobs=max_logprobs,
        grammar_states=max_grammar_states,
        grammar_classes=max_grammar_classes,
        stop_states=max_stop_states,
        stop_classes=max_stop_classes,
        penalties=penalties,
        limits=ServerLimits(
            forms=max_forms,
            form_seconds=form_seconds,
            form_megabytes=form_megabytes,
            form_kilobytes=form_kilobytes,
            form_queue=max_form_queue,
        ),
        chat_template=chat_template,
        tool_call_parser=tool_call_parser,
        drain_seconds=drain_seconds,
        generation_config=generation_config,
        memory=memory,
    )
    # Before a model is loaded, which takes longer.
    listener = listening.bound(host, port)

    # From here on JAX is imported.
    from jspec.sessions import compilation
    from jspec.sessions import session as sessions

    compilation.keep_on_disk()
    session = sessions.start(
        model,
        draft,
        launch.narrow(choice, rows),
        dtype,
        kv_dtype,
        adapters=adapters,
        batch_invariant=batch_invariant,
    )
    launch.serve(session, settings, listener)
