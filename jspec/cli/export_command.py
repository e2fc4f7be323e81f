"""The command `jspec export`: a generation as files that run with JAX alone."""

from pathlib import Path
from typing import Annotated

import typer

from jspec._validate.errors import InputError
from jspec.cli import options
from jspec.sessions import method_choice
from jspec.sessions.run_settings import RunSettings


def export(
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder to write; it must be new or empty.")
    ],
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    method: options.MethodName = None,
    prompt_tokens: Annotated[int, options.integer_option("Maximum length of a prompt.")] = 512,
    max_new_tokens: options.MaxNewTokens = 128,
    batch_size: options.BatchSize = 1,
    platform: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Platform to compile for: cpu, cuda or tpu; may be repeated.",
            show_default="all three",
        ),
    ] = None,
    ignore_eos: options.IgnoreEos = False,
    speculative_config: options.SpeculativeConfig = None,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
) -> None:
    """Save model, method and compiled decoding as one folder that runs with JAX alone."""
    RunSettings(max_new_tokens, batch_size=batch_size)
    choice = method_choice.choose(method, speculative_config)
    draft = method_choice.draft_model(choice, model, draft_model)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise InputError(f"--out {out} is there already; name a new folder")
    if not out.absolute().parent.is_dir():
        raise InputError(f"--out {out} lies in {out.parent}, which is not a folder; make it first")

    # From here on JAX is imported.
    import jspec
    from jspec.decoding import artefact
    from jspec.decoding.artefact.write import PLATFORMS
    from jspec.sessions import session as sessions

    # An artefact has no kernels, and without them a CPU copies what it scans.
    session = sessions.start(model, draft, choice, dtype, kv_dtype, scan_layers=False)
    llm = session.llm
    artefact.export(
        out, llm.model, llm.params, **llm.drafting,
        prompt_tokens=prompt_tokens, max_new_tokens=max_new_tokens, rows=batch_size,
        stopping=jspec.Stopping(eos=() if ignore_eos else llm.target.eos),
        platforms=platform or PLATFORMS,
    )  # fmt: skip
    if llm.target.tokenizer is not None:
        llm.target.tokenizer.save(str(out / "tokenizer.json"))
    size = sum(file.stat().st_size for file in out.iterdir()) / 1e6
    print(f'{out}: {size:.1f} MB; python {out / "run.py"} "[[1, 2, 3]]" runs it')
