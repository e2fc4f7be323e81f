"""The work of `jspec train draft`: some layers of a target, which learn its distributions."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from rich.console import Console

from jspec import models
from jspec._validate.errors import InputError
from jspec.cli import head_recipes, parsers, train_run, train_settings, train_texts
from jspec.cli.train_resume import path
from jspec.cli.train_run import TrainingRun
from jspec.cli.train_texts import TrainingText
from jspec.models import export, pruning
from jspec.models.fingerprint import fingerprint
from jspec.models.llama import Llama
from jspec.protocols import CausalLM
from jspec.training import jobs, parallel, sequences
from jspec.training.draft import NextDistribution
from jspec.training.sequences import Sequences
from jspec.training.states import States

HOT, DRAWN = 8192, 2048
"""Tokens that count at every step in the softmax of a large vocabulary, the text's most
frequent ones, and how many of the others are drawn for each."""


def run(request: Mapping[str, Any], out: Path, resume: bool) -> None:
    """Trains, scores the held-out text, and saves the model in `out/model`."""
    recipe = path(request, "recipe")
    texts = train_texts.find_texts(request["text"] or [], recipe, path(request, "data") or Path())
    settings = {} if recipe is None else jobs.read_draft(recipe)
    default = head_recipes.default(train_settings.DRAFT)
    job = jobs.override(default, {**settings, **request["changes"]})
    layers = job.shape["keep_layers"]
    for option, value in (("--target", request["target"]), ("--keep-layers", layers)):
        if not value:
            raise InputError(
                f"no {option} was given; a draft model begins with some layers of its target, "
                "such as --target smollm2-135m --keep-layers 0,1,2,27,28,29"
            )
    target = models.load(request["target"])
    indices = [parsers.integer(layer) for layer in layers.split(",")]
    model, params = pruning.prune(cast(Llama, target.model), target.params, indices)
    export.config(model.config, None, "float32")  # raises before a run that could not be saved
    text = train_texts.read(texts, target, job.sequence, job.heldout)
    full = select(text, job)
    text = replace(
        text, heldout={name: take_heldout(part, job) for name, part in text.heldout.items()}
    )
    size, weights = job.loss["num_target_tokens"], fingerprint(target.params)
    exact = NextDistribution(cast(CausalLM, model), target.model, size)
    frequent = np.argsort(-full.counts(model.vocab_size), kind="stable")[:HOT]
    large = model.vocab_size > 4 * (HOT + DRAWN)
    training = TrainingRun(
        job,
        text,
        full,
        replace(exact, drawn=DRAWN) if large else exact,
        params,
        {"target": target.params, "hot": frequent.astype(np.int32)},
        {
            **job.settings(),
            "target": weights[:16],
            "text": full.fingerprint,
            "weights": text.weights,
        },
        parallel.Devices.of(jax.devices()[:1]),
        scored=exact,
        sizes={label: len(full) for label in list(text.weights)[:1]},
    )

    def keep(folder: Path, console: Console) -> States:
        states = States(folder, full, 0, np.float32, weights, size)
        return train_run.keep(states, target.model, target.params, job.batch_size, console)

    folder = path(request, "states")
    params, _ = training.train(out, resume, folder and partial(keep, folder), request)
    end = target.eos[0] if target.eos else None
    export.save_hf(model, params, out / "model", target.tokenizer, end)
    Console().print(f"model in {out / 'model'}", soft_wrap=True)


def select(text: TrainingText, job: jobs.TrainingJob) -> Sequences:
    """Returns the sequences to read: all, or the job's number, each class by its weight."""
    full = sequences.join(list(text.train.values()))
    if not job.loss["sequences"]:
        return full
    sizes = {label: len(part) for label, part in text.train.items()}
    rows = np.unique(sequences.order(sizes, text.weights, job.loss["sequences"], job.seed))
    return Sequences(full.tokens[rows], full.live[rows])


def take_heldout(part: Sequences, job: jobs.TrainingJob) -> Sequences:
    """Returns a class's held-out sequences to score, in proportion to those read."""
    read = job.loss["sequences"]
    count = math.ceil(read * job.heldout) if read else len(part)
    return Sequences(part.tokens[:count], part.live[:count])
