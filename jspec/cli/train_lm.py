"""The work of `jspec train lm`: a language model of text, or a draft model of its target's."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from tokenizers import Tokenizer

from jspec import models
from jspec._validate.errors import InputError
from jspec._validate.whole_files import write_whole
from jspec.cli import head_recipes, parsers, train_run, train_settings, train_texts
from jspec.cli.train_resume import path
from jspec.cli.train_run import Scores, TrainingRun
from jspec.cli.train_texts import TrainingText
from jspec.models import blocks, export, pruning
from jspec.models.fingerprint import fingerprint
from jspec.models.llama import Llama, LlamaConfig
from jspec.protocols import CausalLM
from jspec.training import checkpoints as folders
from jspec.training import corpus as corpora
from jspec.training import jobs, parallel, sequences, student
from jspec.training import tokenizer as tokenizers
from jspec.training.sequences import Sequences
from jspec.training.states import States
from jspec.types import PyTree

HOT, DRAWN = 8192, 2048
"""Tokens that count at every step in the softmax of a large vocabulary, the text's most
frequent ones, and how many of the others are drawn for each."""


def run(asked: Mapping[str, Any], out: Path, resume: bool) -> None:
    """Trains, scores the held-out text, and saves the model in `out/model`."""
    recipe, data = path(asked, "recipe"), path(asked, "data") or Path()
    texts = train_texts.named(asked["text"] or [], recipe, data)
    values = {} if recipe is None else jobs.read_model(recipe, asked["model"] or "")
    given = {**values, **asked["changes"]}
    job = jobs.override(head_recipes.default(train_settings.LM), given)
    check(job)
    kept = job.shape["keep_layers"]
    if kept and (others := sorted({*given} & {*job.shape} - {"keep_layers"})):
        raise InputError(
            f"keep_layers was given with {', '.join(others)}, and the rest of the shape is the "
            "target's; leave one out"
        )
    if asked["target"] is not None:
        _draft(job, texts, asked, out, resume)
    elif kept:
        raise InputError("keep_layers are layers of a --target; name the target too")
    elif asked["states"] is not None:
        raise InputError("--states keeps what a --target gives; name the target too")
    else:
        _model(job, texts, asked, out, resume)


def check(job: jobs.TrainingJob) -> None:
    """Raises InputError if there is no such model."""
    shape = job.shape
    if shape["num_heads"] % shape["num_kv_heads"]:
        raise InputError(
            f"{shape['num_heads']} heads do not share {shape['num_kv_heads']} key-value heads "
            f"evenly; use a divisor of {shape['num_heads']}"
        )
    if shape["head_dim"] % 2:
        raise InputError(f"head_dim is {shape['head_dim']}; rotary embeddings need an even one")
    if job.sequence > shape["context"]:
        raise InputError(
            f"sequence {job.sequence} is longer than the context {shape['context']}; use a "
            f"sequence <= {shape['context']}"
        )


def _model(
    job: jobs.TrainingJob, texts: jobs.Texts, asked: Mapping[str, Any], out: Path, resume: bool
) -> None:
    """Trains a language model on the text alone."""
    corpus = corpora.load(texts.sources, job.heldout)
    weights = {label: texts.weights.get(label, 1.0) for label in corpus.train}
    # A run that is resumed keeps its tokenizer, if it came so far as to have one.
    kept = out if resume and (out / "tokenizer.json").is_file() else None
    folder = path(asked, "tokenizer") or kept
    if folder is None:
        mixed = tokenizers.mixture(corpus.train, weights)
        words = tokenizers.train(mixed, job.shape["vocab_size"])
    else:
        words = tokenizers.load(folder)
    end = words.token_to_id(corpora.END)
    assert end is not None, "a tokenizer that trains or loads has it"

    def rows(documents: list[str]) -> list[list[int]]:
        return [[end, *words.encode(text, add_special_tokens=False).ids] for text in documents]

    train = {label: sequences.cut(rows(d), job.sequence) for label, d in corpus.train.items()}
    held = {
        label: sequences.every([*rows(documents), [end]], job.sequence)
        for label, documents in corpus.heldout.items()
        if documents
    }
    model = build(job, words.get_vocab_size())
    vocabulary = hashlib.sha256(words.to_str().encode()).hexdigest()[:16]
    text = TrainingText(train, held, weights)
    run = _run(job, text, sequences.join(list(train.values())), tokenizer=vocabulary)
    run = replace(
        run, objective=student.NextToken(cast(CausalLM, model)), params=init(model, job.seed)
    )
    sizes = {label: sum(len(d.encode()) for d in ds) for label, ds in corpus.heldout.items()}

    def scored(scores: Scores) -> Scores:
        for label, score in scores.items():
            bits = score["loss"] * score["tokens"] / math.log(2)
            score["bits_per_byte"] = round(bits / sizes[label], 4)
        return scores

    folders.claim(out, run.settings, resume)
    write_whole(out / "tokenizer.json", words.to_str(pretty=True))
    params, _ = run.train(out, True, command=asked, score=scored)
    _save(model, params, out, words, end)


def _draft(
    job: jobs.TrainingJob, texts: jobs.Texts, asked: Mapping[str, Any], out: Path, resume: bool
) -> None:
    """Trains a draft model that learns its target's distributions."""
    if asked["tokenizer"] is not None:
        raise InputError("--tokenizer was given with --target, whose tokens are learnt; leave it")
    target = models.load(asked["target"])
    model, params = _begun(job, target)
    export.config(model.config, None, "float32")  # raises before a run that could not be saved
    text = train_texts.read(texts, target, job.sequence, job.heldout)
    whole = chosen(text, job)
    text = replace(text, heldout={name: scored(part, job) for name, part in text.heldout.items()})
    size = job.loss["num_target_tokens"]
    weights = fingerprint(target.params)
    exact = student.NextDistribution(cast(CausalLM, model), target.model, size)
    frequent = np.argsort(-whole.counts(model.vocab_size), kind="stable")[:HOT]
    large = model.vocab_size > 4 * (HOT + DRAWN)
    run = replace(
        _run(job, text, whole, target=weights[:16]),
        objective=replace(exact, drawn=DRAWN) if large else exact,
        scored=exact,
        params=params,
        frozen={"target": target.params, "hot": frequent.astype(np.int32)},
        sizes={label: len(whole) for label in list(text.weights)[:1]},
    )

    def keep(folder: Path, console: Console) -> States:
        states = States(folder, whole, 0, np.float32, weights, size)
        return train_run.keep(states, target.model, target.params, job.batch_size, console)

    folder = path(asked, "states")
    params, _ = run.train(out, resume, folder and partial(keep, folder), asked)
    _save(model, params, out, target.tokenizer, target.eos[0] if target.eos else None)


