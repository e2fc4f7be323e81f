"""Token Recycling's tree by Sequoia's programme, from acceptance by depth and rank.

python -m benchmarks.recycling.measured_tree --out tree.json
python -m benchmarks.recycling.measured_tree --model jspec-7m --model DIR --nodes 15 --out tree.json
jspec generate ... --method token_recycling --speculative-config "$(cat tree.json)"
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.prompts import LEARNING
from benchmarks.recycling.bench import Bench
from benchmarks.recycling.wordings import wording
from jspec.cli.bench.questions import Question
from jspec.drafters.draft_model import sequoia_tree
from jspec.protocols import Drafter
from jspec.tree import Template, likeliest

WIDE = (0.75, 0.3, 0.22, 0.18, 0.15, 0.13, 0.12, 0.11)
"""Rates that make the tree to measure with: so even that it has every rank at many nodes."""


@dataclass(frozen=True)
class Counted(Drafter):
    """Token Recycling that counts, node by node, how often it was accepted."""

    inner: jspec.TokenRecycling

    def init(self, batch, capacity, earlier):
        matrix, visits = (None, None) if earlier is None else earlier
        if visits is None:
            visits = jnp.zeros(self.inner.template.num_nodes, jnp.int32)
        return self.inner.init(batch, capacity, matrix), visits

    def prefill(self, params, state, chunk):
        return self.inner.prefill(params, state[0], chunk), state[1]

    def draft(self, params, state, frame):
        return self.inner.draft(params, state[0], frame)

    def update(self, params, state, aux, feedback):
        # A round that was cut short is left out: what its last nodes led to is not known.
        path, counts = feedback.verdict.path, feedback.verdict.path_lengths
        seen = (jnp.arange(path.shape[1]) < counts[:, None]) & ~feedback.done[:, None]
        nodes = jnp.where(seen, path, state[1].shape[0])
        visits = state[1].at[nodes].add(1, mode="drop")
        return self.inner.update(params, state[0], aux, feedback), visits


def measured(bench: Bench, questions: Sequence[Question], template: Template) -> np.ndarray:
    """Returns [N] visits of each node of the template; questions share one matrix."""
    drafter, state = Counted(jspec.TokenRecycling(bench.target.model.vocab_size, template)), None
    for question in questions:
        ids = bench.read(question, [])
        result = jspec.decode(
            bench.target.model, bench.target.params, [ids],
            stopping=jspec.Stopping(max_tokens=[bench.limit(ids)], eos=bench.eos),
            drafter=drafter, drafter_state=state, max_new_tokens=bench.new_tokens,
        )  # fmt: skip
        state = result.drafter_state
    assert state is not None, "no questions"
    return np.asarray(state[1])


def rates(template: Template, visits: np.ndarray, ranks: int) -> np.ndarray:
    """Returns [D, K], acceptance of the child of each rank given its parent at depth d."""
    tried, taken = np.zeros((2, template.depth, ranks))
    for path, node in zip(template.paths, range(1, template.num_nodes), strict=True):
        tried[len(path) - 1, path[-1]] += visits[template.parents[node]]
        taken[len(path) - 1, path[-1]] += visits[node]
    # Each level starts from what the level above it has, which a hundred visits outweigh.
    found, prior = np.zeros_like(tried), np.full(ranks, 1 / (ranks + 1))
    for level in range(template.depth):
        found[level] = (taken[level] + 20 * prior) / (tried[level] + 20)
        found[level] /= max(found[level].sum(), 1.0)
        prior = found[level]
    return found


def main(
    model: Annotated[
        list[str] | None, typer.Option(help="folder, bundled name or hub id; may be repeated")
    ] = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = ",".join(LEARNING),
    nodes: Annotated[int, typer.Option(min=1, help="drafted nodes, without the root")] = 80,
    max_depth: Annotated[int, typer.Option(min=1)] = 10,
    count: options.Count = 8,
    prompt_tokens: options.PromptTokens = 48,
    new_tokens: options.NewTokens = 128,
    wide: Annotated[int, typer.Option(min=8, help="nodes of the tree to measure with")] = 240,
    out: Annotated[Path | None, typer.Option(help="writes the template here")] = None,
) -> None:
    """Decodes greedily at batch 1, each text until it repeats itself.

    Of several models the rounds of each count the same.
    """
    template = likeliest(WIDE, wide)
    found, rounds = [], 0
    for named in model or [None]:
        subject = model_pairs.subject(named, questions, prompts, classes)
        headline(f"{subject.name}: acceptance by depth and rank, {count} prompts of each class")
        words = wording(subject.target, subject.texts)
        bench = Bench(subject.target, words, new_tokens, prompt_tokens)
        asked = [one for kind in subject.classes for one in subject.texts.some(kind, count)]
        visits = measured(bench, asked, template)
        found.append(visits / visits[0])
        rounds += int(visits[0])
        mean = visits.sum() / visits[0]
        console.print(f"{subject.name}: {mean:.2f} tokens per round of {visits[0]}")
    mean = rates(template, rounds * np.mean(found, axis=0), len(WIDE))
    table = Table("depth", *(f"rank {rank}" for rank in range(len(WIDE))))
    for level, row in enumerate(mean, 1):
        table.add_row(str(level), *(f"{probability:.3f}" for probability in row))
    console.print(table)
    best = sequoia_tree.best_template(mean, nodes, max_depth)
    text = json.dumps({"template": [list(path) for path in best.paths]}, separators=(",", ":"))
    console.print(f"{nodes} nodes in {best.depth} levels: {[len(level) for level in best.levels]}")
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    command(main)
