"""Tables 1 to 4 of DySpec (Xiong et al. 2024) as counts: tokens per round, of many texts.

python -m benchmarks.dyspec.counts --out counts.jsonl                 # 64 nodes
python -m benchmarks.dyspec.counts --budget 768 --out counts.jsonl
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import jspec
from benchmarks import model_pairs, options
from benchmarks.dyspec.contenders import LEARNING, Workload, drafter
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.whole_rounds import Decoding
from jspec.types import PyTree

DRAFT_TEMPERATURE = 0.6
"""The draft's temperature, whatever the target's (section 5.1)."""
KINDS = "stories,books,speeches,articles"
"""Classes of the shared texts with 128 tokens, the paper's prompt; it has three data sets."""
PAPER = ("speculative_decoding", "specinfer", "sequoia", "dyspec")
"""The paper's methods, and the chain."""
CHANGED = (
    "dyspec at the target's",
    "sequoia at the target's",
    "dyspec deep",
    "sequoia deep",
)
"""One thing changed: the draft's temperature is the target's, trees may be 30 levels deep
(Sequoia's 24) in place of 16 (12), or the acceptance is learnt."""


def main(
    out: Annotated[Path, typer.Option(help="JSON lines; what is there is not counted again")],
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = KINDS,
    budget: Annotated[int, typer.Option(min=1, help="drafted nodes; 64 and 768 in the paper")] = 64,
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(PAPER + CHANGED),
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6,1",
    seeds: Annotated[int, typer.Option(min=1, help="each with texts of its own")] = 3,
    count: Annotated[int, typer.Option(min=1, help="Texts per class and seed.")] = 5,
    prompt_tokens: options.PromptTokens = 128,
    new_tokens: options.NewTokens = 128,
) -> None:
    """Counts a seed's texts as one batch, seed by seed: when stopped, all methods have as many."""
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes, scan_layers=True)
    work = Workload(pair, count, seeds, prompt_tokens, new_tokens)
    setting = dict(
        bench="dyspec_counts", **pair.about, kinds=classes, budget=budget, count=count,
        seeds=seeds, prompt=prompt_tokens, new=new_tokens,
    )  # fmt: skip
    ledger = Ledger(out, setting)
    headline(f"{pair.name}: {budget} nodes, {seeds} seeds of {len(work.kinds)} texts each")
    ready = Ready(work, budget)
    for seed in range(seeds):
        for temperature in map(float, temperatures.split(",")):
            for name in methods.split(","):
                fill(ledger, ready, name, temperature, seed)
                console.print(f"seed {seed}, T {temperature:g}, {name}: there", highlight=False)


def fill(ledger: Ledger, ready: "Ready", name: str, temperature: float, seed: int) -> None:
    """Counts what the ledger lacks of one method at one temperature. Texts go class by class."""
    work = ready.work
    follows = name.endswith(" at the target's")
    if follows and temperature <= DRAFT_TEMPERATURE:
        return  # A draft at temperature 0 grows no tree, and at 0.6 it is the paper's.
    here: dict[str, Any] = dict(
        method=name, temperature=temperature, seed=seed,
        draft_temperature=temperature if follows else DRAFT_TEMPERATURE,
    )  # fmt: skip
    if ledger.find(**here):
        return
    how = ready.method(name, temperature, here["draft_temperature"])
    counted = how.decoding.count(
        work.prompts(seed), drafter_state=how.state, key=seed,
        sampling=jspec.Sampling(temperature=temperature),
    )  # fmt: skip
    ledger.add(
        **here, tokens=counted.tokens.tolist(), calls=counted.rounds.tolist(),
        drafted=counted.num_draft_tokens.tolist(), levels=counted.num_levels.tolist(),
    )  # fmt: skip


@dataclass
class Method:
    """A method, and what it learnt from other texts."""

    decoding: Decoding
    state: PyTree = None


class Ready:
    """The methods of a workload at one budget, each built when it is first asked for."""

    def __init__(self, work: Workload, budget: int):
        self.work, self.budget = work, budget
        self._found: dict[tuple, Method] = {}

    def method(self, name: str, temperature: float, draft_temperature: float) -> Method:
        # Sequoia's tree and what is learnt are of one temperature, other methods of all.
        own = temperature if name.startswith("sequoia") or _learns(name) else None
        key = name, own, draft_temperature
        if key not in self._found:
            self._found[key] = self._build(name, temperature, draft_temperature)
        return self._found[key]

    def _build(self, name: str, temperature: float, draft_temperature: float) -> Method:
        work, plain = self.work, name.removesuffix(" at the target's")
        made = drafter(plain, work, self.budget, temperature, draft_temperature)
        found = Method(work.decoding(made, work.pair.draft.params))
        if _learns(plain):
            prompts = work.prompts(-1)
            found.state = found.decoding.run(
                prompts, np.full(prompts.count, work.new_tokens), key=2**31 - 1,
                sampling=jspec.Sampling(temperature=temperature),
            ).drafter_state.inner  # fmt: skip
        return found


def _learns(name: str) -> bool:
    return name in LEARNING


if __name__ == "__main__":
    command(main)
