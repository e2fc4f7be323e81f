"""The work of `jspec train head --kind ngrams`: a table of a target's distributions."""

import os
import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int
from rich.console import Console

from jspec import models
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.cli import train_heads, train_run, train_texts
from jspec.cli.train_resume import path
from jspec.drafters.contrib import ngrams
from jspec.methods import BUNDLED
from jspec.models.fingerprint import fingerprint
from jspec.training import corpus, sequences
from jspec.training.sequences import Sequences
from jspec.training.states import States

_NUM_TARGET_TOKENS = 16
"""Tokens of a distribution that are read; a line keeps fewer."""


def run(request: Mapping[str, Any], out: Path, resume: bool) -> None:
    """Reads the text with the target, writes the table, and scores it on what was held out."""
    del resume
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise InputError(f"--out {out} cannot be written; name a file in a folder that exists")
    data = path(request, "data") or Path()
    texts = train_texts.find_texts(request["text"] or [], path(request, "recipe"), data)
    corpus.check_apart(out, (source.path for source in texts.sources))
    job = train_heads.job("ngrams", path(request, "recipe"), request["changes"])
    candidates = job.shape["candidates"]
    check_integer(
        "--candidates", candidates, 1, _NUM_TARGET_TOKENS, "what is read of each distribution"
    )
    console = Console()
    target = models.load(request["model"] or BUNDLED)
    parts = train_texts.read(texts, target, job.sequence, job.heldout)
    full = sequences.join([*parts.train.values(), *parts.heldout.values()])
    weights = fingerprint(target.params, target.model)
    states = path(request, "states")
    folder = tempfile.TemporaryDirectory() if states is None else nullcontext(states)
    with folder as place:
        size = min(_NUM_TARGET_TOKENS, target.model.vocab_size)
        store = States(Path(place), full, 0, "bfloat16", weights, size)
        train_run.keep(store, target.model, target.params, job.batch_size, console)
        distributions: Any = store[np.arange(len(full))].distributions
        tokens, probs = np.asarray(distributions.tokens), np.asarray(distributions.probs)
    num_train = sum(map(len, parts.train.values()))
    text = _is_text(full)
    size = target.model.vocab_size
    lines = ngrams.build(
        full.tokens[:num_train],
        (tokens[:num_train], probs[:num_train]),
        size,
        candidates,
        text[:num_train],
    )
    ngrams.save(out, lines, weights)
    console.print(
        f"{len(lines.singles):,} tokens and {len(lines.pairs):,} pairs of "
        f"{text[:num_train].sum():,} tokens of text in {out}, {out.stat().st_size / 1e6:.1f} MB",
        soft_wrap=True,
    )
    if num_train < len(full):
        heldout = Sequences(full.tokens[num_train:], full.live[num_train:])
        first, three, pairs = score(ngrams.table(lines), heldout, tokens[num_train:, :, 0])
        console.print(
            f"held out: the likeliest token is right {first:.3f} of the time and one of three "
            f"{three:.3f}; {pairs:.0%} of the pairs are known",
            soft_wrap=True,
        )


def score(
    table: ngrams.NGramTable, heldout: Sequences, likeliest: Int[np.ndarray, "M T"]
) -> tuple[float, float, float]:
    """Returns how often a table's candidates have the token that its target finds likeliest."""
    before, tokens = jnp.asarray(heldout.tokens[:, :-2]), jnp.asarray(heldout.tokens[:, 1:-1])
    candidates, probs, order = map(np.asarray, table.after(before, tokens))
    right = (candidates == likeliest[:, 1:-1, None]) & (probs > 0)
    live = heldout.live[:, 2:]
    count = max(int(live.sum()), 1)
    hits = (right[..., :1].any(-1), right[..., :3].any(-1), order == 2)
    first, three, pairs = (float((hit & live).sum() / count) for hit in hits)
    return first, three, pairs


def _is_text(text: Sequences) -> Bool[np.ndarray, "M T+1"]:
    """Returns False after the last token of a sequence to predict: padding."""
    return np.flip(np.maximum.accumulate(np.flip(text.live, 1), axis=1), 1)
