"""The figure of a bench: the speed-up of each contender, by class, with its spread."""

import io
from typing import Any

from jspec._validate import extras
from jspec.cli.bench.settings import PLAIN
from jspec.cli.bench.statistics import BenchReport

_INK = "#0a0b0c"
"""Stands for the colour of the page's text, which the page decides."""


def draw(report: BenchReport) -> str:
    """Returns the figure as SVG whose text and axes have the colour of the text around them.

    A mark is a geometric mean, the thick line reaches from the first to the third quartile of the
    prompts, the thin one from the least to the largest.
    """
    extras.require("a picture", "pictures", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in report.summaries if name != PLAIN]
    bands = {"all": report.summaries}
    if len(report.by_class) > 1:
        bands |= report.by_class
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "jspec", "font.family": "sans-serif",
        "text.color": _INK, "axes.labelcolor": _INK, "axes.edgecolor": _INK,
        "xtick.color": _INK, "ytick.color": _INK, "font.size": 10, "text.parse_math": False,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        height = 1.2 + len(bands) * (0.18 * len(names) + 0.22)
        figure, axes = pyplot.subplots(figsize=(8.6, height), layout="constrained")
        colours = matplotlib.colormaps["tab10"]
        for row, found in enumerate(bands.values()):
            for place, name in enumerate(names):
                if name not in found:
                    continue
                one, colour = found[name], colours(place % 10)
                y = row + (place - (len(names) - 1) / 2) * 0.8 / len(names)
                least, first, _, third, most = one.quartiles
                axes.plot([least, most], [y, y], color=colour, linewidth=1)
                axes.plot([first, third], [y, y], color=colour, linewidth=3.5, alpha=0.6)
                axes.plot(
                    [one.speedup], [y], marker="Ds"[one.is_peer], color=colour, markersize=5,
                    linestyle="", label=name if row == 0 else None,
                )  # fmt: skip
        axes.axvline(1, color=_INK, linewidth=0.8, linestyle=":")
        _axis(axes)
        axes.set_yticks(range(len(bands)), list(bands))
        axes.invert_yaxis()
        axes.set_xlabel("times plain decoding, prompt and answer")
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        if names:
            figure.legend(
                loc="outside upper left", ncols=min(len(names), 3), frameon=False, fontsize=9
            )
        written = io.StringIO()
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
        pyplot.close(figure)
    svg = written.getvalue().replace(_INK, "currentColor")
    return svg[svg.index("<svg") :]


def _axis(axes) -> None:
    """Ratios on a logarithmic axis with numbers that a reader reads at once."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = [0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
