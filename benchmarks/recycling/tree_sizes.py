"""The cost of a forward of N tokens here, and the tree of Token Recycling that pays.

python -m benchmarks.recycling.tree_sizes                      # the bundled model
"""

from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import console, headline, paired, record
from benchmarks.prompts import CLASSES, texts
from jspec.drafters.retrieval.token_recycling import PUBLISHED, fitted
from jspec.models import load


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    sizes: Annotated[
        str, typer.Option(help="nodes with the root, comma-separated")
    ] = "2,4,8,16,32",
    count: Annotated[int, typer.Option(min=1, help="prompts per class")] = 2,
    new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Decodes greedily at batch 1; t(N)/t(1) is of rounds that are made to accept nothing."""
    loaded = load(model)
    target = loaded.model, loaded.params
    vocab = loaded.model.vocab_size
    prompts = [
        np.array([loaded.tokenizer.encode(text).ids[:48]])
        for kind in CLASSES
        for text in texts(kind, count)
    ]
    templates = {int(size): fitted(int(size) - 1) for size in sizes.split(",")}
    templates[PUBLISHED.num_nodes] = PUBLISHED

    def decode(prompt, **options):
        return jspec.decode(*target, prompt, max_new_tokens=new_tokens, **options)

    headline(f"{model}: trees of Token Recycling, greedy, batch 1, {len(prompts)} prompts")
    plain = decode(prompts[0])
    runs = {1: lambda: decode(prompts[0]).tokens}
    for size, template in templates.items():
        refused = dict(
            drafter=jspec.Scripted(vocab, template),
            drafter_params=jspec.Script(plain.tokens, jnp.array([0])),
        )
        runs[size] = lambda refused=refused: decode(prompts[0], **refused).tokens
    seconds = paired(runs, repeats)
    cost = {size: float(np.median(value / seconds[1])) for size, value in seconds.items()}

    table = Table("nodes", "t(N)/t(1)", "tokens per forward", "speed-up measured")
    for size, template in templates.items():
        mean, ratios = _gain(decode, jspec.TokenRecycling(vocab, template), prompts, repeats)
        table.add_row(str(size), f"{cost[size]:.2f}", f"{mean:.2f}", f"{np.mean(ratios):.2f}x")
        record(
            out,
            {"bench": "trees", "model": Path(model).name, "nodes": size, "cost": cost[size]}
            | {"mean": mean, "ratios": ratios},
        )
    console.print(table)


def _gain(decode, drafter, prompts, repeats: int) -> tuple[float, list[float]]:
    """(tokens per forward, speed-up of each prompt); the matrix goes from prompt to prompt."""
    tokens, rounds, ratios, state = 0, 0, [], None
    for prompt in prompts:

        def tree(prompt=prompt, state=state):
            return decode(prompt, drafter=drafter, drafter_state=state)

        timed = paired(
            {
                "plain": lambda prompt=prompt: decode(prompt).tokens,
                "tree": lambda tree=tree: tree().tokens,
            },
            repeats,
        )
        result = tree()
        state = result.drafter_state
        tokens += int(result.lengths[0])
        rounds += int(result.stats.num_rounds[0])
        ratios.append(float(np.median(timed["plain"] / timed["tree"])))
    return tokens / rounds, ratios


if __name__ == "__main__":
    typer.run(main)
