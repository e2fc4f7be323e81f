"""Tables 1 to 4 of DySpec: latency and accepted tokens, and what they would be worth elsewhere."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from rich import box
from rich.table import Table

import jspec
from benchmarks.dyspec import budgets
from benchmarks.dyspec.contenders import LEARNING, LONGEST, Workload, drafter
from benchmarks.harness import console
from benchmarks.ledger import Ledger
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Decoding
from jspec.types import PyTree

DRAFT_TEMPERATURE = 0.6
"""The draft's temperature, whatever the target's (section 5.1)."""
RATIOS = (20, 200, 2000)
"""T_t / T_d, a target's forward over a draft's, for which latencies are projected. The last is the
paper's of Llama-2-70B with its weights in host memory (5 s) and a 7B draft (25 ms, section 5.3)."""


def report(
    ledger: Ledger,
    work: Workload,
    names: Sequence[str],
    budget: int,
    temperatures: Sequence[float],
    timed: bool,
) -> None:
    """Accepted tokens per round and latency, all methods in turn on each prompt."""
    about = dict(
        bench="dyspec", **work.pair.about, budget=budget, prompt_tokens=work.prompt_tokens,
        new_tokens=work.new_tokens, count=work.count, seeds=work.seeds, timed=timed,
    )  # fmt: skip
    every = ("plain", *names) if timed else tuple(names)
    with console.status("") as status:
        for temperature in temperatures:
            runs = Runs(work, every, budget, temperature, timed)
            for seed in range(work.seeds):
                prompts = work.prompts(seed)
                for index, kind in enumerate(work.kinds):
                    here = about | dict(
                        temperature=temperature, seed=seed, prompt=index, **{"class": kind}
                    )
                    if {row["method"] for row in ledger.find(**here)} >= set(every):
                        continue
                    status.update(f"T {temperature:g}, seed {seed}, {kind}")
                    for row in runs.turn(prompts.take([index]), seed):
                        ledger.add(**here, **row)
    found = {
        (name, temperature): latest(ledger.find(**about, temperature=temperature, method=name))
        for name in every
        for temperature in temperatures
    }
    for temperature in temperatures:
        of = {name: found[name, temperature] for name in every}
        console.print(layout(of, work, temperature, timed))
    console.print(
        ("ms a token (tokens per round): prefill included, " if timed else "Tokens per round: ")
        + "the bonus token and the whole last round included, +- deviation of the seeds. Nodes and "
        f"levels: of a drafted tree, on average. Chains of {LONGEST} tokens at most."
    )
    for temperature in temperatures:
        console.print(projected({name: found[name, temperature] for name in names}, temperature))
    console.print(
        "Speed-up over plain decoding that these tokens per round e and levels D would give where "
        "a forward of the target takes so many times one of the draft: e / (1 + D T_d / T_t), the "
        "paper's section 4.3, level by level. In brackets: node by node, N draft forward passes a "
        "round, as Algorithm 1 runs. Construction, verification and wider forward "
        "passes cost nothing here."
    )
    for temperature in temperatures:
        each = {name: by_seed(found[name, temperature], work.seeds) for name in names}
        order = sorted(names, key=lambda name: -each[name].mean())
        for name in order[1:]:
            told = budgets.verdict(each[order[0]], each[name])
            console.print(f"T {temperature:g}: {order[0]} {told} to {name}.", highlight=False)


def layout(found: dict[str, list[dict]], work: Workload, temperature: float, timed: bool) -> Table:
    """Methods by class: latency per token and, in brackets, tokens per round."""
    what = "ms/token (tokens)" if timed else "tokens per round"
    gain = ("over plain",) if timed else ()
    shown = Table(
        f"T {temperature:g}: {what}", *work.pair.classes, "all", *gain, "nodes", "levels",
        box=box.MARKDOWN,
    )  # fmt: skip
    for name, rows in found.items():
        of = [[row for row in rows if row["class"] == kind] for kind in work.pair.classes]
        gains = ()
        if timed:
            pairs = list(zip(rows, found["plain"], strict=True))
            each = [
                np.median([b["seconds"] / a["seconds"] for a, b in pairs if a["seed"] == seed])
                for seed in range(work.seeds)
            ]
            gains = (budgets.shown(np.array(each)),)
        rounds = sum(row["rounds"] for row in rows)
        shown.add_row(
            name, *map(cell, of), cell(rows, spread=True), *gains,
            f"{sum(row['drafted'] for row in rows) / rounds:.0f}",
            f"{sum(row['levels'] for row in rows) / rounds:.1f}",
        )  # fmt: skip
    return shown


