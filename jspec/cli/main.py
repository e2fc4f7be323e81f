"""The command line. Heavy imports happen inside commands, so `--help` is quick."""

import gc
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import jspec
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError, RunStopped
from jspec.cli import gone, options, prompts
from jspec.cli.bench.command import bench
from jspec.cli.certify_command import certify
from jspec.cli.chat_command import chat
from jspec.cli.datastore_commands import datastore_app
from jspec.cli.parsers import text
from jspec.cli.plan_command import plan
from jspec.cli.serve_command import serve
from jspec.cli.trace_command import trace
from jspec.cli.train_commands import train_app
from jspec.cli.warm_command import warm
from jspec.request import Request
from jspec.sessions import conversations, method_choice
from jspec.sessions.answer_form import AnswerForm, parse_logit_bias
from jspec.sessions.conversations import Drop
from jspec.sessions.generation_config import GenerationConfig
from jspec.sessions.run_settings import RunSettings

_NEW_OBJECTS = 50_000
"""New objects after which Python looks for cycles. Tracing makes many and leaves few cycles:
at Python's own 700, a tenth of a start goes into looking for them."""

INTERRUPTED = 130
BROKEN_PIPE = 141
"""The exit codes that a shell reports for a program that SIGINT or SIGPIPE ended."""

ClickException: Any = typer.BadParameter.__mro__[2]
"""The base of usage errors, from click or from typer's own copy of it."""

app = typer.Typer(
    help="Lossless speculative decoding for JAX.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(certify)
app.command()(chat)
app.add_typer(train_app, name="train")
app.add_typer(datastore_app, name="datastore")
app.command()(bench)
app.command()(serve)


def main() -> None:
    """The entry point."""
    gc.set_threshold(_NEW_OBJECTS)
    jspec.set_xla_flags(os.environ)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it was closed: nothing of it belongs to the other
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115  # as long as it runs
    code = run(sys.argv[1:])
    if code in (INTERRUPTED, BROKEN_PIPE):
        os._exit(code)  # a computation may be under way, which an orderly exit would wait for
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Runs a command and returns its exit code."""
    try:
        code = app(list(arguments) or ["--help"], prog_name="jspec", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except ClickException as error:
        if message := error.format_message():  # none: a group of commands has shown its help
            complain(gone.replacement(arguments) or message)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as error:
        # typer makes a SystemExit of a broken pipe, and of nothing else outside its own mode.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        return BROKEN_PIPE
    except InputError as error:
        complain(str(error))
        return 2
    except (RunStopped, OSError) as error:  # a full disk, a file that may not be read
        complain(str(error))
        return 1


def complain(message: str) -> None:
    """Says what was wrong in one line on standard error."""
    print(f"jspec: {' '.join(message.split())}", file=sys.stderr)


def version(is_set: bool) -> None:
    """Prints the version and ends, if that was asked for."""
    if is_set:
        print(f"jspec {jspec.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=version, is_eager=True),
    ] = False,
) -> None:
    """Lossless speculative decoding for JAX."""


@app.command()
def generate(
    context: typer.Context,
    prompt: options.Prompt = None,
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    method: options.MethodName = None,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    as_chat: Annotated[
        bool, typer.Option("--chat", help="Prompt a chat model with its own template.")
    ] = False,
    system: Annotated[
        str | None,
        typer.Option(
            parser=text, metavar="TEXT", help="System message; implies --chat.", show_default=False
        ),
    ] = None,
    drop: options.Drop = Drop.NONE,
    seed: options.Seed = 0,
    ignore_eos: options.IgnoreEos = False,
    batch_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="One prompt per line: plain text or JSON (a string, a list of messages or token "
            'ids, or an object with the key "prompt" or "messages").',
            show_default=False,
        ),
    ] = None,
    batch_size: options.BatchSize = 1,
    memory: options.Memory = None,
    answers: options.Answers = 1,
    stop: options.Stop = None,
    json_schema: options.JSONSchema = None,
    regex: options.Regex = None,
    choice: options.Choice = None,
    repetition_penalty: options.RepetitionPenalty = 1.0,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    logit_bias: options.LogitBias = None,
    min_tokens: options.MinTokens = 0,
    logprobs: options.Logprobs = None,
    generation_config: options.Generation = GenerationConfig.AUTO,
    speculative_config: options.SpeculativeConfig = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    batch_invariant: options.BatchInvariance = None,
    lora: options.Adapter = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of text.")
    ] = False,
    alone: Annotated[
        bool, typer.Option("--no-compare", help="Skip the comparison with plain decoding.")
    ] = False,
    mute: Annotated[
        bool, typer.Option("--no-echo", help="Print the continuation without the prompt.")
    ] = False,
) -> None:
    """Continue a prompt, and report the speedup over plain decoding."""
    form = AnswerForm(json_schema, regex, tuple(choice or ()))
    request = Request(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        eos=() if ignore_eos else None,
        stop=tuple(stop or ()),
        min_tokens=min_tokens,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=parse_logit_bias(logit_bias),
        logprobs=logprobs,
    )
    settings = RunSettings(max_new_tokens, request, form, batch_size, memory)
    check_integer("-n", answers, 1, 4096)
    if logprobs is not None and not as_json:
        raise InputError("--logprobs is written with --json alone; add it")
    method_choices = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(method_choices, model, draft_model)
    if batch_file is not None and prompt is not None:
        raise InputError("a prompt and --batch-file were both given; give one of them")
    inputs = prompts.one(prompt) if batch_file is None else prompts.many(batch_file)
    if as_chat or system is not None:
        inputs = prompts.ask(inputs, system)

    talking = any(prompt.is_conversation for prompt in inputs)
    if drop is not Drop.NONE and not talking:
        raise InputError(
            f"--drop is {drop.value}, and turns are dropped of a conversation; leave it out, or "
            "add --chat"
        )

    # From here on JAX is imported.
    from jspec.cli import text_output
    from jspec.sessions import compilation, json_output
    from jspec.sessions import session as sessions

    compilation.keep_on_disk()
    adapters = None if lora is None else {"lora": lora}
    session = sessions.start(
        model,
        draft,
        method_choices,
        dtype,
        kv_dtype,
        adapters=adapters,
        batch_invariant=batch_invariant,
    )
    if lora is not None:
        session = sessions.with_adapter(session, "lora")
    target = session.target
    settings = settings.by_model(target, generation_config, options.names_of(context))
    ids = prompts.encode(
        inputs,
        target.tokenizer,
        target.model.vocab_size,
        target.model.context,
        partial(
            conversations.render_kept, target, max_new_tokens=settings.max_new_tokens, drop=drop
        ),
    )
    if talking:
        session = conversations.answering(session)
    elif all(isinstance(prompt.content, str) for prompt in inputs):
        conversations.note_unused(target)
    ids = [prompt for prompt in ids for _ in range(answers)]
    if as_json:
        json_output.write(session, ids, settings)
    else:
        # Of a conversation the echo would be the template without its special tokens.
        text_output.show(session, ids, settings, compare=not alone, echo=not (mute or talking))


app.command()(trace)
app.command()(plan)
app.command()(warm)


@app.command()
def methods() -> None:
    """List the drafting methods and their options."""
    from jspec.cli import list_methods

    list_methods.show()
