"""The page of a bench: one HTML file that needs no other."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jspec.cli.bench import tables, verdict
from jspec.cli.bench.settings import PLAIN
from jspec.cli.bench.statistics import BenchReport, Summary

_TEMPLATE = Path(__file__).with_name("page.html.jinja")


def render(
    report: BenchReport, absent: Mapping[str, str], facts: Mapping[str, str], figure: str
) -> str:
    """Returns the page as text."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    others = [name for name in report.summaries if name != PLAIN]
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        sentence=verdict.sentence(report),
        notes=verdict.notes(report),
        figure=figure,
        headings=tables.HEADINGS,
        rows=[tables.cells(one) for one in report.summaries.values()],
        absent=absent,
        others=others,
        classes=_classes(report, others),
        facts=facts,
    )


def _classes(
    report: BenchReport, others: Sequence[str]
) -> list[tuple[str, int, list[tuple[str, str]]]]:
    """Returns each class, its number of prompts, and a cell with its shade for each contender."""
    return [
        (
            kind,
            max(one.num_prompts for one in found.values()),
            [(tables.class_cell(found.get(name)), _shade(found.get(name))) for name in others],
        )
        for kind, found in report.by_class.items()
    ]


def _shade(one: Summary | None) -> str:
    """Returns the colour class of a speed-up."""
    if one is None:
        return "none"
    return "gain" if one.speedup >= 1.02 else "loss" if one.speedup < 0.98 else "even"
