"""The work of `jspec train data`: rows of a target's own text, from prompts to a file."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from rich.console import Console

from jspec import models
from jspec._validate.errors import InputError
from jspec.cli.train_progress import show
from jspec.methods import BUNDLED
from jspec.models.detokenise import Detokeniser
from jspec.models.fingerprint import fingerprint
from jspec.models.load import Loaded
from jspec.sessions import conversations
from jspec.sessions.batches import interruptible
from jspec.training import chats, distill, jobs
from jspec.training import corpus as corpora


@dataclass(frozen=True)
class Prompts:
    """The cutting of documents into prompts."""

    row: corpora.Row | None
    choose: distill.Choose
    encode: Callable[[Loaded, str], list[int]]
    ends: Callable[[Loaded], Sequence[int]]
    is_whole: bool


CONTINUED = Prompts(
    None,
    distill.piece,
    lambda target, text: target.tokenizer.encode(text).ids,
    lambda target: target.eos,
    False,
)
"""Beginnings and parts of texts, which the model goes on writing."""
ASKED = Prompts(
    chats.row,
    distill.whole,
    lambda target, text: conversations.render(target, json.loads(text)),
    conversations.eos,
    True,
)
"""Conversations, which the model answers."""


def run(
    texts: jobs.Texts,
    model: str | None,
    out: Path,
    recipe: distill.RowsRecipe,
    count: int,
    size: int,
    prompts: Prompts = CONTINUED,
) -> None:
    """Writes rows to `out` until it holds `count`."""
    if count < 1 or size < 1:
        raise InputError(
            f"count {count} in batches of {size} leaves nothing to do; use at least 1 of each"
        )
    target = models.load(model or BUNDLED)
    context, total = target.model.context, recipe.longest + recipe.max_new_tokens
    if context is not None and total > context:
        raise InputError(
            f"prompts of {recipe.longest} tokens and {recipe.max_new_tokens} new ones are more "
            f"than the target's context of {context}; use a sum <= {context}"
        )
    corpus = corpora.load(texts.sources, row=prompts.row)
    console = Console()

    def encode(text: str) -> list[int]:
        return prompts.encode(target, text)

    documents = corpus.train
    if prompts.is_whole:
        documents = fitting(documents, encode, recipe.longest, console)
    weights = {label: texts.weights.get(label, 1.0) for label in documents}
    settings = distill.settings(
        recipe, weights, corpora.fingerprint(corpus), fingerprint(target.params)
    )
    lines = distill.RowFile(out, settings)
    if lines.rows >= count:
        console.print(f"{out} holds {lines.rows:,} rows already", soft_wrap=True)
        return
    rows = distill.starts(documents, weights, encode, recipe, lines.rows, count, prompts.choose)
    ends, detokenise = prompts.ends(target), partial(Detokeniser, target.tokenizer)
    before, begin = lines.tokens, time.perf_counter()
    with show(console, "decoding", count, lines.rows) as progress:
        while batch := list(islice(rows, size)):
            outputs = interruptible(
                lambda batch=batch: distill.write(
                    target.model, target.params, ends, batch, recipe, size
                )
            )
            lines.append(
                [
                    # The end token of a row that has one is not text.
                    distill.record(
                        start,
                        tokens,
                        finish,
                        detokenise(start.prompt).finish(tokens[: -1 if finish == "stop" else None]),
                    )
                    for start, (tokens, finish) in zip(batch, outputs, strict=True)
                ]
            )
            speed = (lines.tokens - before) / (time.perf_counter() - begin)
            progress.update(lines.rows, f"{speed:,.0f} tokens/s")
    console.print(f"{lines.rows:,} rows, {lines.tokens:,} tokens in {out}", soft_wrap=True)


def fitting(
    documents: dict[str, list[str]],
    encode: Callable[[str], list[int]],
    longest: int,
    console: Console,
) -> dict[str, list[str]]:
    """Returns each class's documents within the longest prompt; says how many."""
    result = {}
    for label, texts in documents.items():
        result[label] = [text for text in texts if len(encode(text)) <= longest]
        if not result[label]:
            raise InputError(
                f"all {len(texts)} conversations of class {label} have more than {longest} tokens; "
                "raise --longest"
            )
        if surplus := len(texts) - len(result[label]):
            console.print(f"{label}: {surplus} of {len(texts)} are longer than --longest {longest}")
    return result


def temperatures(text: str) -> tuple[tuple[float, float], ...]:
    """Parses `0:0.6,0.7:0.2,1:0.2`, or `0,0.7,1` in equal shares."""
    try:
        pairs = [part.partition(":") for part in text.split(",")]
        return tuple((float(value), float(share or 1)) for value, _, share in pairs)
    except ValueError:
        raise InputError(
            f"--temperature is {text!r}; write temperatures with their shares, such as 0:0.6,1:0.4"
        ) from None
