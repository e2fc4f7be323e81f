"""The work of `jspec train lm --target`: a draft model that learns its target's distributions."""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jspec import models
from jspec._validate.errors import InputError
from jspec.cli import curves, train_heads, train_lm
from jspec.cli.train_progress import shown
from jspec.cli.train_resume import remember
from jspec.models import blocks, export
from jspec.models.fingerprint import fingerprint
from jspec.protocols import CausalLM
from jspec.training import checkpoints as folders
from jspec.training import heldout, jobs, loop, packing, sequences, student
from jspec.training.distributions import Observed
from jspec.training.sequences import Sequences
from jspec.training.states import States
from jspec.training.unroll import Batch

HOT, DRAWN = 8192, 2048
"""Tokens that count at every step in the softmax of a large vocabulary, the text's most frequent
ones, and how many of the others are drawn for each."""


def run(
    job: jobs.TrainingJob,
    target_name: str,
    out: Path,
    resume: bool,
    kept: Path | None = None,
    command: Mapping[str, Any] | None = None,
) -> None:
    """Trains a draft model, scores the held-out text, and saves the model in `out/model`.

    Args:
        job: what to train, and on which texts: rows of `jspec train data` or plain text.
        target_name: the model whose tokens and distributions it learns.
        out: folder of the run.
        resume: whether a run that is already there may be continued.
        kept: folder for the target's distributions; None: they are computed at each step.
        command: the arguments of the run, kept for `--resume`.

    Raises:
        InputError: if target, text and settings do not fit one another.
        RunStopped: if the run stopped; the message says how it goes on.
    """
    console = Console()
    # Orbax logs the traceback of an error that it also raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    target = models.load(target_name)
    check(job, target)
    text = train_heads.read(job, target, job.sequence, job.heldout)
    whole = chosen(text, job)
    model = train_lm.build(job, target.model.vocab_size)
    params = student.begin(
        train_lm.init(model, job.seed), blocks.table(target.params["params"]["embed"])
    )
    weights = fingerprint(target.params)
    described = {
        **job.plain(),
        "weights": text.weights,
        "text": whole.fingerprint,
        "target": weights[:16],
        "num_target_tokens": job.num_target_tokens,
    }
    checkpoints = folders.Checkpoints(out, described, resume)
    if command is not None:
        remember(out, command)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    console.print(f"{size:,} parameters, {len(whole):,} sequences of text")
    stored = None
    if kept is not None:
        stored = States(kept, whole, 0, np.float32, weights, job.num_target_tokens)
        with shown(console, "storing distributions", len(whole), len(stored)) as progress:
            for done in stored.fill(target.model, target.params, job.batch_size):
                progress.update(done, "")
    many = job.recipe.steps * job.batch_size
    rows = packing.order({"": len(whole)}, {"": 1.0}, many, job.seed)
    order = rows.reshape(job.recipe.steps, job.batch_size)
    exact = student.NextDistribution(cast(CausalLM, model), target.model, job.num_target_tokens)
    frequent = np.argsort(-whole.counts(model.vocab_size), kind="stable")[:HOT]
    frozen = {"target": target.params, "hot": frequent.astype(np.int32)}
    objective = replace(exact, drawn=DRAWN) if model.vocab_size > 4 * (HOT + DRAWN) else exact

    def batch(step: int) -> Batch:
        read = order[step]
        draws = np.random.default_rng([job.seed, 3, step]).integers(2**31, size=len(read))
        return _batch(whole, read, None if stored is None else stored[read], draws)

    with shown(console, "training", job.recipe.steps) as progress:

        def show(report: loop.UpdateMetrics) -> None:
            alike = (f"{report.metrics[name]:.2f}" for name in ("agreement", "overlap"))
            progress.update(report.step, f"loss {report.loss:.3f}, alike {' '.join(alike)}")

        trained = loop.train(objective, job.recipe, params, batch, checkpoints, show, frozen)
    end = target.eos[0] if target.eos else None
    export.save_hf(model, trained, out / "model", target.tokenizer, end)
    curves.plot(checkpoints.curve(), out / "loss.png", "nats per token")
    scores = {
        label: heldout.metrics(exact, trained, frozen, _batches(scored(part, job), job.batch_size))
        for label, part in text.heldout.items()
    }
    folders.write(out / "heldout.json", json.dumps(scores, indent=2) + "\n")
    if scores:
        console.print(table(scores))
    console.print(f"model in {out / 'model'}", soft_wrap=True)


def chosen(text: train_heads.TrainingText, job: jobs.TrainingJob) -> Sequences:
    """The sequences that are read: all, or so many as the job says, of each class by its weight."""
    whole = sequences.join(list(text.train.values()))
    if not job.sequences:
        return whole
    sizes = {label: len(part) for label, part in text.train.items()}
    rows = np.unique(packing.order(sizes, text.weights, job.sequences, job.seed))
    return Sequences(whole.tokens[rows], whole.live[rows])


def scored(part: Sequences, job: jobs.TrainingJob) -> Sequences:
    """The held-out sequences of a class that are scored: their share of those that are read."""
    most = math.ceil(job.sequences * job.heldout) if job.sequences else len(part)
    return Sequences(part.tokens[:most], part.live[:most])


def check(job: jobs.TrainingJob, target: models.Loaded) -> None:
    """Raises InputError if such a model cannot learn from the target."""
    train_heads.check_sequence(job.sequence, target)
    width = cast(Any, target.model).features
    if job.shape.hidden_size > width:
        raise InputError(
            f"hidden_size is {job.shape.hidden_size} and the target's width is {width}; use at "
            "most that, since the draft begins with the target's embedding"
        )


def _batch(
    text: Sequences,
    rows: np.ndarray,
    observed: Observed | None = None,
    draws: np.ndarray | None = None,
) -> Batch:
    numbers = None if draws is None else draws.astype(np.int32)
    return Batch(*jax.device_put((text.tokens[rows], text.live[rows], observed, numbers)))


def _batches(text: Sequences, size: int) -> Iterator[tuple[Batch, int]]:
    """All of a text; the last batch is filled up with rows that hold none."""
    more = ((0, -len(text) % size), (0, 0))
    filled = Sequences(np.pad(text.tokens, more), np.pad(text.live, more))
    for first in range(0, len(filled), size):
        rows = np.arange(first, first + size)
        yield _batch(filled, rows), int(filled.live[rows].sum())


def table(scores: Mapping[str, Mapping[str, Any]]) -> Table:
    grid = Table("class", "nats/token", "same token", "overlap", "tokens", title="held out")
    for label, score in scores.items():
        shares = (f"{score[name]:.3f}" for name in ("loss", "agreement", "overlap"))
        grid.add_row(label, *shares, f"{score['tokens']:,}")
    return grid
