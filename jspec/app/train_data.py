"""The work of `jspec train data`: rows of a target's own text, from prompts to a file."""

import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from jspec import models
from jspec.app.batches import interruptible
from jspec.app.train_lm import source
from jspec.errors import InputError
from jspec.methods import BUNDLED
from jspec.models.fingerprint import fingerprint
from jspec.training import corpus as corpora
from jspec.training import distill, jobs


def texts(text: Sequence[str], recipe: Path | None, data: Path) -> jobs.Job:
    """The texts that the command's options name, with their weights and what is held out.

    Raises:
        InputError: if they name none.
    """
    if recipe is not None:
        if text:
            raise InputError(f"{text[0]} was given beside a recipe, which names its own texts")
        return jobs.texts(recipe, data)
    if not text:
        raise InputError("no text was given; name files or folders, or a --recipe")
    return jobs.Job(sources=tuple(map(source, text)))


def run(
    job: jobs.Job, model: str | None, out: Path, recipe: distill.Recipe, count: int, size: int
) -> None:
    """Writes rows to `out` until it holds `count`.

    Args:
        job: the texts that prompts are taken from; held-out documents are never used.
        model: the target: a folder, a bundled model's name, or a hub id.
        recipe: which rows.
        count: rows in all.
        size: rows that are decoded together.

    Raises:
        InputError: if the options fit neither one another nor the target.
        RunStopped: if the file cannot grow or the target gives no numbers.
    """
    if count < 1 or size < 1:
        raise InputError(f"count {count} in batches of {size} is no work; use at least 1 of each")
    target = models.load(model or BUNDLED)
    context, most = target.model.context, recipe.longest + recipe.max_new_tokens
    if context is not None and most > context:
        raise InputError(
            f"prompts of {recipe.longest} tokens and {recipe.max_new_tokens} new ones are more "
            f"than the target's context of {context}; use a sum <= {context}"
        )
    corpus = corpora.load(job.sources, job.heldout)
    weights = {label: job.weights.get(label, 1.0) for label in corpus.train}
    settings = distill.settings(
        recipe, weights, corpora.fingerprint(corpus), fingerprint(target.params)
    )
    lines = distill.Lines(out, settings)
    console = Console()
    if lines.rows >= count:
        console.print(f"{out} holds {lines.rows:,} rows already", soft_wrap=True)
        return
    rows = distill.starts(
        corpus.train,
        weights,
        lambda text: target.tokenizer.encode(text).ids,
        recipe,
        lines.rows,
        count,
    )
    before, begin = lines.tokens, time.perf_counter()
    with Progress(console=console) as progress:
        task = progress.add_task("decoding", total=count, completed=lines.rows)
        while batch := list(islice(rows, size)):
            written = interruptible(
                lambda batch=batch: distill.write(
                    target.model, target.params, target.eos, batch, recipe, size
                )
            )
            lines.append(
                [
                    distill.record(start, tokens, finish, target.tokenizer.decode(tokens))
                    for start, (tokens, finish) in zip(batch, written, strict=True)
                ]
            )
            speed = (lines.tokens - before) / (time.perf_counter() - begin)
            progress.update(
                task, completed=lines.rows, description=f"decoding, {speed:,.0f} tokens/s"
            )
    console.print(f"{lines.rows:,} rows, {lines.tokens:,} tokens in {out}", soft_wrap=True)


def temperatures(text: str) -> tuple[tuple[float, float], ...]:
    """Parses `0:0.6,0.7:0.2,1:0.2`, or `0,0.7,1` in equal shares.

    Raises:
        InputError: if it is neither.
    """
    try:
        pairs = [part.partition(":") for part in text.split(",")]
        return tuple((float(value), float(share or 1)) for value, _, share in pairs)
    except ValueError:
        raise InputError(
            f"--temperature is {text!r}; write temperatures with their shares, such as 0:0.6,1:0.4"
        ) from None
