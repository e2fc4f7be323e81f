"""A whole bench: models are loaded, prompts made and measured, and what was found is told."""

import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import jax

import jspec
from jspec import models
from jspec._validate.errors import InputError
from jspec.cli.bench import chat, tables, timing, verdict
from jspec.cli.bench.contenders import Contender, Drafting
from jspec.cli.bench.ledger import Ledger, Row
from jspec.cli.bench.measure import Bench, ReportedContender, fits
from jspec.cli.bench.questions import Question, choose
from jspec.cli.bench.settings import PLAIN, BenchOptions
from jspec.cli.bench.statistics import report
from jspec.costs import devices
from jspec.methods import BUNDLED, BUNDLED_DRAFT, COUPLED, describe
from jspec.models.eight_bits import describe_dtypes
from jspec.models.fingerprint import fingerprint
from jspec.sessions import session as sessions
from jspec.sessions.method_choice import Choice

Invite = Callable[[models.Loaded, int], Mapping[str, Contender | str]]
"""Makes other engines for a target and a number of tokens, or says why one cannot take part."""


def run(
    job: BenchOptions,
    questions: Sequence[Question],
    ledger: Ledger,
    invite: Invite | None = None,
) -> None:
    """Measures what the ledger does not have, and tells all that it has of these settings."""
    target = sessions.load(job.model or BUNDLED, job.dtype, job.kv_dtype)
    dtypes = job.dtype, job.kv_dtype
    draft = None if job.draft_model is None else sessions.load(job.draft_model, *dtypes)
    wording = chat.wording(target, job.settings.raw)
    sample, longest = _fitting(job, target, wording, questions)
    entries = _methods(job, target, draft)
    absent: dict[str, str] = {}
    if invite is not None:
        room = longest + job.settings.run.max_new_tokens
        if job.settings.turns > 1:
            room = target.model.context or 8 * room
        for name, peer in invite(target, room).items():
            if isinstance(peer, str):
                absent[name] = peer
            else:
                greedy = job.settings.run.request.temperature == 0
                entries[name] = ReportedContender(peer, is_peer=True, same_tokens=greedy)
    about = _about(job, target, draft, wording, sample)
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    if not ledger.find(run=name, about=about):
        ledger.extend([{"run": name, "about": about}])
    bench = Bench(
        entries, sample, wording, target.tokenizer, target.model.context, job.settings, ledger,
        name, _say,
    )  # fmt: skip
    try:
        bench.measure()
    except KeyboardInterrupt:
        _say(f"jspec: interrupted; the same command goes on with what is in {ledger.path}")
        raise
    assert ledger.path is not None, "the command names a file"
    _tell(_rows(ledger, name), list(entries), absent | bench.stopped, about, ledger.path.parent)


def _fitting(
    job: BenchOptions, target: models.Loaded, wording: chat.Wording, questions: Sequence[Question]
) -> tuple[list[Question], int]:
    """Returns the chosen questions that fit the context, and the most tokens of a prompt."""
    lengths: dict[int, int] = {}
    context, max_new_tokens = target.model.context, job.settings.run.max_new_tokens
    for place, question in enumerate(questions):
        ids = wording.ids(question.turns[:1], [])
        if not ids:
            raise InputError(f"{question.source} gives no token; write some text")
        if wrong := [token for token in ids if not 0 <= token < target.model.vocab_size]:
            raise InputError(
                f"{question.source} has the token id {wrong[0]}, outside the vocabulary of "
                f"{target.model.vocab_size}; use ids 0 .. {target.model.vocab_size - 1}"
            )
        if fits(ids, max_new_tokens, context):
            lengths[place] = len(ids)
    if not lengths:
        raise InputError(
            f"no question leaves room for --max-new-tokens {max_new_tokens} in the model's context "
            f"of {context}; ask for fewer tokens, or shorter questions"
        )
    if long := len(questions) - len(lengths):
        _say(
            f"jspec: {long} of {len(questions)} questions are left out, too long for the model's "
            f"context of {context} with {max_new_tokens} new tokens"
        )
    sample = choose([questions[place] for place in lengths], job.settings.limit)
    return sample, max(lengths.values())


