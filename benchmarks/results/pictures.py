"""Pictures of a page, from its data: their numbers in words, and SVG by matplotlib.

They have no background and colours of middle brightness, for light and dark pages. The same numbers
give the same file, byte for byte, with one version of matplotlib.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

import numpy as np

from benchmarks.dyspec.blocks import BLOCK, ORDERS, mask
from benchmarks.results import values
from benchmarks.results.cells import Cells
from benchmarks.results.observations import matching
from benchmarks.results.statistics import Estimate
from benchmarks.results.values import TOKENS

INK = "#6e7781"
BLUE, ORANGE, GREEN, VIOLET, PINK, OLIVE, TEAL, RED, MOSS, GREY = (
    "#3b82f6", "#e0703a", "#2e9e6b", "#9a63d8", "#d1478c", "#a8862a", "#1f9fb0", "#c0504d",
    "#6b8e23", "#7d8790",
)  # fmt: skip
COLOURS = {
    "TR, published": BLUE, "TR + suffix": TEAL, "spine": TEAL, "auto": GREEN,
    "prompt lookup": GREY,
    "suffix": ORANGE, "lookahead": VIOLET, "REST": OLIVE, "Medusa": PINK, "LogitSpec": RED,
    "dyspec": BLUE, "sequoia": GREEN, "specinfer": ORANGE, "speculative_decoding": GREY,
    "rsd_s": BLUE, "rsd_c": TEAL, "spectr": ORANGE,
    "RRS": BLUE, "K-SEQ": ORANGE, "optimal": VIOLET, "multi-round": OLIVE,
    "Lyanna": BLUE, "w/o token info": ORANGE, "w/o first token": GREEN, "sparse": VIOLET,
}  # fmt: skip
"""The colour of each method, in all pictures: a paper's own is blue."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "jspec", "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"], "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": INK, "grid.alpha": 0.25,
    "axes.titlesize": 9, "legend.frameon": False,
}  # fmt: skip
THE_PAPER = "dotted: the paper"
Point = tuple[float, Any]
"""A place of the x axis, and an estimate or a number."""
Made = tuple[str, Callable[[Any], None]]
"""The numbers of a panel in words, and what draws it on axes."""


@dataclass(frozen=True)
class Panel:
    """One of a picture's panels: its words, its numbers in words, and what draws them."""

    title: str
    x_label: str
    y_label: str
    told: str
    draw: Callable[[Any], None]


@dataclass(frozen=True)
class Picture:
    """A picture: its title, its panels, and whether they have one y axis."""

    title: str
    panels: Sequence[Panel]
    shared: bool = True

    @property
    def told(self) -> str:
        """All numbers in words, which the file holds too."""
        return " | ".join(": ".join(filter(None, (one.title, one.told))) for one in self.panels)

    def svg(self) -> str:
        """Draws the file."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        with matplotlib.rc_context(STYLE):
            figure, (row,) = pyplot.subplots(
                1, len(self.panels), figsize=(7.6, 3.8 if len(self.panels) < 3 else 3.2),
                layout="constrained", sharey=self.shared, squeeze=False,
            )  # fmt: skip
            for axes, panel in zip(row, self.panels, strict=True):
                axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
                axes.grid(axis="y", zorder=0)
                panel.draw(axes)
                if self.shared:
                    axes.label_outer()
            figure.suptitle(self.title, x=0.01, ha="left", fontsize=11)
            handles, labels = row[0].get_legend_handles_labels()
            if labels:
                figure.legend(handles, labels, loc="outside lower left", ncols=5)
            file = StringIO()
            about = {"Date": None, "Title": self.title, "Description": self.told}
            figure.savefig(file, format="svg", transparent=True, metadata=about)
            pyplot.close(figure)
        # To a hundredth of a point, without comments and indentation: half as large.
        text = re.sub(r"(\.\d\d)\d{2,}|<!--.*?-->", r"\1", file.getvalue())
        return "".join(f"{line.strip()}\n" for line in text.split("\n") if line.strip())


def pictures(paper: dict) -> dict[str, Picture]:
    """Makes the pictures of a paper by the name of their file.

    One has a panel of each value of the key `panel`, or of each of `panels`, which change its data.
    """
    found = {}
    for one in paper.get("pictures", ()):
        spec = paper.get("kinds", {}).get(one.get("kind"), {}) | one
        for keys, rows in values.groups(spec, spec.get("each", [])):
            shown = keys | {"texts": values.cells(spec, rows).count("text")}
            shown["name"] = paper["names"].get(keys.get("method", ""))
            panels = [
                Panel(
                    each.get("panel_title", "").format(**more),
                    each.get("x_label", "").format(**more),
                    each.get("y_label", "").format(**more),
                    *KINDS[each["draw"]](each, paper, of),
                )
                for each, more, of in _panels(spec, shown, rows)
            ]
            file = f"{paper['name']}_{spec['file'].format(**shown)}".replace(".", "")
            title = spec["title"].format(**shown)
            found[f"{file}.svg"] = Picture(title, panels, "panels" not in spec)
    return found


def _panels(spec: dict, shown: dict, rows: list[dict]) -> Iterator[tuple[dict, dict, list[dict]]]:
    """Yields the data, words and rows of each panel."""
    if key := spec.get("panel"):
        for value in sorted({row[key] for row in rows}):
            yield spec, shown | {key: value}, matching(rows, {key: value})
    for change in spec.get("panels", [{}] if "panel" not in spec else []):
        yield spec | change, shown, rows


# ---- kinds ---------------------------------------------------------------------------------------


def _bars(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Draws bars of each method, group by group, with error bars of one standard error."""
    groups = [one for one in spec["bars"] if matching(rows, one.get("where", {}))]
    cells = [values.cells(spec, matching(rows, one.get("where", {}))) for one in groups]
    marks, least = paper.get("published", {}).get(spec.get("marks", ""), {}), spec.get("least", 0)
    series = {
        method: [
            cell.of(method, one.get("measure", spec.get("measure", TOKENS)), one.get("kind"))
            for one, cell in zip(groups, cells, strict=True)
        ]
        for method in cells[0].methods
    }
    width = 0.82 / len(series)

    def draw(axes) -> None:
        axes.set_xticks(range(len(groups)), [one["label"] for one in groups])
        axes.tick_params(axis="x", length=0)
        for number, (method, found) in enumerate(series.items()):
            at = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
            tops = np.array([one.value if one else np.nan for one in found])
            errors = [one.error if one and np.isfinite(one.error) else 0 for one in found]
            look = {"color": COLOURS[method], "label": paper["names"].get(method, method)}
            axes.bar(at, tops - least, 0.9 * width, least, zorder=2, **look)
            axes.errorbar(at, tops, errors, fmt="none", ecolor=INK, capsize=2, zorder=3)
            for x, theirs in zip(at, _marks(marks.get(method), groups), strict=True):
                ends = x - width / 2, x + width / 2
                axes.plot(ends, [theirs] * 2, ":", color=INK, lw=1.8, zorder=4)
        if least:
            axes.axhline(least, color=INK, lw=1)
            axes.text(len(groups) - 0.52, least, "plain decoding", fontsize=8, va="bottom")

    told = "; ".join(f"{paper['names'].get(m, m)}: {_told(found)}" for m, found in series.items())
    return f"{', '.join(one['label'] for one in groups)}. {told}", draw


