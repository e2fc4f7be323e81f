"""Pictures of a page, from its data: what they show in numbers and, drawn by matplotlib, as SVG.

They have no background and colours of middle brightness, for light and dark pages. The same numbers
give the same file, byte for byte, with one version of matplotlib.
"""

import re
from collections.abc import Callable
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
COLOURS = (
    "#3b82f6", "#e0703a", "#2e9e6b", "#9a63d8", "#d1478c", "#a8862a", "#1f9fb0", "#c0504d",
    "#6b8e23", "#7d8790",
)  # fmt: skip
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "jspec", "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"], "text.color": INK,
    "axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.spines.top": False, "axes.spines.right": False, "grid.color": INK, "grid.alpha": 0.25,
    "legend.frameon": False, "axes.prop_cycle": f"cycler('color', {list(COLOURS)})",
}  # fmt: skip
PAPERS = "the paper"
"""The name of its marks in a legend."""
Point = tuple[float, Any]
"""A place of the x axis, and an estimate or a number."""


@dataclass(frozen=True)
class Picture:
    """A picture: its words, and what draws it.

    Args:
        title: above it.
        x_label: of its axis.
        y_label: of its axis.
        told: its numbers in words, which the file holds too.
        draw: draws them on the axes of a figure.
    """

    title: str
    x_label: str
    y_label: str
    told: str
    draw: Callable[[Any], None]

    def svg(self) -> str:
        """The file."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        with matplotlib.rc_context(STYLE):
            figure, axes = pyplot.subplots(figsize=(7.6, 4), layout="constrained")
            axes.set(xlabel=self.x_label, ylabel=self.y_label)
            axes.grid(axis="y", zorder=0)
            self.draw(axes)
            figure.suptitle(self.title, x=0.01, ha="left", fontsize=11)
            named = zip(*axes.get_legend_handles_labels(), strict=True)
            legend = {label: handle for handle, label in sorted(named, key=_is_of_the_paper)}
            columns = 4 if max(map(len, legend), default=0) < 20 else 3
            figure.legend([*legend.values()], [*legend], loc="outside lower left", ncols=columns)
            file = StringIO()
            about = {"Date": None, "Title": self.title, "Description": self.told}
            figure.savefig(file, format="svg", transparent=True, metadata=about)
            pyplot.close(figure)
        # To a hundredth of a point, without comments and indentation: half as large.
        text = re.sub(r"(\.\d\d)\d{2,}|<!--.*?-->", r"\1", file.getvalue())
        return "".join(f"{line.strip()}\n" for line in text.split("\n") if line.strip())


def _is_of_the_paper(named: tuple[Any, str]) -> bool:
    return named[1] == PAPERS


def pictures(paper: dict) -> dict[str, Picture]:
    """The pictures of a paper by the name of their file."""
    found = {}
    for one in paper.get("pictures", ()):
        spec = paper.get("kinds", {}).get(one.get("kind"), {}) | one
        for keys, rows in values.groups(spec, spec.get("each", [])):
            shown = keys | {"name": paper["names"].get(keys.get("method", ""))}
            made = KINDS[spec["draw"]](spec, paper, rows)
            for name in ("title", "subtitle"):
                shown["texts"] = values.cells(spec, rows).count("text")
                shown[name] = spec.get(name, "").format(**shown)
            title = "\n".join(filter(None, (shown["title"], shown["subtitle"])))
            below, beside = (spec.get(f"{axis}_label", "").format(**shown) for axis in "xy")
            file = f"{paper['name']}_{spec['file'].format(**shown)}".replace(".", "")
            found[f"{file}.svg"] = Picture(title, below, beside, *made)
    return found


# ---- kinds ---------------------------------------------------------------------------------------

Made = tuple[str, Callable[[Any], None]]


def _bars(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Bars of each method, group by group, with error bars of one standard error."""
    groups = spec["bars"]
    cells = [values.cells(spec, matching(rows, one.get("where", {}))) for one in groups]
    there = [cell for cell in cells if cell.methods]
    groups = [one for one, cell in zip(groups, cells, strict=True) if cell.methods]
    methods: list[Any] = [None] if "method" in groups[0] else there[0].methods
    marks = paper.get("published", {}).get(spec.get("marks", ""), {})
    least, width = spec.get("least", 0.0), 0.82 / len(methods)
    series = {}
    for name in methods:
        found = [
            cell.of(
                one.get("method", name),
                one.get("measure", spec.get("measure", TOKENS)),
                one.get("kind"),
            )
            for one, cell in zip(groups, there, strict=True)
        ]
        series[paper["names"].get(name, name or "here")] = found, _marks(marks, name, groups)

    def draw(axes) -> None:
        axes.set_xticks(range(len(groups)), [one["label"] for one in groups])
        axes.tick_params(axis="x", length=0)
        for number, (name, (found, theirs)) in enumerate(series.items()):
            at = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
            tops = [one.value if one else np.nan for one in found]
            errors = [one.error if one and np.isfinite(one.error) else 0 for one in found]
            axes.bar(at, np.array(tops) - least, 0.9 * width, least, label=name, zorder=2)
            axes.errorbar(at, tops, errors, fmt="none", ecolor=INK, capsize=2, zorder=3)
            last = PAPERS if number == len(series) - 1 and marks else None
            axes.plot(at, theirs, "o", color=INK, mfc="#ffffff", ms=5, label=last, zorder=4)

    told = "; ".join(f"{name}: {_told(found)}" for name, (found, _) in series.items())
    return f"{', '.join(one['label'] for one in groups)}. {told}", draw