def _methods(
    job: BenchOptions, target: models.Loaded, draft: models.Loaded | None
) -> dict[str, ReportedContender]:
    """Returns plain decoding, and every method that was chosen."""
    run, cold = job.settings.run, job.settings.cold
    plain = describe("autoregressive")
    session = sessions.Session(plain.build(target), Choice(plain, {}))
    entries = {PLAIN: ReportedContender(Drafting(session, run, plain=True))}
    # The bundled draft model is there for those that need one; another was asked for.
    has_draft = job.draft_model not in (None, BUNDLED_DRAFT)
    for label, choice in job.choices.items():
        method = choice.method
        second = (
            draft if method.needs_draft_model or (method.takes_draft_model and has_draft) else None
        )
        llm = method.build(target, second, **choice.options)
        entries[label] = ReportedContender(
            Drafting(sessions.Session(llm, choice), run, cold=cold),
            # Greedy decoding has one token to choose, in every scheme.
            same_tokens=run.request.temperature == 0 or choice.scheme == COUPLED,
        )
    return entries


def _about(
    job: BenchOptions,
    target: models.Loaded,
    draft: models.Loaded | None,
    wording: chat.Wording,
    questions: Sequence[Question],
) -> dict[str, Any]:
    """Returns all that a row depends on besides its method."""
    text = json.dumps([[question.category, *question.turns] for question in questions])
    kernels = f", {devices.kernels()}" if jax.default_backend() == "cpu" else ""
    return {
        "model": job.model or BUNDLED,
        "weights": fingerprint(target.params)[:16],
        "dtype": describe_dtypes(target.model),
        "draft_model": job.draft_model,
        "draft_weights": None if draft is None else fingerprint(draft.params)[:16],
        "head": job.head,
        "settings": _settings(job),
        "wording": wording.name,
        "num_questions": len(questions),
        "questions": hashlib.sha256(text.encode()).hexdigest()[:16],
        "device": timing.device(kernels),
        "jspec": jspec.__version__,
        "jax": jax.__version__,
    }


def _settings(job: BenchOptions) -> dict[str, Any]:
    """Returns the settings; a file of memory is its content."""
    settings, file = asdict(job.settings), job.settings.run.memory
    if file is not None:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
        settings["run"]["memory"] = f"{file.name} ({digest})"
    return settings


def _rows(ledger: Ledger, name: str) -> list[Row]:
    """Returns the rows of a run, the last of each prompt that was measured again."""
    latest = {
        (row["method"], row["prompt"], row["turn"]): row
        for row in ledger.find(run=name)
        if "method" in row
    }
    return list(latest.values())


def _tell(
    rows: Sequence[Row],
    names: Sequence[str],
    absent: dict[str, str],
    about: dict[str, Any],
    folder: Path,
) -> None:
    """Prints the tables, and ends with the advice."""
    figures = report(rows, names)
    # A peer that stopped half way is not held against others that answered everything.
    for name in absent:
        figures.summaries.pop(name, None)
        for summaries in figures.by_class.values():
            summaries.pop(name, None)
    screen = tables.console()
    screen.print(f"\n{_headline(about)}", markup=False)
    tables.show(screen, figures, absent)
    for note in verdict.notes(figures):
        screen.print(note, markup=False, soft_wrap=True)
    screen.print(f"Rows: {folder / 'rows.jsonl'}\n", markup=False, soft_wrap=True)
    screen.print(verdict.sentence(figures), markup=False, soft_wrap=True)


def _headline(about: dict[str, Any]) -> str:
    """Returns what was measured, in words."""
    settings = about["settings"]
    run, asks = settings["run"], settings["run"]["request"]
    kind = "greedy" if asks["temperature"] == 0 else f"temperature {asks['temperature']:g}"
    filters = [
        f", {name} {asks[name]:g}"
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))
        if asks[name] != off
    ]
    return (
        f"{about['model']}, {about['dtype']}, fingerprint {about['weights']} · "
        f"{kind}{''.join(filters)}, batch {run['batch_size']}, at most {run['max_new_tokens']} "
        f"tokens, {about['num_questions']} questions, {settings['repeats']} repeats · "
        f"{about['device']}, jspec {about['jspec']}, jax {about['jax']}, {date.today().isoformat()}"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