def projected(found: dict[str, list[dict]], temperature: float) -> Table:
    """What tokens per round are worth where a draft's forward is that much cheaper."""
    columns = (f"T_t / T_d = {ratio:,}" for ratio in RATIOS)
    shown = Table(f"T {temperature:g}: speed-up", *columns, box=box.MARKDOWN)
    for name, rows in found.items():
        rounds = sum(row["rounds"] for row in rows)
        e, levels, nodes = (
            sum(row[what] for row in rows) / rounds for what in ("tokens", "levels", "drafted")
        )
        shown.add_row(
            name,
            *(
                f"{e / (1 + levels / ratio):.2f} ({e / (1 + nodes / ratio):.2f})"
                for ratio in RATIOS
            ),
        )
    return shown


@dataclass
class Ready:
    """A method, compiled and warm."""

    decoding: Decoding
    state: PyTree = None
    """What it learnt from other prompts."""


class Runs:
    """Plain decoding and the methods at one temperature."""

    def __init__(
        self, work: Workload, names: Sequence[str], budget: int, temperature: float, timed: bool
    ):
        self.work, self.names, self.temperature = work, names, temperature
        self.budget, self.timed = budget, timed
        self.ready: dict[str, Ready] | None = None

    @property
    def request(self) -> dict[str, Any]:
        return dict(sampling=jspec.Sampling(temperature=self.temperature))

    def _prepare(self) -> dict[str, Ready]:
        work = self.work
        ready = {}
        for name in self.names:
            if name == "plain":
                ready[name] = Ready(work.decoding(jspec.Autoregressive(), None))
                continue
            made = drafter(name, work, self.budget, self.temperature, DRAFT_TEMPERATURE)
            ready[name] = Ready(work.decoding(made, work.pair.draft.params))
            if name in LEARNING:
                prompts = work.prompts(-1)
                for row in range(prompts.count):  # at batch 1, as everything here
                    result = ready[name].decoding.run(
                        prompts.take([row]), np.array([work.new_tokens]),
                        drafter_state=ready[name].state, key=2**31 - 1, **self.request,
                    )  # fmt: skip
                    ready[name].state = result.drafter_state.inner
        return ready

    def turn(self, prompt: Prompts, seed: int) -> list[dict]:
        """A row for each method, one after the other on the same prompt."""
        self.ready = self.ready or self._prepare()
        # Counting compiles what is then timed.
        counts = {
            name: how.decoding.count(prompt, drafter_state=how.state, key=seed, **self.request)
            for name, how in self.ready.items()
        }
        rows = []
        for name, how in self.ready.items():
            counted, seconds = counts[name], 0.0
            if self.timed:
                start = time.perf_counter()
                result = how.decoding.run(
                    prompt, counted.tokens, drafter_state=how.state, key=seed, **self.request
                )
                jax.block_until_ready(result.tokens)
                seconds = (time.perf_counter() - start) / int(counted.tokens[0])
            rows.append(
                dict(
                    method=name,
                    seconds=seconds,
                    tokens=int(counted.tokens[0]),
                    rounds=int(counted.rounds[0]),
                    drafted=int(counted.num_draft_tokens[0]),
                    levels=int(counted.num_levels[0]),
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
    seeds = max(row["seed"] for row in rows) + 1
    more = f" +- {budgets.spread(by_seed(rows, seeds)):.2f}" if spread else ""
    mean = sum(row["tokens"] for row in rows) / sum(row["rounds"] for row in rows)
    latency = 1e3 * float(np.mean([row["seconds"] for row in rows]))
    return f"{latency:.2f} ({mean:.2f}{more})" if latency else f"{mean:.2f}{more}"
