"""Tokens per round against the size of the tree, from the rows of `benchmarks.dyspec.budgets`."""

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from benchmarks.dyspec import budgets, figures
from benchmarks.dyspec.contenders import Workload
from benchmarks.harness import console, headline
from benchmarks.ledger import Ledger

SIZES = (4, 8, 16, 32, 64, 128)
GROWING = ("dyspec", "calibrated_dyspec", "coupled_tree", "sequoia")


def report(
    ledger: Ledger, work: Workload, temperatures: Sequence[float], picture: Path | None
) -> None:
    """A table and a curve of each method; no figure of the paper."""
    headline(f"{work.pair.name}: tokens per round by size of the tree")
    means = budgets.collect(ledger, work, list(GROWING), list(SIZES), list(temperatures))
    for temperature in temperatures:
        shown = Table(f"T {temperature:g}", *map(str, SIZES), box=box.MARKDOWN)
        for name in GROWING:
            shown.add_row(name, *(budgets.shown(means[name, s, temperature]) for s in SIZES))
        console.print(shown)
    if picture is not None:
        figures.sweep(picture, means, GROWING, SIZES, temperatures, work.pair.name)
        console.print(f"figure: {picture}")
