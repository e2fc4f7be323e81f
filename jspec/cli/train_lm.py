"""The work of `jspec train lm`: one run from text to a saved language model."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from jspec._validate.errors import InputError
from jspec.cli import curves
from jspec.cli.train_progress import shown
from jspec.cli.train_resume import remember
from jspec.models import export
from jspec.models.llama import Llama, LlamaConfig
from jspec.protocols import CausalLM
from jspec.training import checkpoints as folders
from jspec.training import corpus as corpora
from jspec.training import heldout, jobs, lm, loop, packing
from jspec.training import tokenizer as tokenizers
from jspec.training.packing import Encode
from jspec.types import PyTree


def job(
    text: Sequence[str], recipe: Path | None, data: Path, model: str, changes: Mapping[str, Any]
) -> jobs.TrainingJob:
    """The job that the command's options describe.

    Raises:
        InputError: if they describe none.
    """
    if recipe is not None:
        if text:
            raise InputError(f"{text[0]} was given beside a recipe, which names its own texts")
        return jobs.override(jobs.read(recipe, data, model), changes)
    if not text:
        raise InputError("no text was given; name files or folders, or a --recipe")
    return jobs.override(jobs.TrainingJob(sources=tuple(map(source, text))), changes)


def source(argument: str) -> corpora.CorpusSource:
    """CLASS=PATH, or a path whose class is its name."""
    label, equals, path = argument.partition("=")
    if equals and not Path(argument).exists():
        return corpora.CorpusSource(label, Path(path))
    return corpora.CorpusSource(Path(argument).stem, Path(argument))


def run(
    job: jobs.TrainingJob,
    out: Path,
    tokenizer: Path | None,
    resume: bool,
    command: Mapping[str, Any] | None = None,
) -> None:
    """Trains, scores the held-out text, and saves the model in `out/model`.

    Args:
        job: what to train.
        out: folder of the run.
        tokenizer: folder of the tokenizer; None: one is trained.
        resume: whether a run that is already there may be continued.
        command: the arguments of the run, kept for `--resume`.
    """
    console = Console()
    # Orbax logs the traceback of an error that it also raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    corpus = corpora.load(job.sources, job.heldout)
    # A run that is resumed keeps its tokenizer, if it came so far as to have one.
    kept = out if resume and (out / "tokenizer.json").is_file() else None
    words = vocabulary(job, corpus, tokenizer or kept)
    end = words.token_to_id(corpora.END)
    assert end is not None, "a tokenizer that `vocabulary` lets through has it"

    def encode(text: str) -> Sequence[int]:
        return words.encode(text, add_special_tokens=False).ids

    packed = {
        label: packing.pack(texts, encode, end, job.sequence)
        for label, texts in corpus.train.items()
    }
    weights = {label: job.weights.get(label, 1.0) for label in packed}
    plan = packing.plan(packed, weights, job.recipe.steps, job.batch_size, job.seed)
    model = build(job, words.get_vocab_size())
    params = init(model, job.seed)
    checkpoints = folders.Checkpoints(out, job.settings(corpus, words.to_str()), resume)
    folders.write(out / "tokenizer.json", words.to_str(pretty=True))
    if command is not None:
        remember(out, command)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    console.print(f"{size:,} parameters, {plan.sequences.shape[0]:,} sequences of text")
    with shown(console, "training", job.recipe.steps) as progress:

        def show(report: loop.UpdateMetrics) -> None:
            progress.update(report.step, f"loss {report.loss:.3f}")

        # Flax declares one `apply` for all modules, which is wider than the protocol's.
        objective = lm.NextToken(cast(CausalLM, model))
        trained = loop.train(objective, job.recipe, params, plan.batch, checkpoints, show)
    export.save_hf(model, trained, out / "model", words, end)
    curves.plot(checkpoints.curve(), out / "loss.png", "nats per token")
    scores = evaluate(model, trained, corpus, encode, end, job.sequence)
    (out / "heldout.json").write_text(json.dumps(scores, indent=2) + "\n")
    console.print(table(scores))
    console.print(f"model in {out / 'model'}", soft_wrap=True)


def vocabulary(job: jobs.TrainingJob, corpus: corpora.Corpus, folder: Path | None) -> Tokenizer:
    """The tokenizer of a folder, or one trained on the corpus if there is no folder."""
    if folder is not None:
        return tokenizers.load(folder)
    weights = {label: job.weights.get(label, 1.0) for label in corpus.train}
    return tokenizers.train(tokenizers.mixture(corpus.train, weights), job.vocab_size)


def build(job: jobs.TrainingJob, vocab_size: int) -> Llama:
    shape = job.shape
    return Llama(
        LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_layers=shape.num_layers,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            context=shape.context,
            tied=True,
        )
    )


def init(model: Llama, seed: int) -> PyTree:
    token = jnp.zeros((1, 1), jnp.int32)
    return model.init(jax.random.key(seed), token, token, jnp.ones((1, 1, 1), bool))


def evaluate(
    model: Llama,
    params: PyTree,
    corpus: corpora.Corpus,
    encode: Encode,
    end: int,
    length: int,
) -> dict[str, dict[str, float]]:
    """Held-out loss per class; classes with nothing held out are left out."""
    scores = {
        label: heldout.evaluate(cast(CausalLM, model), params, texts, encode, end, length)
        for label, texts in corpus.heldout.items()
        if texts
    }
    return {
        label: {
            "nats_per_token": round(score.nats_per_token, 4),
            "bits_per_byte": round(score.bits_per_byte, 4),
            "tokens": score.tokens,
        }
        for label, score in scores.items()
    }


def table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    grid = Table("class", "nats/token", "bits/byte", "tokens", title="held out")
    for label, score in scores.items():
        grid.add_row(
            label,
            f"{score['nats_per_token']:.3f}",
            f"{score['bits_per_byte']:.3f}",
            f"{score['tokens']:,}",
        )
    return grid
