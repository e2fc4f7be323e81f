"""The command `jspec trace`: a generation as a page. Its work is in functions that need JAX."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jspec._validate.errors import InputError
from jspec.cli import options, prompts
from jspec.methods import BUNDLED
from jspec.sessions import method_choice
from jspec.sessions.method_choice import Choice
from jspec.sessions.run_settings import RunSettings, sampling_request

_OUT = Path("trace.html")


def trace(
    prompt: options.Prompt = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="HTML file to write; it is self-contained.")
    ] = _OUT,
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    method: options.MethodName = None,
    max_new_tokens: options.MaxNewTokens = 128,
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    ignore_eos: options.IgnoreEos = False,
    speculative_config: options.SpeculativeConfig = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
) -> None:
    """Continue a prompt, and write a page that shows every round of drafting."""
    request = sampling_request(temperature, top_k, top_p, min_p, seed, ignore_eos)
    settings = RunSettings(max_new_tokens, request)
    choice = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(choice, model, draft_model)
    check_out(out)
    inputs = prompts.one(prompt)

    # From here on JAX is imported.
    from jspec.cli.trace import write
    from jspec.sessions import compilation
    from jspec.sessions import session as sessions

    compilation.keep_on_disk()
    session = sessions.start(model, draft, choice, dtype, kv_dtype)
    target = session.target
    ids = prompts.encode(inputs, target.tokenizer, target.model.vocab_size, target.model.context)
    print(write.run(session, ids, settings, describe_run(model, choice, settings), out))


def check_out(out: Path) -> None:
    """Raises InputError if the file cannot be written, before anything is loaded."""
    folder = out.parent
    if out.is_dir():
        raise InputError(f"--out {out} is a folder; name a file in it, such as {out / _OUT}")
    if not folder.is_dir():
        raise InputError(f"--out {out} lies in {folder}, which is not a folder; make it first")
    if not os.access(out if out.exists() else folder, os.W_OK):
        raise InputError(f"--out {out} cannot be written; name a file that you may write")


def describe_run(model: str | None, choice: Choice, settings: RunSettings) -> dict[str, str]:
    """Returns the words of the page's head: what ran, and how its tokens were chosen."""
    options: Sequence[str] = [f"{name} {value}" for name, value in choice.options.items()]
    method = choice.method.name + (f" ({', '.join(options)})" if options else "")
    if settings.request.temperature == 0:
        return {"model": model or BUNDLED, "method": method, "sampling": "greedy"}
    filters = {
        "top-k": (settings.request.top_k, 0),
        "top-p": (settings.request.top_p, 1),
        "min-p": (settings.request.min_p, 0),
    }
    words = [f"temperature {settings.request.temperature:g}"]
    words += [f"{name} {value:g}" for name, (value, off) in filters.items() if value != off]
    words.append(f"seed {settings.request.seed}")
    return {"model": model or BUNDLED, "method": method, "sampling": ", ".join(words)}
