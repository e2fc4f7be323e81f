"""The work of `jspec warm`: a table of the model's vocabulary, and the programs of `auto`."""

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from jspec._validate.cache_folders import folder
from jspec._validate.errors import InputError
from jspec.cli.chat import Conversation
from jspec.cli.train_progress import show
from jspec.drafters.contrib import ngrams
from jspec.methods import ngram_tables
from jspec.models.fingerprint import fingerprint
from jspec.sessions import conversations, method_choice
from jspec.sessions import session as sessions
from jspec.sessions.batches import Runner, groups
from jspec.sessions.generation_config import GenerationConfig
from jspec.sessions.run_settings import RunSettings
from jspec.sessions.session import Session

if TYPE_CHECKING:
    from jspec.models import Loaded

_CANDIDATES = 8
_PAUSE = 10.0
"""Seconds of work that a kill loses."""
_QUESTION = "Explain it to me."


def run(name: str, out: Path | None, dtype: str | None) -> None:
    """Makes the table, or what is missing of it; then compiles what `auto` runs with it."""
    target = sessions.load(name, dtype)
    weights = fingerprint(target.params, target.model)
    if out is not None:
        tabulate(target, weights, out)
        return
    file = ngram_tables.find(target)
    if file is not None and Path(file) in ngram_tables.bundled().values():
        print(f"{file} came with jspec, and auto takes it")
    else:
        place = folder(os.environ, ngram_tables.CACHE)
        if place is None:
            raise InputError(
                "the user's cache has no folder that can be written; name one in JSPEC_CACHE, or "
                "a file with --out"
            )
        if not tabulate(target, weights, place / f"{weights}{ngram_tables.SUFFIX}"):
            return
    compile_programs(name, target)


def tabulate(target: "Loaded", weights: str, file: Path) -> bool:
    """Writes the table of a vocabulary, going on from what the file has; False if that is all."""
    size = target.model.vocab_size
    lines = ngrams.read(file, weights, size) if file.exists() else None
    count = 0 if lines is None else len(lines.singles)
    if count == size:
        print(f"{file} has a line for each of {size:,} tokens already")
        return False
    began = last_save = time.monotonic()
    parts = ngrams.tabulate(
        target.model, target.params, prefixes(target), min(_CANDIDATES, size), lines
    )
    with show(Console(stderr=True), "tokens", size, count) as progress:
        for lines in parts:
            count = len(lines.singles)
            if count == size or time.monotonic() - last_save > _PAUSE:
                ngrams.save(file, lines, weights)
                last_save = time.monotonic()
            progress.update(count, "")
    seconds = time.monotonic() - began
    print(f"{size:,} tokens in {file}, {file.stat().st_size / 1e6:.1f} MB, after {seconds:.0f} s")
    return True


def prefixes(target: "Loaded") -> list[list[int]]:
    """Returns what tokens come after: a question and what opens its answer, and a first token."""
    if target.chat is not None:
        with suppress(InputError):
            prompt = conversations.render(target, conversations.from_prompt(_QUESTION))
            return [prompt, prompt[:1]]
    return [target.tokenizer.encode("").ids]


def compile_programs(name: str, target: "Loaded") -> None:
    """Compiles what `jspec generate` or `jspec chat` run at their defaults."""
    choice = method_choice.choose(None, None)
    session = Session(choice.method.build(target, None, **choice.options), choice, name)
    settings = RunSettings().by_model(target, GenerationConfig.AUTO, ())
    prompt = prefixes(target)[0] or [0]
    print("compiling the programs of auto", file=sys.stderr)
    if target.chat is not None:
        conversation = Conversation(session, settings)
        conversation.prepare()
        conversation.finish()
        session = conversations.answering(session)
    (group,) = groups([prompt], settings)
    for plain in (False, True):
        runner = Runner(session, settings, plain=plain)
        runner.run(replace(group, limits=np.ones_like(group.limits)))
