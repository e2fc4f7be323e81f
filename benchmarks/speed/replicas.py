"""Tokens per round where rows share a memory, where each replica keeps its own, and merged.

python -m benchmarks.speed.replicas
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, record
from benchmarks.prompts import texts
from jspec.models import load


def main(
    replicas: Annotated[int, typer.Option(min=2)] = 4,
    rows: Annotated[int, typer.Option(min=1, help="of each replica")] = 2,
    turns: Annotated[int, typer.Option(min=2, help="batches one after the other")] = 4,
    new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    classes: Annotated[str, typer.Option(help="of the shared texts")] = "stories",
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Each turn decodes new prompts greedily with the memory that the turns before left.

    Figures are of the turns after the first, whose memories are empty in all three.
    """
    loaded = load(model)
    ids = [
        loaded.tokenizer.encode(text).ids[:32] for text in texts(classes, turns * replicas * rows)
    ]
    held = np.array([row for row in ids if len(row) == 32])
    turns = len(held) // (replicas * rows)
    batches = held[: turns * replicas * rows].reshape(turns, replicas, rows, 32)
    size = loaded.model.vocab_size
    drafters = {
        "token_recycling": jspec.TokenRecycling(size, jspec.tree.branching([3, 2, 1])),
        "suffix": jspec.Suffix(num_speculative_tokens=8),
    }
    headline(f"{replicas} replicas of {rows} rows, {turns} turns, {new_tokens} new tokens, greedy")
    table = Table("drafter", "shared by all rows", "one each", "merged after each turn")
    for name, drafter in drafters.items():

        def turn(prompts, memory, drafter=drafter):
            result = jspec.decode(
                loaded.model, loaded.params, prompts, drafter=drafter, drafter_state=memory,
                max_new_tokens=new_tokens,
            )  # fmt: skip
            counts = result.stats.num_rounds.sum(), result.lengths.sum()
            return result.drafter_state, np.array(counts)

        shared, apart, merged = None, [None] * replicas, None
        counted = np.zeros((3, 2))
        for number, batch in enumerate(batches):
            shared, whole = turn(batch.reshape(-1, 32), shared)
            own = [turn(prompts, memory) for prompts, memory in zip(batch, apart, strict=True)]
            alike = [turn(prompts, merged) for prompts in batch]
            apart = [memory for memory, _ in own]
            merged = jspec.memory_file.merge(drafter, [memory for memory, _ in alike])
            if number:
                parts = [sum(count for _, count in each) for each in (own, alike)]
                counted += np.stack([whole, *parts])
        rates = (counted[:, 1] / counted[:, 0]).tolist()
        table.add_row(name, *(f"{rate:.2f}" for rate in rates))
        record(out, {"bench": "replicas", "drafter": name, "tokens_per_round": rates})
    console.print(table)


if __name__ == "__main__":
    command(main)
