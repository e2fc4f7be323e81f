"""The work of `jspec train head`: from a target and text to a draft head."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from jspec import models
from jspec._validate.errors import InputError
from jspec.cli import head_recipes, train_run, train_settings, train_texts
from jspec.cli.head_recipes import KINDS, STATE_LOSSES
from jspec.cli.train_resume import path
from jspec.cli.train_run import TrainingRun
from jspec.methods import BUNDLED
from jspec.models import heads, precision
from jspec.models.fingerprint import fingerprint
from jspec.models.load import Loaded
from jspec.training import jobs, parallel, sequences
from jspec.training.sequences import Sequences
from jspec.training.states import States
from jspec.types import PyTree

USEFUL = 0.3
"""The share of right first tokens below which a head is called untrained."""


def run(request: Mapping[str, Any], out: Path, resume: bool) -> None:
    """Trains what the arguments of the command ask for; see `HeadRun.train`."""
    recipe, kind = path(request, "recipe"), request["kind"]
    head_job = job(kind, recipe, request["changes"])
    data = path(request, "data") or Path()
    texts = train_texts.find_texts(request["text"] or [], recipe, data)
    ready = prepare(kind, head_job, request["model"], texts, request["begin_with"])
    dtype = request["states_dtype"] or "bfloat16"
    ready.train(out, resume, path(request, "states"), dtype, request)


def job(kind: str, recipe: Path | None, changes: Mapping[str, Any]) -> jobs.TrainingJob:
    """Returns a kind's settings: defaults, then the recipe's, then the given ones."""
    settings = {} if recipe is None else jobs.read_head(recipe, kind)
    default = head_recipes.default(train_settings.HEADS[kind])
    whole = jobs.override(default, {**settings, **changes})
    if (loss := whole.loss.get("state_loss", "squared")) not in STATE_LOSSES:
        raise InputError(f"state_loss is {loss!r}; use one of {', '.join(STATE_LOSSES)}")
    return whole


@dataclass(frozen=True)
class HeadRun:
    """A head, its target, and how it is trained."""

    kind: str
    target: Loaded
    fingerprint: str
    """The fingerprint of the target's weights."""
    head: Any
    variables: PyTree
    """The variables of the head, before training."""
    training: TrainingRun

    def train(
        self,
        out: Path,
        resume: bool,
        states: Path | None = None,
        states_dtype: str = "bfloat16",
        command: Mapping[str, Any] | None = None,
    ) -> None:
        """Trains, scores the held-out text, and saves the head in `out/head`."""
        run, target, dtype = self.training, self.target, precision.find(states_dtype)

        def keep(folder: Path, console: Console) -> States:
            model: Any = target.model
            store = States(folder, run.whole, model.features, dtype, self.fingerprint)
            return train_run.keep(store, model, target.params, run.job.batch_size, console)

        keep_states = states and partial(keep, states)
        params, scores = run.train(out, resume, keep_states, command)
        console = Console()
        if scores and (doubt := untrained(scores)):
            console.print(doubt, soft_wrap=True)
        # A run that was lengthened replaces what it saved when it was shorter.
        shutil.rmtree(out / "head", ignore_errors=True)
        record = {**run.settings, "steps": run.job.recipe.steps, "heldout_scores": scores}
        variables = {**self.variables, "params": params}
        variables.pop(heads.TARGET, None)
        heads.save(out / "head", self.head, jax.tree.map(narrow, variables), target, record)
        console.print(f"head in {out / 'head'}", soft_wrap=True)


def prepare(
    kind: str,
    job: jobs.TrainingJob,
    model: str | None,
    texts: jobs.Texts,
    begin_with: str | None = None,
) -> HeadRun:
    """Loads and checks all that training needs."""
    devices = parallel.Devices.of()
    devices.check(job.batch_size)
    target = models.load(model or BUNDLED)
    text = train_texts.read(texts, target, job.sequence, job.heldout)
    full = sequences.join(list(text.train.values()))
    job = job.with_steps(len(full))
    head, more = KINDS[kind].build(target, **job.shape), {}
    if begin_with is None:
        variables = start(kind, head, target, full, job.seed)
    else:
        variables = read_trained(begin_with, head, target, kind)
        more = {"began_with": fingerprint(variables["params"])[:16]}
    borrowed = {name: value for name, value in variables.items() if name != "params"}
    ours = fingerprint(target.params)
    training = TrainingRun(
        job,
        text,
        full,
        KINDS[kind].objective(target, head, **job.loss),
        variables["params"],
        {"target": target.params, "borrowed": borrowed},
        {
            "kind": kind,
            "target": ours[:16],
            "text": full.fingerprint,
            "weights": text.weights,
            **more,
            **job.settings(),
        },
        devices,
    )
    return HeadRun(kind, target, ours, head, variables, training)


def read_trained(name: str, head: Any, target: Loaded, kind: str) -> PyTree:
    """Returns the variables of a trained head, borrowed ones included."""
    source, variables = heads.read_variables(name, target, kind)
    for field in fields(head.config):
        theirs, ours = (getattr(entry.config, field.name) for entry in (source, head))
        if theirs != ours:
            raise InputError(
                f"the head {name} has {field.name} {theirs} and this run's would have {ours}; "
                "give the settings that it was trained with"
            )
    return variables


def start(kind: str, head: Any, target: Loaded, text: Sequences, seed: int) -> PyTree:
    """Returns the variables of a new head: its own at their beginning, the target's borrowed."""
    state, tokens = jnp.zeros((1, 1, head.features), head.dtype), jnp.zeros((1, 1), jnp.int32)
    pairs = (
        (tokens, tokens, jnp.ones((1, 1, 1), bool)) if heads.HEAD_KINDS[kind].reads_tokens else ()
    )
    fresh = dict(head.init(jax.random.key(seed), state, *pairs))
    if (begin := KINDS[kind].begin) is not None:
        fresh["params"] = begin(head, target.params)
    order = np.argsort(-text.counts(target.model.vocab_size), kind="stable")
    for name in {"hot", "scored"} & fresh.keys():
        fresh[name] = jax.tree.map(
            lambda ids: jnp.asarray(np.sort(order[: len(ids)]), ids.dtype), fresh[name]
        )
    return {**fresh, heads.TARGET: heads.borrow(head, target.params)}


def narrow(leaf: Any) -> Any:
    """Casts weights to bfloat16, as models are: half the size, with no loss of acceptance."""
    return leaf.astype(jnp.bfloat16) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def untrained(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a warning if the head does not help yet, else ""."""
    first = [(score["acceptance"][0], score["tokens"]) for score in scores.values()]
    share = sum(right * count for right, count in first) / max(sum(n for _, n in first), 1)
    if share >= USEFUL:
        return ""
    return (
        f"this head is hardly trained yet: its first token is right {share:.0%} of the time on "
        f"held-out text, and below {USEFUL:.0%} drafting costs more than it saves; train it for "
        "more steps, on more text"
    )
