"""The command `jspec certify`: whether a method changes a token of a model."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jspec._validate.errors import InputError
from jspec.cli import options
from jspec.cli.bench import questions as asking
from jspec.methods import BUNDLED
from jspec.sessions import method_choice
from jspec.sessions.run_settings import RunSettings, sampling_request

if TYPE_CHECKING:
    from jspec.sessions.session import Session

_LONGEST = 32
"""Maximum number of tokens behind a prompt that are compared bit by bit."""


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
            help="Questions in Spec-Bench's schema; the prompt is the first turn of each.",
            show_default="a small bundled set",
        ),
    ] = None,
    prompts: options.Prompts = None,
    limit: Annotated[
        int | None,
        options.integer_option(
            "Use N prompts, spread evenly over the categories.", show_default="all"
        ),
    ] = None,
    max_new_tokens: options.MaxNewTokens = 64,
    temperature: Annotated[
        float,
        options.number_option(
            "Temperature of the sampled checks, above 0; greedy decoding is always checked.",
            metavar="T",
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
        options.integer_option(
            "Draws of the G-test, which checks schemes that keep only the distribution."
        ),
    ] = 4096,
    dtype: options.Dtype = None,
    kv_dtype: options.KvDtype = None,
    bitwise: Annotated[
        bool,
        typer.Option(
            "--bitwise",
            help="Instead of a method, check the model: compare logits of trees with logits of "
            "single tokens, bit by bit.",
        ),
    ] = False,
    batch_invariant: options.BatchInvariance = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of the report.")
    ] = False,
) -> int:
    """Check that a method changes no token of a model.

    Decodes with the method and without it, greedy and sampled, and says of each difference whether
    it is a rounding tie or a bug. Exit code 0: lossless within what was tested; 1: not lossless; 2:
    bad input.
    """
    if not temperature > 0:
        raise InputError(
            f"--temperature is {temperature:g}; pass a number above 0 for the sampled checks "
            "(greedy decoding is always checked)"
        )
    for name, value in (("--limit", limit), ("--draws", draws)):
        if value is not None and value < 1:
            raise InputError(f"{name} is {value}; pass at least 1")
    request = sampling_request(temperature, top_k, top_p, min_p, seed, ignore_eos)
    settings = RunSettings(max_new_tokens, request, batch_size=batch_size)
    choice = method_choice.choose(method, speculative_config)
    if head is not None:
        choice = method_choice.Choice(
            choice.method, choice.method.check({**choice.options, "head": head})
        )
    draft = method_choice.draft_model(choice, model, draft_model)
    if questions is not None and prompts is not None:
        raise InputError("--questions and --prompts were both given; give one of them")
    if prompts is not None:
        entries = asking.from_prompts(prompts)
    else:
        entries = asking.read(questions or asking.SAMPLE)
    entries = asking.choose(entries, limit)

    # From here on JAX is imported.
    from jspec.cli.bench.chat import wording
    from jspec.cli.prompts import Prompt, encode
    from jspec.models.eight_bits import describe_dtypes
    from jspec.sessions import compilation
    from jspec.sessions import session as sessions
    from jspec.sessions.batches import interruptible

    compilation.keep_on_disk()
    session = sessions.start(model, draft, choice, dtype, kv_dtype, batch_invariant=batch_invariant)
    target, network = session.target, session.target.model
    worded = wording(target)
    texts = [Prompt(tuple(worded.ids(each.turns[:1], [])), each.source) for each in entries]
    ids = encode(texts, target.tokenizer, network.vocab_size, network.context)
    check = _compare_bits if bitwise else _certify
    result, text, code = interruptible(lambda: check(session, ids, settings, draws))
    _progress("")
    if as_json:
        sys.stdout.write(json.dumps({"model": model or BUNDLED, **result}) + "\n")
    else:
        print(f"{model or BUNDLED}, {describe_dtypes(network)}, {text}")
    return code


def _certify(
    session: "Session", ids: list[list[int]], settings: RunSettings, draws: int
) -> tuple[dict[str, Any], str, int]:
    """Certifies the session's method: what was found, its lines, and the exit code."""
    from jspec.testing import certify

    llm, target, choice = session.llm, session.target, session.choice
    request = settings.request
    if request.eos is None:
        request = replace(request, eos=target.eos)
    certificate = certify(
        llm.model, llm.params, **llm.drafting,
        prompts=ids, max_new_tokens=settings.max_new_tokens,
        batch_size=min(settings.batch_size, len(ids)),
        request=request, num_draws=draws, said=_progress,
    )  # fmt: skip
    record = {"method": choice.method.name, "options": dict(choice.options)}
    output = certificate.as_dict()
    output["settings"] |= record
    head = (
        f"{choice.method.name} (scheme {choice.scheme}), {certificate.settings['device']}: "
        f"{len(ids)} prompts, {settings.max_new_tokens} tokens each\n"
    )
    return output, f"{head}{certificate}", certificate.exit_code


def _compare_bits(
    session: "Session", ids: list[list[int]], settings: RunSettings, draws: int
) -> tuple[dict[str, Any], str, int]:
    """Compares forward passes over trees with passes over one token, on the model's own texts."""
    import jax
    import jaxlib.version
    import numpy as np

    import jspec
    from jspec.testing import check_bits

    del draws
    target = session.target
    length, texts = min(settings.max_new_tokens, _LONGEST), []
    for prompt in ids:
        row = np.array([prompt], np.int32)
        result = jspec.decode(target.model, target.params, row, max_new_tokens=length)
        texts.append([*prompt, *result.tokens[0, : result.lengths[0]].tolist()])
    report = check_bits(
        target.model, target.params, texts,
        batch_size=min(settings.batch_size, len(texts)), seed=settings.request.seed, said=_progress,
    )  # fmt: skip
    text = f"{jax.devices()[0].device_kind}, jaxlib {jaxlib.version.__version__}\n{report}"
    return asdict(report), text, 0 if report.equal else 1


def _progress(line: str) -> None:
    """Shows how far it is, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
