"""Fig. 5 of DySpec: the size of each round's tree, and the tokens that the round gave."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from rich import box
from rich.table import Table

import jspec
from benchmarks.dyspec import figures
from benchmarks.dyspec.contenders import Workload, drafter, threshold
from benchmarks.dyspec.table import DRAFT_TEMPERATURE
from benchmarks.harness import console, headline
from benchmarks.ledger import Ledger
from benchmarks.whole_rounds import DEEPEST
from jspec.testing.tracing import TracedRound

METHODS = ("threshold", "dyspec", "dyspec beam 8")


def report(
    ledger: Ledger,
    work: Workload,
    budget: int,
    temperatures: Sequence[float],
    picture: Path | None,
) -> None:
    """Every round of one text of each class."""
    headline(
        f"{work.pair.name}: trees of at most {budget} nodes, threshold {threshold(budget):g}, "
        f"{work.new_tokens} tokens of a text of each class"
    )
    about = dict(
        bench="dyspec_trees", **work.pair.about, budget=budget, new_tokens=work.new_tokens,
        prompt_tokens=work.prompt_tokens,
    )  # fmt: skip
    shown = Table(
        "T", "method", "rounds", "nodes", "tokens per round", "levels", "children bound",
        "level bound", "depth bound", box=box.MARKDOWN,
    )  # fmt: skip
    seen = {}
    for temperature in temperatures:
        for name in METHODS:
            here = about | dict(temperature=temperature, method=name)
            if not ledger.find(**here):
                ledger.add(**here, rounds=measure(work, name, budget, temperature))
            rows = np.array(ledger.find(**here)[-1]["rounds"])
            seen[temperature, name] = rows
            nodes, tokens, levels, *bounds = rows.mean(0)
            shown.add_row(
                f"{temperature:g}", name, str(len(rows)), f"{nodes:.1f}", f"{tokens:.2f}",
                f"{levels:.1f}", *(f"{share:.0%}" for share in bounds),
            )  # fmt: skip
    console.print(shown)
    console.print(
        "Bounds: the share of rounds in which some node has as many children as are drawn, some "
        "level as many nodes with children as are scored, or the tree as many levels as there may "
        "be. In the others the tree is Algorithm 1's. The paper's mean size at T 0.6 is 551.79 of "
        "768, with the threshold 0.001 and texts of OpenWebText."
    )
    if picture is not None:
        figures.grown_trees(
            picture, {t: seen[t, "threshold"] for t in temperatures}, work.pair.name
        )
        console.print(f"figure: {picture}")


def measure(work: Workload, name: str, budget: int, temperature: float) -> list[list[int]]:
    """Nodes, tokens, levels and bounds that were met, of every round."""
    method: Any = drafter(name, work, budget, temperature, DRAFT_TEMPERATURE)
    found = []
    for one in traced(work, method, temperature):
        nodes, tokens, levels = one.num_verified - 1, len(one.path), deepest(one.parents)
        families = np.bincount(one.parents[1:], minlength=1)
        at = depths(one.parents)
        parents = np.unique(one.parents[1:])
        wide = np.bincount(at[parents][at[parents] > 0], minlength=1)
        found.append(
            [
                int(nodes), int(tokens), levels, int(families.max() >= method.beam),
                int(wide.max() >= method.beam), int(levels >= method.max_depth),
            ]
        )  # fmt: skip
    return found


def traced(work: Workload, method: jspec.Drafter, temperature: float) -> list[TracedRound]:
    """The rounds of one text of each class, each up to the one that passes its limit."""
    target, draft = work.pair.target, work.pair.draft
    prompts = work.prompts(0)
    rows = range(0, prompts.count, work.count)
    found = []
    for row in rows:
        prompt = prompts.take([row])
        trace = jspec.trace(
            target.model, target.params, *prompt, drafter=method, drafter_params=draft.params,
            max_new_tokens=work.new_tokens + DEEPEST, key=0,
            sampling=jspec.Sampling(temperature=temperature),
        )  # fmt: skip
        tokens = np.cumsum([len(one.path) for one in trace.rounds])
        found += trace.rounds[: 1 + int(np.argmax(tokens >= work.new_tokens))]
    return found


def depths(parents: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Edges from the root to each node; parents stand before children."""
    found = np.zeros(len(parents), np.int64)
    for node in range(1, len(parents)):
        found[node] = found[parents[node]] + 1
    return found


def deepest(parents: Int[np.ndarray, " N"]) -> int:
    """Levels of a tree."""
    return int(depths(parents).max())
