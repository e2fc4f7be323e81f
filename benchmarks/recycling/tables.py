"""The layout of Table 1 of Token Recycling (Luo et al. 2024)."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.recycling.bench import plain_speed, summary

Answers = Sequence[dict[str, Any]]


def layout(answered: Mapping[str, Answers], timed: bool) -> Table:
    """Speed by class, then MAT, tokens per second and speed of all; without times, MAT alone."""
    first = next(iter(answered.values()))
    kinds = list(dict.fromkeys(row["kind"] for row in first))
    overall = ("MAT", "tokens/s", "speed") if timed else ("MAT",)
    shown = Table("method", *kinds, *overall, box=box.MARKDOWN)
    if timed:
        plain = f"{plain_speed(list(first)):.2f}"
        shown.add_row("vanilla", *("1.00" for _ in kinds), "1.00", plain, "1.00")
    for label, found in answered.items():
        cells = []
        for kind in kinds:
            length, _, gain = summary([row for row in found if row["kind"] == kind])
            cells.append(f"{gain:.2f}" if timed else f"{length:.2f}")
        length, speed, gain = summary(list(found))
        pooled = (f"{length:.2f}", f"{speed:.2f}", f"{gain:.2f}") if timed else (f"{length:.2f}",)
        shown.add_row(label, *cells, *pooled)
    return shown
