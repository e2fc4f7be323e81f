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


def run(asked: Mapping[str, Any], out: Path, resume: bool) -> None:
    """Reads the text with the target, writes the table, and scores it on what was held out."""
    del resume
    if out.is_dir() or not os.access(out.absolute().parent, os.W_OK):
        raise InputError(f"--out {out} cannot be written; name a file in a folder that exists")
    data = path(asked, "data") or Path()
    texts = train_texts.named(asked["text"] or [], path(asked, "recipe"), data)
    corpus.check_apart(out, (one.path for one in texts.sources))
    job = train_heads.job("ngrams", path(asked, "recipe"), asked["changes"])
    candidates = job.shape["candidates"]
    check_integer(
        "--candidates", candidates, 1, _NUM_TARGET_TOKENS, "what is read of each distribution"
    )
    console = Console()
    target = models.load(asked["model"] or BUNDLED)
    parts = train_texts.read(texts, target, job.sequence, job.heldout)
    whole = sequences.join([*parts.train.values(), *parts.heldout.values()])
    weights = fingerprint(target.params, target.model)
    states = path(asked, "states")
    folder = tempfile.TemporaryDirectory() if states is None else nullcontext(states)
    with folder as place:
        size = min(_NUM_TARGET_TOKENS, target.model.vocab_size)
        held = States(Path(place), whole, 0, "bfloat16", weights, size)
        train_run.keep(held, target.model, target.params, job.batch_size, console)
        distributions: Any = held[np.arange(len(whole))].distributions
        tokens, probs = np.asarray(distributions.tokens), np.asarray(distributions.probs)
    kept = sum(map(len, parts.train.values()))
    text = _is_text(whole)
    size = target.model.vocab_size
    lines = ngrams.build(
        whole.tokens[:kept], (tokens[:kept], probs[:kept]), size, candidates, text[:kept]
    )
    ngrams.save(out, lines, weights)
    console.print(
        f"{len(lines.singles):,} tokens and {len(lines.pairs):,} pairs of {text[:kept].sum():,} "
        f"tokens of text in {out}, {out.stat().st_size / 1e6:.1f} MB",
        soft_wrap=True,
    )
    if kept < len(whole):
        held = Sequences(whole.tokens[kept:], whole.live[kept:])
        first, three, pairs = score(ngrams.table(lines), held, tokens[kept:, :, 0])
        console.print(
            f"held out: the likeliest token is right {first:.3f} of the time and one of three "
            f"{three:.3f}; {pairs:.0%} of the pairs are known",
            soft_wrap=True,
        )


def score(
    table: ngrams.NGramTable, held: Sequences, likeliest: Int[np.ndarray, "M T"]
) -> tuple[float, float, float]:
    """Returns how often a table's candidates have the token that its target finds likeliest."""
    before, tokens = jnp.asarray(held.tokens[:, :-2]), jnp.asarray(held.tokens[:, 1:-1])
    candidates, probs, order = map(np.asarray, table.after(before, tokens))
    right = (candidates == likeliest[:, 1:-1, None]) & (probs > 0)
    asked = held.live[:, 2:]
    count = max(int(asked.sum()), 1)
    hits = (right[..., :1].any(-1), right[..., :3].any(-1), order == 2)
    first, three, pairs = (float((hit & asked).sum() / count) for hit in hits)
    return first, three, pairs


def _is_text(text: Sequences) -> Bool[np.ndarray, "M T+1"]:
    """Returns False after the last token of a sequence to predict: padding."""
    return np.flip(np.maximum.accumulate(np.flip(text.live, 1), axis=1), 1)