def _begun(job: jobs.TrainingJob, target: models.Loaded) -> tuple[Llama, PyTree]:
    """Returns the draft model to train, and the weights that it begins with."""
    shape, width = job.shape, cast(Any, target.model).features
    if shape["keep_layers"]:
        layers = [parsers.integer(layer) for layer in shape["keep_layers"].split(",")]
        return pruning.pruned(cast(Llama, target.model), target.params, layers)
    if shape["hidden_size"] > width:
        raise InputError(
            f"hidden_size is {shape['hidden_size']} and the target's width is {width}; use at "
            "most that, since the draft begins with the target's embedding"
        )
    model = build(job, target.model.vocab_size)
    table = blocks.table(target.params["params"]["embed"], width)
    return model, student.begin(init(model, job.seed), table)


def _run(
    job: jobs.TrainingJob, text: TrainingText, whole: Sequences, **settings: str
) -> TrainingRun:
    """Returns a run on one device, without what is trained."""
    settings = {**settings, "text": whole.fingerprint}
    described = {**job.settings(), **settings, "weights": text.weights}
    nothing: Any = None
    devices = parallel.Devices.of(jax.devices()[:1])
    return TrainingRun(job, text, whole, nothing, None, None, described, devices)


def _save(model: Llama, params: PyTree, out: Path, words: Tokenizer, end: int | None) -> None:
    export.save_hf(model, params, out / "model", words, end)
    Console().print(f"model in {out / 'model'}", soft_wrap=True)


def chosen(text: TrainingText, job: jobs.TrainingJob) -> Sequences:
    """Returns the sequences to read: all, or the job's number, each class by its weight."""
    whole = sequences.join(list(text.train.values()))
    if not job.loss["sequences"]:
        return whole
    sizes = {label: len(part) for label, part in text.train.items()}
    rows = np.unique(sequences.order(sizes, text.weights, job.loss["sequences"], job.seed))
    return Sequences(whole.tokens[rows], whole.live[rows])


def scored(part: Sequences, job: jobs.TrainingJob) -> Sequences:
    """Returns a class's held-out sequences to score, in proportion to those read."""
    read = job.loss["sequences"]
    most = math.ceil(read * job.heldout) if read else len(part)
    return Sequences(part.tokens[:most], part.live[:most])


def build(job: jobs.TrainingJob, vocab_size: int) -> Llama:
    """Returns the module of a job's shape."""
    sizes = {name: size for name, size in job.shape.items() if name != "keep_layers"}
    return Llama(LlamaConfig(**{**sizes, "vocab_size": vocab_size}, tied=True))


def init(model: Llama, seed: int) -> PyTree:
    """Its weights, drawn."""
    token = jnp.zeros((1, 1), jnp.int32)
    mask = jnp.ones((1, 1, 1), bool)
    return model.init(jax.random.key(seed), token, token, mask)
