"""The work of `jspec certify`: a session's method, certified on prompts, and shown."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import jax
import numpy as np

import jspec
from jspec._xla import compiler
from jspec.cli import prompts
from jspec.cli.bench.chat import wording
from jspec.cli.bench.questions import Question
from jspec.methods import BUNDLED
from jspec.models import eight_bits
from jspec.sessions.batches import interruptible
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session
from jspec.testing import Bits, Certificate, certify, check_bits

_LONGEST = 32
"""Most tokens behind a prompt that are compared bit by bit."""


def run(
    session: Session,
    model: str | None,
    questions: Sequence[Question],
    settings: RunSettings,
    num_draws: int,
    as_json: bool,
) -> int:
    """Certifies, and shows the certificate.

    Args:
        session: model and drafter.
        model: the model's name, if one was given.
        questions: of which the first turn is the prompt.
        settings: of all runs; the sampled checks take its sampling.
        num_draws: of the G-test.
        as_json: whether to write one JSON object instead of a report.

    Returns:
        The exit code.

    Raises:
        InputError: if a prompt or a setting does not fit the model.
    """
    target, built = session.target, session.built
    ids = _ids(session, questions)
    sampling = settings.sampling
    assert sampling is not None, "the temperature was found to be above 0"
    certificate = interruptible(
        lambda: certify(
            built.model,
            target.params,
            built.drafter,
            built.drafter_params,
            prompts=ids,
            max_new_tokens=settings.max_new_tokens,
            batch_size=min(settings.batch_size, len(ids)),
            eos=None if settings.ignore_eos else target.eos,
            sampling=sampling,
            key=settings.seed,
            num_draws=num_draws,
            said=_progress,
        )
    )
    _progress("")
    name, choice = model or BUNDLED, session.choice
    if as_json:
        found = certificate.as_dict()
        chosen = {"model": name, "method": choice.method.name, "options": dict(choice.options)}
        found["settings"] = chosen | found["settings"]
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        print(_head(name, session, certificate))
        print(certificate)
    return certificate.exit_code


def compare_bits(
    session: Session,
    model: str | None,
    questions: Sequence[Question],
    settings: RunSettings,
    as_json: bool,
) -> int:
    """Compares forward passes of trees with forward passes of one token on texts of the model's
    own.

    Args:
        session: the model.
        model: its name, if one was given.
        questions: of which the first turn is the prompt.
        settings: of the texts behind the prompts.
        as_json: whether to write one JSON object instead of a sentence.

    Returns:
        The exit code: 0 where no bit differs, 1 where some do.

    Raises:
        InputError: if a prompt or a setting does not fit the model.
    """
    target = session.target
    ids, batch = _ids(session, questions), settings.batch_size
    length = min(settings.max_new_tokens, _LONGEST)

    def compare() -> Bits:
        texts = []
        for prompt in ids:
            row = np.array([prompt], np.int32)
            written = jspec.decode(target.model, target.params, row, max_new_tokens=length)
            texts.append([*prompt, *written.tokens[0, : written.lengths[0]].tolist()])
        return check_bits(
            target.model, target.params, texts, batch_size=min(batch, len(texts)),
            seed=settings.seed, said=_progress,
        )  # fmt: skip

    found = interruptible(compare)
    _progress("")
    if as_json:
        sys.stdout.write(json.dumps({"model": model or BUNDLED, **asdict(found)}) + "\n")
    else:
        network: Any = target.model
        dtypes = [eight_bits.called(kind) for kind in (network.dtype, network.param_dtype)]
        said = dtypes[0] if dtypes[0] == dtypes[1] else "{}, weights in {}".format(*dtypes)
        if network.kv_dtype is not None:
            said += f", keys and values in {eight_bits.called(network.kv_dtype)}"
        print(f"{model or BUNDLED}, {said}, {jax.devices()[0].device_kind}")
        print(found)
        if (wrong := compiler.wrong()) is not None:
            print(f"Warning: {wrong}.")
    return 0 if found.equal else 1


def _ids(session: Session, questions: Sequence[Question]) -> list[list[int]]:
    """The prompts' token ids."""
    target, model = session.target, session.built.model
    worded = wording(target)
    asked = [
        prompts.Prompt(tuple(worded.ids(question.turns[:1], [])), question.source)
        for question in questions
    ]
    return prompts.encode(asked, target.tokenizer, model.vocab_size, model.context)


def _head(model: str, session: Session, certificate: Certificate) -> str:
    used = certificate.settings
    sampling = ", ".join(
        f"{name} {value:g}" for name, value in used["sampling"].items() if value not in (0, 1)
    )
    choice, rounding = session.choice, certificate.rounding
    return (
        f"{choice.method.name} (scheme {choice.scheme}, {used['widths'][-1]} drafted nodes at "
        f"most) on {model}, {rounding.dtype}, {used['device']}: {used['num_prompts']} prompts, "
        f"{used['max_new_tokens']} tokens each, {used['batch_size']} at a time; sampled checks at "
        f"{sampling or 'temperature 1'}"
    )


def _progress(line: str) -> None:
    """Shows how far it is, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
