"""Tables of a bench on the terminal."""

import math
import sys
from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jspec.cli.bench.settings import PLAIN
from jspec.cli.bench.statistics import BenchReport, Summary

HEADINGS = (
    ("method", ""),
    ("tokens", "per round"),
    ("tokens", "per second"),
    ("speed-up", "prompt and answer"),
    ("speed-up", "answer alone"),
    ("least · quartiles · most", "prompt and answer"),
    ("repeats", "over median"),
    ("tokens", "as plain decoding's"),
)
"""The columns of the first table, in two lines each."""

_WIDTH = 140
"""The width of the tables where no terminal tells its own."""


def console() -> Console:
    """Returns the standard output."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)


def show(screen: Console, report: BenchReport, absent: Mapping[str, str]) -> None:
    """Prints the figures over all prompts, then the speed-ups by class."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, (first, second) in enumerate(HEADINGS):
        table.add_column(f"{first}\n{second}", justify="right" if 0 < place < 5 else "left")
    for summary in report.summaries.values():
        table.add_row(*map(escape, cells(summary)))
    for name in absent:
        table.add_row(escape(name), *["-"] * (len(HEADINGS) - 2), "left out, see below")
    screen.print(table)
    if len(report.by_class) > 1:
        screen.print(by_class(report))
    for name, reason in absent.items():
        screen.print(f"{name} is left out: {reason}", markup=False, soft_wrap=True)


def by_class(report: BenchReport) -> Table:
    """Returns the speed-up of each contender in each class, with its tokens per round."""
    names = [name for name in report.summaries if name != PLAIN]
    table = Table(
        title="Speed-up and tokens per round, by class", title_style="bold", title_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    table.add_column("class")
    table.add_column("prompts", justify="right")
    for name in names:
        table.add_column(escape(name), justify="right", overflow="fold")
    for kind, summaries in report.by_class.items():
        table.add_row(
            escape(kind),
            str(max(summary.num_prompts for summary in summaries.values())),
            *(class_cell(summaries.get(name)) for name in names),
        )
    return table


def cells(summary: Summary) -> list[str]:
    """Returns the row of a contender over all prompts."""
    figures = [f"{summary.tokens_per_round:.2f}", f"{summary.tokens_per_second:.1f}"]
    if summary.name == PLAIN:
        return [summary.name, *figures, *["1.00x"] * 2, "", "", ""]
    return [
        summary.name,
        *figures,
        f"{times(summary.speedup)} ({bounds(summary)})",
        times(summary.decode_speedup),
        " · ".join(f"{value:.2f}" for value in summary.quartiles),
        f"{summary.repeats[0]:.2f} .. {summary.repeats[1]:.2f}",
        agreement(summary),
    ]


def class_cell(summary: Summary | None) -> str:
    """Returns the cell of a contender and a class."""
    return "-" if summary is None else f"{times(summary.speedup)}, {summary.tokens_per_round:.2f}"


def times(value: float) -> str:
    """Returns a speed-up in words of two decimals."""
    return "-" if math.isnan(value) else f"{value:.2f}x"


def bounds(summary: Summary) -> str:
    """Returns where the mean lies within two standard errors."""
    if summary.num_prompts < 2:
        return "one prompt"
    return f"{summary.bounds[0]:.2f} .. {summary.bounds[1]:.2f}"


def agreement(summary: Summary) -> str:
    """Returns whether the tokens are plain decoding's."""
    if summary.differing:
        return f"others in {len(summary.differing)} of {summary.num_prompts}"
    return "the same" if summary.compared else "drawn by other noise"