def _marks(found: Any, groups: list[dict]) -> list[float]:
    """Returns the paper's values of a method: of each group, or of the marked one."""
    if isinstance(found, list):
        return found
    return [float(found) if found and one.get("marked") else np.nan for one in groups]


def _stacked(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Draws two bars of pieces that add up to 100; the largest piece is cut."""
    cells, least = values.cells(spec, rows), spec["least"]
    here = {name: cells.of(name, spec["measure"]) for name in spec["methods"]}
    ours = {name: one.value for name, one in here.items() if one is not None}
    theirs = {name: float(paper["published"]["pieces"][name]) for name in ours}

    def draw(axes) -> None:
        axes.grid(visible=False)
        axes.set_yticks([0, 1], ["the paper,\n7B on an A100", "here,\njspec-7m, CPU"])
        ends = np.zeros(2)
        for name, colour in zip(ours, (BLUE, GREEN, ORANGE, VIOLET, OLIVE), strict=True):
            sizes = np.array([theirs[name], ours[name]])
            axes.barh([0, 1], sizes, 0.55, ends, color=colour, label=name)
            ends += sizes
        axes.set(xlim=(least, 100), xlabel="percent of a round")

    return f"here {_told(ours.values())}; the paper {_told(theirs.values())}", draw


def _lines(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Draws lines with a band of one standard error, over a key or over methods' numbers."""
    measure, x = spec.get("measure", TOKENS), spec["x"]
    series: dict[str, list[Point]] = {}
    if isinstance(x, dict):
        cells = Cells(rows, list(x), spec.get("common"))
        points = [(float(at), cells.of(method, measure)) for method, at in x.items()]
        series[spec["methods"][0]] = [point for point in points if point[1] is not None]
        return _drawn(series, {}, {spec["methods"][0]: ""}, spec.get("marked"))
    for at in sorted({row[x] for row in rows}):
        cells = values.cells(spec, matching(rows, {x: at}))
        for method in cells.methods:
            series.setdefault(method, []).append((float(at), cells.of(method, measure)))
    theirs = paper.get("published", {}).get(spec.get("marks", ""), {})
    told = rows[0].get("temperature") == spec.get("marked_at")
    return _drawn(series, theirs if told else {}, paper["names"])


def _rules(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Draws Fig. 1 of RSD: the probability that a rule keeps a child, draft Ber(0.3)."""
    found = [row for row in rows if row.get("toy", [0])[0] == 0.3 and not row["in_table"]]
    return _drawn(
        {name: [(row["toy"][1], row["kept"][name]) for row in found] for name in spec["methods"]},
        {}, {},
    )  # fmt: skip


def _drawn(
    series: dict[str, list[Point]],
    theirs: dict[str, list[float]],
    names: dict[str, str],
    marked: float | None = None,
) -> Made:
    """Draws lines whose names are at their ends, and the paper's, dotted."""

    def draw(axes) -> None:
        places = sorted({x for points in series.values() for x, _ in points})
        ticks = places if len(places) <= 12 else np.linspace(places[0], places[-1], 6)
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        ends = {}
        for method, points in series.items():
            xs, ys = zip(*sorted(points, key=lambda point: point[0]), strict=True)
            tops = np.array([one.value if isinstance(one, Estimate) else one for one in ys])
            axes.plot(xs, tops, "o-", ms=3, lw=1.6, color=COLOURS[method])
            errors = [one.error if isinstance(one, Estimate) else 0 for one in ys]
            look = {"alpha": 0.18, "lw": 0, "color": COLOURS[method]}
            axes.fill_between(xs, tops - errors, tops + errors, **look)
            ends[names.get(method, method)] = tops[-1], COLOURS[method]
            if method in theirs:
                axes.plot(xs, theirs[method], ":", lw=1.6, color=COLOURS[method])
        if theirs:
            axes.text(0.02, 0.98, THE_PAPER, transform=axes.transAxes, va="top", fontsize=8)
        if marked is not None:
            axes.axvline(marked, color=INK, lw=1, ls="--", zorder=1)
        _name(axes, places, ends)

    told = (
        f"{names.get(method, method) or 'here'}: "
        + ", ".join(f"{x:g} {_told([one])}" for x, one in points)
        for method, points in series.items()
    )
    return "; ".join(told), draw


def _name(axes, places: list[float], ends: dict[str, tuple[float, str]]) -> None:
    """Writes names to the right of the ends of their lines, none over another."""
    named = sorted((y, name, colour) for name, (y, colour) in ends.items() if name)
    if not named:
        return
    low, high = axes.get_ylim()
    gap, at = 0.065 * (high - low), -np.inf
    heights = []
    for y, *_ in named:
        at = max(y, at + gap)
        heights.append(at)
    over = np.mean(heights) - np.mean([y for y, *_ in named])
    reach = places[-1] - places[0]
    axes.set_ylim(min(low, heights[0] - over - gap), high)
    for height, (_, name, colour) in zip(heights, named, strict=True):
        where = places[-1] + 0.03 * reach, height - over
        axes.text(*where, name, color=colour, va="center", fontsize=8)
    axes.set_xlim(places[0] - 0.05 * reach, places[-1] + 0.012 * reach * (8 + max(map(len, ends))))


def _told(found) -> str:
    return ", ".join("none" if one is None else f"{one:.3f}" for one in found)


def _density(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Draws a panel of DySpec's Fig. 2, whose columns add up to 1; the line is the mean."""
    row = rows[0]
    counts = np.array(row["density"], float)
    columns = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    centres = (np.array(row["edges"][:-1]) + row["edges"][1:]) / 2
    line = [(x, y) for x, y in zip(centres, row["means"], strict=True) if y is not None]

    def draw(axes) -> None:
        axes.grid(visible=False)
        _image(axes, (columns / columns.max()).T ** 0.5, (0, 1, 0, 1), "lower")
        axes.plot([0, 1], [0, 1], ":", color=INK, lw=1.4, label="equal to the draft's probability")
        axes.plot(*zip(*line, strict=True), "o-", color=ORANGE, ms=3, label="mean")
        axes.plot([], [], "s", color=BLUE, label="share of a column, its root")

    return f"{counts.sum():g} counts; means {', '.join(f'{y:.3f}' for _, y in line)}", draw


def _masks(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Draws a panel of DySpec's Figs. 6 and 7: the blocks of one tree's mask that hold an entry."""
    parents = np.array(next(row["parents"] for row in rows if "parents" in row))
    order = ORDERS[spec["order"]](parents)
    seen = mask(parents)[np.ix_(order, order)]
    size = -(-len(seen) // BLOCK)
    padded = np.zeros((size * BLOCK, size * BLOCK))
    padded[: len(seen), : len(seen)] = seen
    shares = padded.reshape(size, BLOCK, size, BLOCK).mean((1, 3))

    def draw(axes) -> None:
        axes.grid(visible=False)
        depth = np.where(shares > 0, 0.25 + 0.75 * shares**0.5, 0)
        _image(axes, depth, (0, size, size, 0), "upper")
        axes.set_title(f"{spec['order']}: {(shares > 0).sum()} of {shares.size} blocks")
        axes.set_aspect("equal")

    return f"{spec['order']}: {(shares > 0).sum()} blocks", draw


def _image(axes, depth: np.ndarray, extent: tuple[float, ...], origin: str) -> None:
    """Draws a map of one colour, stronger where a number is larger."""
    from matplotlib.colors import to_rgb

    colour = np.broadcast_to(to_rgb(BLUE), (*depth.shape, 3))
    image = np.concatenate([colour, np.clip(depth, 0, 1)[..., None]], axis=-1)
    axes.imshow(image, extent=extent, origin=origin, interpolation="none", aspect="auto")


KINDS: dict[str, Callable[[dict, dict, list[dict]], Made]] = {
    "bars": _bars,
    "stacked": _stacked,
    "lines": _lines,
    "rules": _rules,
    "density": _density,
    "masks": _masks,
}
