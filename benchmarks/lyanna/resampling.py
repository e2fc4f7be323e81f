"""Tokens per round that re-sampling adds to Lyanna, by depth; no clock is read.

python -m benchmarks.lyanna.resampling --out resampling.jsonl
"""

from typing import Annotated

import numpy as np
import typer
from jaxtyping import Int
from rich import box
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.lyanna import trained_heads
from benchmarks.lyanna.trained_heads import WIDTH, conditional, histograms, tokens_per_round
from benchmarks.texts import Prompts
from jspec.drafters.draft_head.lyanna import Lyanna
from jspec.drafters.draft_head.lyanna_resampling import Fused, Merged, Resampling, Separate
from jspec.types import PyTree


def main(
    model: options.Model = None,
    head: options.Head = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    depths: Annotated[str, typer.Option(help="depths of trees, comma-separated")] = "3,5",
    nodes: Annotated[int, typer.Option(min=1, help="drafted nodes of the fresh tree")] = 11,
    again: Annotated[str, typer.Option(help="nodes of second trees, comma-separated")] = "2,6",
    count: options.Count = 12,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 128,
    out: options.Out = None,
) -> None:
    """Decodes greedily. Each fused tree is compared with a fresh one of as many nodes."""
    subject = model_pairs.subject(model, questions, prompts, classes)
    module, variables = trained_heads.trained("lyanna", head, subject.target)
    asked = subject.of_all_classes(count, prompt_tokens)
    headline(
        f"Re-sampling: {subject.name}, width {WIDTH}, {nodes} fresh nodes, {asked.count} prompts"
    )
    ways: dict[str, tuple[int, Resampling | None]] = {"off": (nodes, None)}
    for more in map(int, again.split(",")):
        ways[f"apart +{more}"] = nodes, Separate(more)
        ways[f"merged +{more}"] = nodes, Merged(more)
        ways[f"fused +{more}"] = nodes, Fused(more)
        ways[f"off, {nodes + more} nodes"] = nodes + more, None
    ledger = Ledger(
        out,
        dict(
            bench="lyanna.resampling", **subject.about, head=trained_heads.digest(variables),
            nodes=nodes, count=count, prompt_tokens=prompt_tokens, new_tokens=new_tokens,
        ),
    )  # fmt: skip
    columns = [f"depth {depth}" for depth in depths.split(",")]
    shown = Table("tokens per round", *columns, box=box.MARKDOWN)
    cells: dict[str, list[str]] = {name: [] for name in ways}
    for depth in map(int, depths.split(",")):
        for name, (size, resampling) in ways.items():
            if not ledger.find(depth=depth, way=name):
                drafter = trained_heads.tree(module, size, resampling, depth)
                with console.status(f"depth {depth}, {name}"):
                    found = histograms(subject, drafter, variables, asked, new_tokens)
                ledger.add(depth=depth, way=name, histograms=found.tolist())
                if isinstance(resampling, Separate):
                    parts = by_tree(subject, drafter, variables, asked, new_tokens)
                    for which, part in parts.items():
                        ledger.add(depth=depth, way=f"{name}, {which}", histograms=part.tolist())
                        shares = ", ".join(f"{one:.0%}" for one in conditional(part.sum(0)))
                        console.print(
                            f"depth {depth}, {name}, {which} trees accept by level {shares}"
                        )
            histogram = np.array(ledger.find(depth=depth, way=name)[-1]["histograms"]).sum(0)
            share = "" if isinstance(resampling, Separate) else f" ({left(histogram):.0%})"
            cells[name].append(f"{tokens_per_round(histogram):.3f}{share}")
    for name, row in cells.items():
        shown.add_row(name, *row)
    console.print(shown)
    console.print(
        "In brackets: rounds after which levels of the chain are left, the only ones that a second "
        "tree can follow. Apart, each tree takes a round of its own. Merged: the second tree on "
        "top of the fresh one, as in the paper's section 6.2. Fused: the best nodes of both, and "
        "of a larger fresh tree where there is no second."
    )


def by_tree(
    subject: model_pairs.Subject,
    drafter: Lyanna,
    variables: PyTree,
    prompts: Prompts,
    new_tokens: int,
) -> dict[str, Int[np.ndarray, "B P"]]:
    """Returns the rounds of each row by accepted drafts, of fresh trees and of second ones.

    The round that ends a row is left out: the limit may have cut it.
    """
    target = subject.target
    state = jspec.prefill(
        target.model, target.params, *prompts, drafter=drafter, drafter_params=variables,
        max_new_tokens=new_tokens,
    )  # fmt: skip
    found = {
        which: np.zeros((prompts.count, drafter.depth + 1), int) for which in ("fresh", "second")
    }
    while not bool(state.done.all()):
        second = np.asarray(state.drafter_state.memory.num_reusable > 0)
        before = np.asarray(state.lengths)
        state = jspec.step(
            target.model, target.params, state, drafter=drafter, drafter_params=variables
        )
        emitted = np.asarray(state.lengths) - before
        for row in np.flatnonzero(~np.asarray(state.done)):
            found["second" if second[row] else "fresh"][row, emitted[row] - 1] += 1
    return found


def left(histogram: np.ndarray) -> float:
    """Returns share of rounds that accepted so few that N - a - 1 is above 0."""
    return float(histogram[:-2].sum() / histogram.sum())


if __name__ == "__main__":
    command(main)