def _marks(marks: dict, method: str | None, groups: list[dict]) -> list[float]:
    """The paper's values of a method: of each group, or one for the group that is marked."""
    found = marks.get(method or "here", np.nan)
    if isinstance(found, list):
        return found
    return [float(found) if one.get("marked") else np.nan for one in groups]


def _lines(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Lines with a band of one standard error, over a key's values or over methods' numbers."""
    measure, x = spec.get("measure", TOKENS), spec["x"]
    series: dict[str, list[Point]] = {}
    if isinstance(x, dict):
        cells = Cells(rows, list(x), spec.get("common"))
        points = [(float(at), cells.of(method, measure)) for method, at in x.items()]
        series[rows[0]["pair"]] = [point for point in points if point[1] is not None]
    else:
        for at in sorted({row[x] for row in rows}):
            cells = values.cells(spec, matching(rows, {x: at}))
            for method in cells.methods:
                one = cells.of(method, measure)
                series.setdefault(paper["names"][method], []).append((float(at), one))
    return _drawn(series)


def _rules(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """Fig. 1 of RSD: the probability that a rule keeps a child, draft Ber(0.3)."""
    found = [row for row in rows if row.get("toy", [0])[0] == 0.3 and not row["in_table"]]
    return _drawn(
        {name: [(row["toy"][1], row["kept"][name]) for row in found] for name in spec["methods"]}
    )


def _drawn(series: dict[str, list[Point]]) -> Made:
    def draw(axes) -> None:
        marked = sorted({x for points in series.values() for x, _ in points})
        if len(marked) <= 12:
            axes.set_xticks(marked, [f"{x:g}" for x in marked])
        for name, points in series.items():
            xs, ys = zip(*sorted(points, key=lambda point: point[0]), strict=True)
            tops = np.array([one.value if isinstance(one, Estimate) else one for one in ys])
            axes.plot(xs, tops, "o-", ms=3, lw=1.6, label=name)
            errors = [one.error if isinstance(one, Estimate) else 0 for one in ys]
            axes.fill_between(xs, tops - errors, tops + errors, alpha=0.18, lw=0)

    told = (
        f"{name}: " + ", ".join(f"{x:g} {_told([one])}" for x, one in points)
        for name, points in series.items()
    )
    return "; ".join(told), draw


def _told(found) -> str:
    return ", ".join("none" if one is None else f"{one:.3f}" for one in found)


def _scatter(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """DySpec's Fig. 5: rounds by the nodes of their tree and the tokens they took."""
    points = [point for row in rows for point in row["each_round"]]

    def draw(axes) -> None:
        axes.plot(*zip(*points, strict=True), "o", ms=4, alpha=0.45)
        axes.set_xlim(0, 1.04 * rows[0]["budget"])

    return ", ".join(f"{nodes} nodes {tokens} tokens" for nodes, tokens in points), draw


def _density(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """A panel of DySpec's Fig. 2, each column of which adds up to 1; the line is the mean."""
    row = rows[0]
    counts = np.array(row["density"], float)
    columns = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    centres = (np.array(row["edges"][:-1]) + row["edges"][1:]) / 2
    line = [(x, y) for x, y in zip(centres, row["means"], strict=True) if y is not None]

    def draw(axes) -> None:
        _image(axes, (columns / columns.max()).T ** 0.5, (0, 1, 0, 1), "lower")
        axes.plot(*zip(*line, strict=True), "o-", color=COLOURS[1], ms=3, label="mean")
        axes.grid(visible=False)

    return f"{counts.sum():g} counts; means {', '.join(f'{y:.3f}' for _, y in line)}", draw


def _masks(spec: dict, paper: dict, rows: list[dict]) -> Made:
    """DySpec's Figs. 6 and 7: the blocks of one tree's mask that hold an entry, in two orders."""
    parents = np.array(next(row["parents"] for row in rows if "parents" in row))
    panels = {}
    for name in ("as grown", "depth first"):
        order = ORDERS[name](parents)
        seen = mask(parents)[np.ix_(order, order)]
        size = -(-len(seen) // BLOCK)
        padded = np.zeros((size * BLOCK, size * BLOCK))
        padded[: len(seen), : len(seen)] = seen
        panels[name] = padded.reshape(size, BLOCK, size, BLOCK).mean((1, 3))

    def draw(axes) -> None:
        for place, (name, shares) in enumerate(panels.items()):
            depth = np.where(shares > 0, 0.25 + 0.75 * shares**0.5, 0)
            size = len(shares)
            _image(axes, depth, (1.1 * size * place, 1.1 * size * place + size, size, 0), "upper")
            said = f"{name}: {(shares > 0).sum()} of {shares.size} blocks"
            axes.text(1.1 * size * place + size / 2, 1.06 * size, said, ha="center")
        axes.set(xlim=(0, 2.1 * size), ylim=(1.1 * size, 0), aspect="equal")
        axes.set_axis_off()

    told = (f"{name}: {(shares > 0).sum()} blocks" for name, shares in panels.items())
    return "; ".join(told), draw


def _image(axes, depth: np.ndarray, extent: tuple[float, ...], origin: str) -> None:
    """A map of one colour, of which there is more where a number is larger."""
    from matplotlib.colors import to_rgb

    colour = np.broadcast_to(to_rgb(COLOURS[0]), (*depth.shape, 3))
    image = np.concatenate([colour, np.clip(depth, 0, 1)[..., None]], axis=-1)
    axes.imshow(image, extent=extent, origin=origin, interpolation="none", aspect="auto")


KINDS: dict[str, Callable[[dict, dict, list[dict]], Made]] = {
    "bars": _bars,
    "lines": _lines,
    "rules": _rules,
    "scatter": _scatter,
    "density": _density,
    "masks": _masks,
}
