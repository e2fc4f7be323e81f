"""Tables of a bench on the terminal; the page shows their cells as well."""

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
    whole = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, (first, second) in enumerate(HEADINGS):
        whole.add_column(f"{first}\n{second}", justify="right" if 0 < place < 5 else "left")
    for one in report.summaries.values():
        whole.add_row(*map(escape, cells(one)))
    for name in absent:
        whole.add_row(escape(name), *["-"] * (len(HEADINGS) - 2), "left out, see below")
    screen.print(whole)
    if len(report.by_class) > 1:
        screen.print(by_class(report))
    for name, reason in absent.items():
        screen.print(f"{name} is left out: {reason}", markup=False, soft_wrap=True)


def by_class(report: BenchReport) -> Table:
    """Returns the speed-up of each contender in each class, with its tokens per round."""
    others = [name for name in report.summaries if name != PLAIN]
    table = Table(
        title="Speed-up and tokens per round, by class", title_style="bold", title_justify="left",
        box=box.SIMPLE_HEAD, pad_edge=False,
    )  # fmt: skip
    table.add_column("class")
    table.add_column("prompts", justify="right")
    for name in others:
        table.add_column(escape(name), justify="right", overflow="fold")
    for kind, found in report.by_class.items():
        table.add_row(
            escape(kind),
            str(max(one.num_prompts for one in found.values())),
            *(class_cell(found.get(name)) for name in others),
        )
    return table


def cells(one: Summary) -> list[str]:
    """Returns the row of a contender over all prompts."""
    figures = [f"{one.tokens_per_round:.2f}", f"{one.tokens_per_second:.1f}"]
    if one.name == PLAIN:
        return [one.name, *figures, *["1.00x"] * 2, "", "", ""]
    return [
        one.name,
        *figures,
        f"{times(one.speedup)} ({bounds(one)})",
        times(one.decode_speedup),
        " · ".join(f"{value:.2f}" for value in one.quartiles),
        f"{one.repeats[0]:.2f} .. {one.repeats[1]:.2f}",
        agreement(one),
    ]


def class_cell(one: Summary | None) -> str:
    """Returns the cell of a contender and a class."""
    return "-" if one is None else f"{times(one.speedup)}, {one.tokens_per_round:.2f}"


def times(value: float) -> str:
    """Returns a speed-up in words of two decimals."""
    return "-" if math.isnan(value) else f"{value:.2f}x"


def bounds(one: Summary) -> str:
    """Returns where the mean lies within two standard errors."""
    if one.num_prompts < 2:
        return "one prompt"
    return f"{one.bounds[0]:.2f} .. {one.bounds[1]:.2f}"


def agreement(one: Summary) -> str:
    """Returns whether the tokens are plain decoding's."""
    if one.differing:
        return f"others in {len(one.differing)} of {one.num_prompts}"
    return "the same" if one.compared else "drawn by other noise"
