"""Shared parts of `jspec train draft` and `head`: batches, the loop, its curve and the scores."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jspec._validate.whole_files import write_whole
from jspec.cli.train_progress import show
from jspec.cli.train_resume import remember
from jspec.cli.train_texts import TrainingText
from jspec.training import checkpoints as folders
from jspec.training import heldout, jobs, loop, parallel, sequences
from jspec.training.sequences import Sequences
from jspec.training.states import States
from jspec.training.unroll import Batch
from jspec.types import PyTree

SHOWN = ("acceptance", "agreement", "overlap")
"""The metrics that are shown while a run goes on, and of its held-out text."""
HELDOUT_CURVE = "heldout_curve.jsonl"
"""The file of a run's scores on held-out text, a line for each time that it was scored."""

Scores = dict[str, dict[str, Any]]
"""Loss, metrics and tokens of held-out text, by class."""


@dataclass(frozen=True)
class TrainingRun:
    """A training job: model, text and devices."""

    job: jobs.TrainingJob
    text: TrainingText
    whole: Sequences
    objective: loop.Objective
    params: PyTree
    frozen: PyTree
    settings: Mapping[str, Any]
    devices: parallel.Devices
    scored: loop.Objective | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sequences of each class in `whole`, if it has parts of the classes."""

    def batch(
        self,
        text: Sequences,
        rows: np.ndarray,
        states: States | None = None,
        step: int | None = None,
    ) -> Batch:
        """Returns a batch of some rows on the devices, each row on one of them."""
        draws = rows
        if step is not None:
            draws = np.random.default_rng([self.job.seed, 3, step]).integers(2**31, size=len(rows))
        observed = None if states is None else states[rows]
        arrays = text.tokens[rows], text.live[rows], observed, draws.astype(np.int32)
        return Batch(*self.devices.share(arrays))

    def scores(self, params: PyTree, frozen: PyTree) -> Scores:
        """Returns held-out loss and metrics per class, without classes that hold out too little."""
        objective = self.scored or self.objective
        return {
            label: heldout.metrics(objective, params, frozen, self._batches(part))
            for label, part in self.text.heldout.items()
        }

    def _batches(self, text: Sequences) -> Iterator[tuple[Batch, int]]:
        """Yields all of a text; the last batch is filled up with rows that hold none."""
        size = self.job.batch_size
        more = ((0, -len(text) % size), (0, 0))
        filled = Sequences(np.pad(text.tokens, more), np.pad(text.live, more))
        for first in range(0, len(filled), size):
            rows = np.arange(first, first + size)
            yield self.batch(filled, rows), int(filled.live[rows].sum())

    def train(
        self,
        out: Path,
        resume: bool,
        keep: Callable[[Console], States] | None = None,
        command: Mapping[str, Any] | None = None,
    ) -> tuple[PyTree, Scores]:
        """Trains, scores the held-out text, and gives the weights and scores."""
        _silence_checkpointing()
        console, job = Console(), self.job
        checkpoints = folders.Checkpoints(out, self.settings, resume)
        if command is not None:
            remember(out, command)
        size = sum(leaf.size for leaf in jax.tree.leaves(self.params))
        console.print(f"{size:,} parameters, {len(self.whole):,} sequences of text")
        states = None if keep is None else keep(console)
        sizes = self.sizes or {label: len(part) for label, part in self.text.train.items()}
        rows = sequences.order(
            sizes, self.text.weights, job.recipe.steps * job.batch_size, job.seed
        )
        order = rows.reshape(job.recipe.steps, job.batch_size)
        copy = self.devices.copy
        frozen = copy(self.frozen)
        forget_scores(out / HELDOUT_CURVE, checkpoints.latest())

        def examine(step: int, params: PyTree) -> None:
            if step in job.scored_steps:
                line = json.dumps({"step": step, **self.scores(params, frozen)})
                with (out / HELDOUT_CURVE).open("a", encoding="utf-8") as file:
                    file.write(line + "\n")

        with show(console, "training", job.recipe.steps) as progress:
            params = loop.train(
                self.objective,
                job.recipe,
                copy(self.params),
                lambda step: self.batch(self.whole, order[step], states, step),
                checkpoints,
                lambda report: progress.update(report.step, describe(report)),
                frozen,
                copy,
                examine,
            )
        scores = self.scores(params, frozen)
        write_whole(out / "heldout.json", json.dumps(scores, indent=2) + "\n")
        if scores:
            console.print(table(scores))
        return params, scores


def forget_scores(path: Path, done: int) -> None:
    """Removes the scores of steps that will be computed again."""
    if path.is_file():
        lines = path.read_text("utf-8").splitlines(keepends=True)
        rest = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= done]
        write_whole(path, "".join(rest))


def keep(states: States, model: Any, params: PyTree, batch_size: int, console: Console) -> States:
    """Returns what a target makes of a text, from the disk or put there."""
    total = states.total
    with show(console, "storing states", total, len(states)) as progress:
        for done in states.fill(model, params, batch_size):
            progress.update(done, "")
    return states


def describe(report: loop.UpdateMetrics) -> str:
    """Returns loss, and how good each draft step is."""
    return f"loss {report.loss:.3f}" + "".join(
        f", {name} {_shares(report.metrics[name], 2)}" for name in SHOWN if name in report.metrics
    )


def table(scores: Scores) -> Table:
    """Returns loss and shares by class."""
    names = [name for name in SHOWN if name in next(iter(scores.values()))]
    grid = Table("class", "loss", *names, "tokens", title="held out")
    for label, score in scores.items():
        shares = (_shares(score[name], 3) for name in names)
        grid.add_row(label, f"{score['loss']:.3f}", *shares, f"{score['tokens']:,}")
    return grid


def _shares(values: Any, digits: int) -> str:
    return " ".join(f"{value:.{digits}f}" for value in np.atleast_1d(values))


def _silence_checkpointing() -> None:
    """Leaves out the tracebacks of an error of a checkpoint, which is raised too."""
    for name in ("absl", "asyncio"):  # orbax's own, and those of its tasks
        logging.getLogger(name).setLevel(logging.CRITICAL)
    show = sys.unraisablehook

    def hook(unraisable):
        # A thread of tensorstore whose write failed after orbax's event loop had ended.
        if str(unraisable.exc_value) != "Event loop is closed":
            show(unraisable)

    sys.unraisablehook = hook
