"""Acceptance by a child's rank, Sequoia's trees from it, and the tree that pays here.

python -m benchmarks.dyspec.acceptance
"""

from dataclasses import replace
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

from benchmarks import model_pairs, options
from benchmarks.dyspec.contenders import Workload, template
from benchmarks.harness import command, console, headline, paired, record
from jspec.drafters.draft_model import sequoia_tree
from jspec.protocols import CausalLM
from jspec.types import PyTree
from jspec.verify import schemes


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6,1",
    budgets: Annotated[str, typer.Option(help="drafted nodes, comma-separated")] = "4,8,16,32,64",
    width: Annotated[int, typer.Option(min=1, help="children of a node")] = 16,
    max_depth: Annotated[int, typer.Option(min=1)] = 12,
    count: options.Count = 4,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 64,
    repeats: Annotated[int, typer.Option(min=1)] = 20,
    out: options.Out = None,
) -> None:
    """Measures on the target's own texts; the draft's temperature is the target's, at least 0.6."""
    found = model_pairs.pair(model, draft_model, questions, prompts, classes)
    # No seeds: all prompts are there to learn from.
    work = Workload(found, count, 0, prompt_tokens, new_tokens)
    sizes = [int(budget) for budget in budgets.split(",")]
    headline(
        f"{found.name}: acceptance by rank, over {len(work.kinds)} texts of {new_tokens} tokens"
    )

    costs = {size: cost(found.target, size + 1, repeats) for size in (0, *sizes)}
    drafting = cost(found.draft, 2, repeats)
    console.print(
        "target forward pass over N drafted nodes and the root: "
        + ", ".join(f"{nodes} {1e3 * time:.1f} ms" for nodes, time in costs.items())
        + f"; draft forward pass {1e3 * drafting:.1f} ms"
    )
    table = Table("T", "scheme", "P(rank), percent", *(f"N {s}\nE, depth" for s in sizes), "pays")
    for temperature in map(float, temperatures.split(",")):
        draft_temperature = max(temperature, 0.6)
        for name, scheme in (("recursive", schemes.RECURSIVE), ("coupled", schemes.COUPLED)):
            vector = work.vector(temperature, draft_temperature, scheme, width)
            solved = sequoia_tree.solve(vector, max(sizes), max_depth).tokens
            trees = {size: template(vector, size, max_depth) for size in sizes}
            best = sequoia_tree.choose(vector, costs, drafting, max_depth)
            gain = costs[0] / best.time
            table.add_row(
                f"{temperature:g}",
                name,
                " ".join(f"{100 * probability:.1f}" for probability in vector[:8]),
                *(f"{solved[s].max():.2f}, {trees[s].depth}" for s in sizes),
                f"{best.num_speculative_tokens} of depth {best.max_depth}: {gain:.2f}x",
            )
            record(
                out,
                {
                    "bench": "acceptance",
                    **found.about,
                    "temperature": temperature,
                    "draft_temperature": draft_temperature,
                }
                | {"scheme": name, "vector": vector}
                | {"expected": {size: float(solved[size].max()) for size in sizes}}
                | {"paths": {size: trees[size].paths for size in sizes}}
                | {"costs": costs, "draft_cost": drafting, "choice": best._asdict()},
            )
    console.print(table)
    console.print(
        "E: tokens that a round is expected to emit with the best tree of N drafted nodes. "
        "Pays: the tree of least time per token and its speed-up, if rounds took their forward "
        "passes' time alone."
    )


def cost(loaded, nodes: int, repeats: int, past: int = 96) -> float:
    """Returns seconds of a forward pass over that many nodes of one row, behind `past` tokens."""
    model: CausalLM = loaded.model
    cache = replace(model.init_memory(1, past + nodes), lengths=jnp.array([past]))
    tokens = jnp.asarray(np.random.default_rng(0).integers(1, model.vocab_size, (1, nodes)))
    positions = past + jnp.arange(nodes)[None]
    mask = jnp.tril(jnp.ones((1, nodes, nodes), bool))

    @jax.jit
    def forward(params: PyTree, cache):
        return model.apply(params, tokens, positions, mask, cache)

    return float(np.median(paired({"": lambda: forward(loaded.params, cache)}, repeats)[""]))


if __name__ == "__main__":
    command(main)
