"""Trees of as many tokens, each judged by all verifiers that are lossless for its draws.

Alongside the paper's rules: traversal verification (Weng et al. 2025), and trees whose
branching is delayed (Thomas et al. 2026, arXiv:2602.16994).

python -m benchmarks.rsd.tree_verifiers --out rows.jsonl
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

import jspec
from benchmarks import model_pairs, options
from benchmarks.dyspec.contenders import Workload
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.rsd.settings import TEMPERATURES
from benchmarks.whole_rounds import Decoding
from jspec.verify.schemes import COUPLED, K_SEQ, MULTI_ROUND, RECURSIVE, TRAVERSAL, Scheme

WITHOUT = {"recursive": RECURSIVE, "traversal": TRAVERSAL, "coupled": COUPLED}
"""Verifiers of children that were drawn without replacement."""


@dataclass(frozen=True)
class Tree:
    """A way to draft, and the verifiers that are lossless for it."""

    build: Callable[[jspec.CausalLM, Scheme], jspec.Drafter]
    schemes: Mapping[str, Scheme]


def _chains(number: int, length: int) -> Tree:
    """Draws independent chains."""
    return Tree(
        lambda model, scheme: jspec.SpecTr(
            model, num_chains=number, max_depth=length, scheme=scheme
        ),
        {"multi-round": MULTI_ROUND, "K-SEQ": K_SEQ},
    )


def _branching(*branching: int) -> Tree:
    """Draws children of each node of a level, without replacement or independently."""
    return Tree(
        lambda model, scheme: jspec.RSDC(model, branching, scheme=scheme),
        WITHOUT | {"multi-round": MULTI_ROUND},
    )


TREES: dict[str, Tree] = {
    "3 chains of 5": _chains(3, 5),
    "3 branches at the root, 15": _branching(3, 1, 1, 1, 1),
    "3 branches after 3, 15": _branching(1, 1, 1, 3, 1, 1, 1),
    "3 branches after 6, 15": _branching(*(1,) * 6, 3, 1, 1),
    "chain of 4": _branching(1, 1, 1, 1),
    "RSD-C 2-2-1": _branching(2, 2, 1),
    "RSD-S 3x4": Tree(
        lambda model, scheme: jspec.RSDS(model, beam=3, max_depth=4, scheme=scheme), WITHOUT
    ),
    "DySpec, 14 nodes": Tree(
        lambda model, scheme: jspec.DySpec(
            model, num_speculative_tokens=14, max_depth=8, beam=4, scheme=scheme
        ),
        WITHOUT,
    ),
}
"""The first four have 15 tokens: chains, and a tree that branches ever later."""


def main(
    out: Annotated[Path, typer.Option(help="JSON lines; what is there is not counted again")],
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = "stories,maths,books,speeches",
    count: Annotated[int, typer.Option(min=1, help="Prompts per class and seed.")] = 5,
    prompt_tokens: options.PromptTokens = 32,
    new_tokens: options.NewTokens = 64,
    seeds: Annotated[int, typer.Option(min=1, help="each with texts of its own")] = 3,
) -> None:
    """Counts whole rounds, a seed after the other; `benchmarks.results` makes the table."""
    loaded = model_pairs.pair(model, draft_model, questions, prompts, classes, scan_layers=True)
    work = Workload(loaded, count, seeds, prompt_tokens, new_tokens)
    headline(f"{loaded.name}: trees and their verifiers, {seeds} seeds of {len(work.kinds)} texts")
    setting = dict(
        bench="tree_verifiers", **loaded.about, count=count, seeds=seeds, prompt=prompt_tokens,
        new=new_tokens,
    )  # fmt: skip
    ledger = Ledger(out, setting)
    ready: dict[tuple[str, str], Decoding] = {}
    for seed in range(seeds):
        for name, tree in TREES.items():
            for verifier, scheme in tree.schemes.items():
                for temperature, top_p in TEMPERATURES:
                    here = dict(
                        tree=name, verifier=verifier, temperature=temperature, top_p=top_p,
                        seed=seed,
                    )  # fmt: skip
                    if ledger.find(**here):
                        continue
                    if (name, verifier) not in ready:
                        drafter = tree.build(loaded.draft.model, scheme)
                        ready[name, verifier] = work.decoding(drafter, loaded.draft.params)
                    counted = ready[name, verifier].count(
                        work.prompts(seed), key=seed,
                        sampling=jspec.Sampling(temperature=temperature, top_p=top_p),
                    )  # fmt: skip
                    ledger.add(
                        **here, tokens=counted.tokens.tolist(), calls=counted.rounds.tolist()
                    )
            console.print(f"seed {seed}, {name}: there", highlight=False)


if __name__ == "__main__":
    command(main)
