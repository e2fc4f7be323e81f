"""DySpec's experiments (Xiong et al. 2024): Tables 1 to 4, and Figures 2, 4 and 5.

python -m benchmarks.dyspec --pair bundled --budget 64 --out dyspec.jsonl
"""

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.table import Table

from benchmarks import model_pairs
from benchmarks.dyspec import budgets, components, figures
from benchmarks.dyspec.contenders import LEARNING, LONGEST, Workload, drafter
from benchmarks.harness import console, headline
from benchmarks.ledger import Ledger
from jspec.verify import schemes

METHODS = (
    "dyspec",
    "threshold",
    "calibrated_dyspec",
    "coupled_tree",
    "sequoia",
    "sequoia coupled",
    "specinfer",
    "speculative_decoding",
)
"""Methods of the table. Those not called coupled verify by rejection, at the draft's temperature
at T = 0 too. `sequoia coupled` at T = 0 takes the draft's likeliest tokens, as Sequoia's authors
do when decoding greedily."""
SIZES = (4, 8, 16, 32, 64, 128)
GROWING = ("dyspec", "calibrated_dyspec", "coupled_tree", "sequoia")
ALIKE = ("threshold", "sequoia coupled", "specinfer")
"""Methods whose rounds have the same parts as those of another."""
DRAFT_TEMPERATURE = 0.6
"""The draft's temperature, whatever the target's (section 5.1)."""


def main(
    pair: Annotated[str, typer.Option(help=", ".join(model_pairs.PAIRS))] = "bundled",
    budget: Annotated[int, typer.Option(min=1, help="drafted nodes; 64 and 768 in the paper")] = 64,
    parts: Annotated[
        str, typer.Option(help="parts to run: table, sizes, rates, components")
    ] = "table,rates,components,sizes",
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(METHODS),
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    count: Annotated[int, typer.Option(min=1, help="prompts per class and seed")] = 1,
    prompt_tokens: Annotated[int, typer.Option(min=2)] = 24,
    new_tokens: Annotated[int, typer.Option(min=1)] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="rounds that components are timed in")] = 12,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON lines: what is there is not measured again; PNGs go beside it"),
    ] = None,
) -> None:
    """Runs the table and the components at batch 1; the draft is sampled at temperature 0.6."""
    ledger = Ledger(out)
    work = Workload(model_pairs.find(pair), count, seeds, prompt_tokens, new_tokens)
    names, wanted = methods.split(","), parts.split(",")
    target_temperatures = [float(temperature) for temperature in temperatures.split(",")]
    picture = (lambda part: out.with_name(f"{out.stem}_{part}.png")) if out else lambda part: None
    if "table" in wanted:
        headline(f"{pair}: {budget} nodes, batch 1, {new_tokens} tokens, {seeds} seeds")
        table(ledger, work, names, budget, target_temperatures)
    if "rates" in wanted:
        rates(work, target_temperatures, picture("rates"))
    if "components" in wanted:
        different = [name for name in names if name not in ALIKE]
        components.report(
            ledger, work, different, budget, target_temperatures[-1], DRAFT_TEMPERATURE, rounds,
            picture("components"),
        )  # fmt: skip
    if "sizes" in wanted:
        sizes(ledger, work, target_temperatures, picture("sizes"))


def table(
    ledger: Ledger, work: Workload, names: Sequence[str], budget: int, temperatures: Sequence[float]
) -> None:
    """Accepted tokens per round and latency, all methods in turn on each prompt."""
    about = dict(
        bench="dyspec", pair=work.pair.name, budget=budget, prompt_tokens=work.prompt_tokens,
        new_tokens=work.new_tokens, count=work.count, seeds=work.seeds,
    )  # fmt: skip
    with console.status("") as status:
        for temperature in temperatures:
            runs = Runs(work, names, budget, temperature)
            for seed in range(work.seeds):
                prompts = work.prompts(seed)
                for index, kind in enumerate(work.kinds):
                    here = about | dict(
                        temperature=temperature, seed=seed, prompt=index, **{"class": kind}
                    )
                    if {row["method"] for row in ledger.find(**here)} >= {"plain", *names}:
                        continue
                    status.update(f"T {temperature:g}, seed {seed}, {kind}")
                    for row in runs.turn(prompts[[index]], seed):
                        ledger.add(**here, **row)
    found = {
        (name, temperature): latest(ledger.find(**about, temperature=temperature, method=name))
        for name in ("plain", *names)
        for temperature in temperatures
    }
    for temperature in temperatures:
        shown = Table(
            f"T {temperature:g}",
            *(f"{kind}\nms/token (tokens)" for kind in work.pair.classes),
            "all",
            "over plain",
            "tree",
        )
        plain = found["plain", temperature]
        for name in ("plain", *names):
            rows = found[name, temperature]
            cells = [
                cell([row for row in rows if row["class"] == kind]) for kind in work.pair.classes
            ]
            gains = np.array(
                [
                    np.median(
                        [
                            other["seconds"] / row["seconds"]
                            for row, other in zip(rows, plain, strict=True)
                            if row["seed"] == seed
                        ]
                    )
                    for seed in range(work.seeds)
                ]
            )
            drafted = sum(row["drafted"] for row in rows) / sum(row["rounds"] for row in rows)
            shown.add_row(
                name, *cells, cell(rows, spread=True), budgets.shown(gains), f"{drafted:.0f}"
            )
        console.print(shown)
    console.print(
        "ms/token (tokens per round): prefill included, bonus token included, +- deviation of the "
        f"seeds. Over plain: times are of neighbours in time. Chains of {LONGEST} tokens at most."
    )
    for temperature in temperatures:
        each = {name: by_seed(found[name, temperature], work.seeds) for name in names}
        order = sorted(names, key=lambda name: -each[name].mean())
        first = order[0]
        for name in order[1:]:
            told = budgets.verdict(each[first], each[name])
            console.print(f"T {temperature:g}: {first} {told} to {name}.", highlight=False)


