"""The command `jspec certify`. The work is in `certification`, so that `--help` needs no JAX."""

from pathlib import Path
from typing import Annotated

import typer

from jspec._validate.errors import InputError
from jspec.cli import options
from jspec.cli.bench import questions as asking
from jspec.cli.parsers import integer, number
from jspec.sessions import method_choice
from jspec.sessions.run_settings import RunSettings


def certify(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    head: options.Head = None,
    method: options.MethodName = None,
    speculative_config: options.SpeculativeConfig = None,
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Questions in Spec-Bench's schema, of which the first turn is the prompt.",
            show_default="a few that come along",
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: one prompt a line, text or a JSON list of token ids.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            parser=integer, metavar="N", help="Prompts, evenly over classes.", show_default="all"
        ),
    ] = None,
    max_new_tokens: options.MaxNewTokens = 64,
    temperature: Annotated[
        float,
        typer.Option(
            parser=number,
            metavar="T",
            help="Of the sampled checks, above 0; greedy decoding is always checked.",
        ),
    ] = 1.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = 0,
    ignore_eos: options.IgnoreEos = False,
    batch_size: options.BatchSize = 1,
    draws: Annotated[
        int,
        typer.Option(
            parser=integer,
            metavar="N",
            help="Draws of the G-test, for schemes that draw; four times as many find half the "
            "deviation.",
        ),
    ] = 4096,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    bitwise: Annotated[
        bool,
        typer.Option(
            "--bitwise",
            help="Instead: compare forward passes of trees with forward passes of one token, bit "
            "by bit; no method takes part.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object instead of the report.")
    ] = False,
) -> int:
    """Check that a method changes no token of a model, and say how sure that is.

    Drafted texts are compared with plain ones, greedy and sampled; each divergence is found to be a
    tie of rounding or a bug. Exit code 0: lossless within what was tested; 1: not; 2: bad input.
    """
    if not temperature > 0:
        raise InputError(
            f"--temperature is {temperature:g}; pass a number above 0 for the sampled checks "
            "(greedy decoding is always checked)"
        )
    for name, value in (("--limit", limit), ("--draws", draws)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; pass at least 1")
    settings = RunSettings(
        max_new_tokens, temperature, top_k, top_p, min_p, seed, ignore_eos, batch_size
    )
    choice = method_choice.choose(method, speculative_config)
    if head is not None:
        choice = method_choice.Choice(
            choice.method, choice.method.check({**choice.options, "head": head})
        )
    draft = method_choice.draft_model(choice, model, draft_model)
    if questions is not None and prompts is not None:
        raise InputError("--questions and --prompts were both given; give one of them")
    if prompts is not None:
        asked = asking.from_prompts(prompts)
    else:
        asked = asking.read(questions or asking.SAMPLE)
    asked = asking.choose(asked, limit)

    # From here on JAX is imported.
    from jspec.cli import certification
    from jspec.sessions import compilation
    from jspec.sessions import session as sessions

    compilation.keep_on_disk()
    session = sessions.start(model, draft, choice, dtype, kv_dtype)
    if bitwise:
        return certification.compare_bits(session, model, asked, settings, as_json)
    return certification.run(session, model, asked, settings, draws, as_json)
