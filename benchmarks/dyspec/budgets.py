"""Do trees earn their place? Every method with equally many drafted nodes, by temperature.

python -m benchmarks.dyspec.budgets --out budgets.jsonl
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.dyspec.contenders import LEARNING, LONGEST, METHODS, Workload, drafter
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    budgets: Annotated[str, typer.Option(help="drafted nodes, comma-separated")] = "4,8,16,32,64",
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6,1",
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    count: Annotated[int, typer.Option(min=1, help="Prompts per class and seed.")] = 1,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 64,
    out: Annotated[
        Path | None, typer.Option(help="JSON lines: what is there is not measured again")
    ] = None,
) -> None:
    """Prints tokens per round. Each seed is another key and other prompts for all methods."""
    ledger = Ledger(out)
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    work = Workload(pair, count, seeds, prompt_tokens, new_tokens)
    names, sizes = methods.split(","), [int(budget) for budget in budgets.split(",")]
    target_temperatures = [float(temperature) for temperature in temperatures.split(",")]
    headline(
        f"{pair.name}: tokens per round by budget, {len(work.kinds)} prompts a seed, {seeds} seeds"
    )
    with console.status("") as status:
        for name in names:
            for size in sizes:
                status.update(f"{name}, {size} nodes")
                for temperature in target_temperatures:
                    measure(ledger, work, name, size, temperature)
    means = collect(ledger, work, names, sizes, target_temperatures)
    for temperature in target_temperatures:
        table = Table(f"T {temperature:g}", *(f"{size} nodes" for size in sizes))
        for name in names:
            table.add_row(name, *(shown(means[name, size, temperature]) for size in sizes))
        console.print(table)
    for line in words(means, names, sizes, target_temperatures):
        console.print(line, highlight=False)
    console.print(
        f"Tokens per target forward pass, bonus included, mean +- deviation of {seeds} seeds. "
        f"Draft at temperature 0.6, at the target's where that is higher. Chains of {LONGEST} "
        "tokens at most. Plain names: recursive rejection, as published."
    )


def measure(
    ledger: Ledger, work: Workload, name: str, budget: int, temperature: float
) -> list[dict]:
    """Returns a method's rows for all seeds, from the ledger where it has them."""
    draft_temperature = max(temperature, 0.6)
    about: dict[str, Any] = dict(
        bench="budgets", **work.pair.about, method=name, budget=budget, temperature=temperature,
        prompt_tokens=work.prompt_tokens, new_tokens=work.new_tokens, count=work.count,
        seeds=work.seeds,
    )  # fmt: skip
    missing = [seed for seed in range(work.seeds) if not ledger.find(**about, seed=seed)]
    if missing:
        made = drafter(name, work, budget, temperature, draft_temperature)
        one = work.decoding(made, work.pair.draft.params)
        request: dict[str, Any] = dict(sampling=jspec.Sampling(temperature=temperature))
        learnt = None
        if name in LEARNING:
            prompts = work.prompts(-1)
            limits = np.full(prompts.count, work.new_tokens)
            learnt = one.run(prompts, limits, key=2**31 - 1, **request).drafter_state.inner
        for seed in missing:
            counted = one.count(work.prompts(seed), drafter_state=learnt, key=seed, **request)
            rounds, emitted = counted.rounds, counted.tokens
            by_class = {
                kind: [int(emitted[rows].sum()), int(rounds[rows].sum())]
                for kind in work.pair.classes
                if (rows := np.array(work.kinds) == kind).any()
            }
            ledger.add(
                **about, seed=seed, draft_temperature=draft_temperature,
                tokens=int(emitted.sum()), rounds=int(rounds.sum()),
                drafted=int(counted.num_draft_tokens.sum()), classes=by_class,
            )  # fmt: skip
    return [ledger.find(**about, seed=seed)[0] for seed in range(work.seeds)]


Means = dict[tuple[str, int, float], np.ndarray]
"""Tokens per round of each seed, by method, budget and temperature."""


def collect(
    ledger: Ledger, work: Workload, names: list[str], sizes: list[int], temperatures: list[float]
) -> Means:
    """Returns tokens per round of each seed, measured or from the ledger, for these settings."""
    return {
        (name, size, temperature): np.array(
            [
                row["tokens"] / row["rounds"]
                for row in measure(ledger, work, name, size, temperature)
            ]
        )
        for name in names
        for size in sizes
        for temperature in temperatures
    }


def shown(values: np.ndarray) -> str:
    """Returns mean and deviation as text."""
    return f"{values.mean():.2f} +- {spread(values):.2f}"


def spread(values: np.ndarray) -> float:
    """Returns the standard deviation of a sample; 0 for one value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def verdict(values: np.ndarray, others: np.ndarray) -> str:
    """Returns the lead of one method over another, from differences taken seed by seed."""
    gap = values - others
    sure = len(gap) > 1 and abs(gap.mean()) > 2 * spread(gap) / np.sqrt(len(gap))
    word = "leads by" if gap.mean() > 0 else "loses by"
    word = word if sure else "is level, at"
    return f"{word} {gap.mean():+.2f} +- {spread(gap):.2f}"


def words(means: Means, names: list[str], sizes: list[int], temperatures: list[float]) -> list[str]:
    """Returns sentences that say what the table shows."""
    lines = ["Differences are taken seed by seed; level: within two standard errors."]
    for temperature in temperatures:
        for size in sizes:
            order = sorted(names, key=lambda name: -means[name, size, temperature].mean())
            if len(order) > 1:
                first, second = (means[name, size, temperature] for name in order[:2])
                lines.append(
                    f"T {temperature:g}, {size} nodes: {order[0]} {verdict(first, second)} "
                    f"to {order[1]}."
                )
    if (chain := "speculative_decoding") in names:
        for name in names:
            against = "; ".join(
                f"{size} nodes T {temperature:g} "
                f"{verdict(means[name, size, temperature], means[chain, size, temperature])}"
                for temperature in dict.fromkeys((temperatures[0], temperatures[-1]))
                for size in dict.fromkeys((sizes[0], sizes[-1]))
            )
            if name != chain:
                lines.append(f"{name} against the chain: {against}.")
    if {0.0, 1.0} <= set(temperatures):
        for name in names:
            kept = {size: means[name, size, 1.0] / means[name, size, 0.0] for size in sizes}
            lines.append(
                f"{name} keeps at T 1 of its tokens per round at T 0: "
                + ", ".join(
                    f"{values.mean():.0%} +- {spread(values):.0%} ({size} nodes)"
                    for size, values in kept.items()
                )
                + "."
            )
    return lines


if __name__ == "__main__":
    command(main)