class Runs:
    """Plain decoding and the methods at one temperature, compiled and warm."""

    def __init__(self, work: Workload, names: Sequence[str], budget: int, temperature: float):
        self.work, self.names, self.temperature = work, names, temperature
        self.budget = budget
        self.ready: dict[str, dict[str, Any]] | None = None

    def _prepare(self) -> dict[str, dict[str, Any]]:
        work = self.work
        grown = {} if self.budget <= 128 else dict(beam=24, max_depth=24)
        ready: dict[str, dict[str, Any]] = {"plain": {}}
        for name in self.names:
            made = drafter(name, work, self.budget, self.temperature, DRAFT_TEMPERATURE, **grown)
            ready[name] = dict(drafter=made, drafter_params=work.pair.draft.params)
        for name, how in ready.items():
            # Compiles, and teaches those that learn; a prompt of each class is enough.
            for prompt in work.prompts(-1):
                result = work.decode(prompt[None], self.temperature, 2**31 - 1, **how)
                if name not in LEARNING:
                    break
                how["drafter_state"] = result.drafter_state
            jax.block_until_ready(result.tokens)
        return ready

    def turn(self, prompt: np.ndarray, seed: int) -> list[dict]:
        """A row for each method, one after the other on the same prompt."""
        self.ready = self.ready or self._prepare()
        rows = []
        for name, how in self.ready.items():
            start = time.perf_counter()
            result = self.work.decode(prompt, self.temperature, seed, **how)
            jax.block_until_ready(result.tokens)
            rows.append(
                dict(
                    method=name,
                    seconds=time.perf_counter() - start,
                    tokens=int(result.lengths[0]),
                    rounds=int(result.stats.num_rounds[0]),
                    drafted=int(result.stats.num_draft_tokens[0]),
                )
            )
        return rows


def latest(rows: Sequence[dict]) -> list[dict]:
    """One row a prompt: a turn that was taken again, with other methods, replaces the first."""
    return list({(row["seed"], row["prompt"]): row for row in rows}.values())


def by_seed(rows: Sequence[dict], seeds: int) -> np.ndarray:
    """Tokens per round of each seed."""

    def of(seed: int, what: str) -> int:
        return sum(row[what] for row in rows if row["seed"] == seed)

    return np.array([of(seed, "tokens") / of(seed, "rounds") for seed in range(seeds)])


def cell(rows: Sequence[dict], spread: bool = False) -> str:
    """Latency per token and, in brackets, tokens per round, as the paper prints them."""
    total = {what: sum(row[what] for row in rows) for what in ("tokens", "rounds", "seconds")}
    seeds = max(row["seed"] for row in rows) + 1
    more = f" +- {budgets.spread(by_seed(rows, seeds)):.2f}" if spread else ""
    latency = 1e3 * total["seconds"] / total["tokens"]
    return f"{latency:.2f} ({total['tokens'] / total['rounds']:.2f}{more})"


def rates(
    work: Workload, temperatures: Sequence[float], picture: Path | None, width: int = 4
) -> None:
    """Fig. 2: is a child accepted as often as the draft thinks it likely?"""
    headline(
        f"{work.pair.name}: acceptance by the draft's probability, temperature {DRAFT_TEMPERATURE}"
    )
    panels = {}
    for temperature in temperatures:
        seen = work.trials(temperature, DRAFT_TEMPERATURE, schemes.RECURSIVE, width)
        left = 1 - (np.cumsum(seen.chances, -1) - seen.chances)
        refused = np.cumprod(1 - np.asarray(seen.accept), -1)
        tried = np.concatenate([np.ones_like(refused[..., :1]), refused[..., :-1]], -1)
        there = np.asarray(seen.chances) > 0
        among_left = np.where(there, seen.chances / np.maximum(left, 1e-9), 0)
        panels[temperature] = np.minimum(among_left, 1), seen.accept, np.where(there, tried, 0)
    edges = 2.0 ** -np.arange(8, -1, -1)
    for temperature, (chances, accept, reached) in panels.items():
        shown = Table(
            f"T {temperature:g}: child",
            *(f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)),
        )
        for rank in range(width):
            of = chances[..., rank], accept[..., rank], reached[..., rank]
            shown.add_row(str(rank + 1), *figures.means(*of, edges))
        console.print(shown)
    console.print(
        "Mean chance that a child is accepted where it is tried, by the draft's probability of it "
        "among the tokens not drawn before. DySpec takes the one for the other."
    )
    if picture is not None:
        figures.rates(picture, panels, work.pair.name)
        console.print(f"figure: {picture}")


def sizes(
    ledger: Ledger, work: Workload, temperatures: Sequence[float], picture: Path | None
) -> None:
    """Fig. 5: tokens per round against the size of the tree, from the rows of `budgets`."""
    headline(f"{work.pair.name}: tokens per round by size of the tree")
    means = budgets.collect(ledger, work, list(GROWING), list(SIZES), list(temperatures))
    for temperature in temperatures:
        shown = Table(f"T {temperature:g}", *map(str, SIZES))
        for name in GROWING:
            shown.add_row(name, *(budgets.shown(means[name, s, temperature]) for s in SIZES))
        console.print(shown)
    if picture is not None:
        figures.sizes(picture, means, GROWING, SIZES, temperatures, work.pair.name)
        console.print(f"figure: {picture}")


if __name__ == "__main__":
    typer.run(main)
