"""Pictures as SVG, which look right on light and dark pages: a card with colours of both.

The same numbers give the same file, byte for byte, so that a test can compare.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from math import floor, isfinite, log10

from benchmarks.results.statistics import Estimate

WIDTH, HEIGHT = 760, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 78, 58
_LIGHT = ("#2f6fde", "#d9622b", "#2b9a66", "#8e4ec6", "#c2298a", "#8a6d1a", "#0f8fa3", "#687076")
_DARK = ("#6ea2ff", "#ff9a66", "#5bd6a0", "#c58fff", "#ff7cc8", "#e0c060", "#55d0e2", "#a8b1ba")

PAPERS = "the paper"
"""The name of its marks in a legend."""


def _style() -> str:
    def colours(paper: str, ink: str, pale: str, line: str, series: Sequence[str]) -> str:
        return (
            f".paper{{fill:{paper};stroke:{line}}}.ink{{fill:{ink}}}.pale{{fill:{pale}}}"
            f".axis{{stroke:{line};fill:none}}.rule{{stroke:{ink};fill:none}}.mark{{fill:{paper};stroke:{ink}}}"
            + "".join(f".c{i}{{fill:{one};stroke:{one}}}" for i, one in enumerate(series))
        )

    light = colours("#ffffff", "#1f2933", "#5f6b77", "#d5dbe1", _LIGHT)
    dark = colours("#0d1117", "#e6edf3", "#9aa5b1", "#30363d", _DARK)
    return (
        "<style>text{font-family:ui-sans-serif,system-ui,Helvetica,Arial,sans-serif}"
        f"{light}@media(prefers-color-scheme:dark){{{dark}}}"
        ".line{fill:none}.band{stroke:none;fill-opacity:.18}.dot{stroke:none}</style>"
    )


def colour(index: int) -> str:
    """The class of a series' colour."""
    return f"c{index % len(_LIGHT)}"


@dataclass
class Canvas:
    """A card with axes: what is drawn is given in the units of the data.

    Args:
        title: above the picture.
        x_range: least and largest x.
        y_range: least and largest y.
        told: what the picture shows, for those who cannot see it.
        subtitle: below the title.
        log_x: a logarithmic x axis.
    """

    title: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    told: str
    subtitle: str = ""
    log_x: bool = False
    parts: list[str] = field(default_factory=list)

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.log_x:
            value, low, high = log10(value), log10(low), log10(high)
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def text(self, x: float, y: float, said: str, anchor="middle", size=12, look="ink") -> None:
        self.parts.append(
            f"<text x='{_n(x)}' y='{_n(y)}' font-size='{size}' text-anchor='{anchor}' "
            f"class='{look}'>{escape(said)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], look: str, width: float = 1) -> None:
        """A line through points of the picture, in pixels."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(
            f"<polyline points='{path}' class='{look} line' stroke-width='{width:g}'/>"
        )

    def box(self, x: float, y: float, width: float, height: float, look: str, opacity=1.0) -> None:
        """A rectangle, in pixels."""
        pale = f" opacity='{opacity:.2f}'" if opacity < 1 else ""
        self.parts.append(
            f"<rect x='{_n(x)}' y='{_n(y)}' width='{_n(width)}' height='{_n(height)}' "
            f"class='{look}'{pale}/>"
        )

    def whisker(self, x: float, value: float, error: float) -> None:
        """An error bar of one standard error, at x pixels."""
        if isfinite(error):
            low, high = self.y(max(value - error, self.y_range[0])), self.y(value + error)
            self.line([(x, low), (x, high)], "rule", 1.2)
            for y in (low, high):
                self.line([(x - 3, y), (x + 3, y)], "rule", 1.2)

    def axes(self, x_label: str, y_label: str, x_ticks: Mapping[float, str] | None) -> None:
        """Lines for the ticks of y, and the words of both axes."""
        for value in ticks(*self.y_range):
            y = self.y(value)
            self.line([(LEFT, y), (WIDTH - RIGHT, y)], "axis")
            self.text(LEFT - 8, y + 4, f"{value:g}", "end", 11, "pale")
        for value, said in (x_ticks or {}).items():
            self.text(self.x(value), HEIGHT - BOTTOM + 17, said, size=11, look="pale")
        self.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_label, look="pale")
        middle = (TOP + HEIGHT - BOTTOM) / 2
        self.parts.append(
            f"<text transform='translate(18 {_n(middle)}) rotate(-90)' font-size='12' "
            f"text-anchor='middle' class='pale'>{escape(y_label)}</text>"
        )

    def legend(self, names: Sequence[str]) -> None:
        """The names of the series, in one or two lines below the title."""
        x, y = float(LEFT), 48.0
        for index, name in enumerate(names):
            width = 30 + 6.6 * len(name)
            if x + width > WIDTH - RIGHT and x > LEFT:
                x, y = float(LEFT), y + 16
            if name == PAPERS:
                self.parts.append(f"<circle cx='{_n(x + 5)}' cy='{_n(y - 4)}' r='4' class='mark'/>")
            else:
                self.box(x, y - 9, 10, 10, colour(index))
            self.text(x + 15, y, name, "start")
            x += width

    def svg(self) -> str:
        """The file."""
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' "
            f"aria-label='{escape(self.told, quote=True)}'>"
        )
        card = (
            f"<rect x='.5' y='.5' width='{WIDTH - 1}' height='{HEIGHT - 1}' rx='8' class='paper'/>"
        )
        words = Canvas("", (0, 1), (0, 1), "")
        words.text(24, 28, self.title, "start", 16)
        if self.subtitle:
            words.text(WIDTH - RIGHT, HEIGHT - 14, self.subtitle, "end", 10, "pale")
        return "\n".join([head, _style(), card, *words.parts, *self.parts, "</svg>\n"])


def bars(
    title: str,
    groups: Sequence[str],
    series: Mapping[str, Sequence[Estimate | None]],
    y_label: str,
    paper: Mapping[str, Sequence[float | None]] | None = None,
    least: float = 0.0,
    subtitle: str = "",
) -> str:
    """Bars with error bars of one standard error, group by group.

    Args:
        title: of the picture.
        groups: the words below the groups.
        series: by name, a value for each group; None: no bar.
        y_label: what is measured, with its unit.
        paper: values of the paper by name of the series, drawn as marks.
        least: where bars begin.
        subtitle: a remark in the corner.
    """
    paper = paper or {}
    tops = [one.value + _finite(one.error) for row in series.values() for one in row if one]
    tops += [value for row in paper.values() for value in row if value is not None]
    told = "; ".join(
        f"{name}: "
        + ", ".join(f"{g} {one.value:.2f}" for g, one in zip(groups, row, strict=True) if one)
        for name, row in series.items()
    )
    one = Canvas(title, (0, len(groups)), (least, 1.06 * max(tops)), told, subtitle)
    one.axes("", y_label, {place + 0.5: name for place, name in enumerate(groups)})
    one.legend([*series, PAPERS] if paper else list(series))
    step = (one.x(1) - one.x(0)) * 0.82 / len(series)
    for number, (name, row) in enumerate(series.items()):
        for place, value in enumerate(row):
            x = one.x(place + 0.09) + number * step
            if value is not None:
                y = one.y(value.value)
                one.box(x + 1, y, max(step - 2, 1), one.y(least) - y, colour(number), 0.85)
                one.whisker(x + step / 2, value.value, value.error)
            theirs = dict(enumerate(paper.get(name, ()))).get(place)
            if theirs is not None:
                one.parts.append(
                    f"<circle cx='{_n(x + step / 2)}' cy='{_n(one.y(theirs))}' r='4' class='mark'/>"
                )
    return one.svg()


def lines(
    title: str,
    series: Mapping[str, Sequence[tuple[float, Estimate | float]]],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    y_range: tuple[float, float] | None = None,
    subtitle: str = "",
) -> str:
    """Lines with a band of one standard error.

    Args:
        title: of the picture.
        series: by name, points (x, y).
        x_label: of the axis.
        y_label: of the axis.
        log_x: a logarithmic x axis.
        y_range: of the axis; None: what the points need.
        subtitle: a remark in the corner.
    """
    points = {
        name: [(x, *_parts(y)) for x, y in sorted(row, key=lambda point: point[0])]
        for name, row in series.items()
    }
    xs = [x for row in points.values() for x, _, _ in row]
    lows = [y - error for row in points.values() for _, y, error in row]
    highs = [y + error for row in points.values() for _, y, error in row]
    told = "; ".join(
        f"{name}: " + ", ".join(f"{x:g} {y:.2f}" for x, y, _ in row) for name, row in points.items()
    )
    fits = _padded(min(lows), max(highs))
    one = Canvas(title, (min(xs), max(xs)), y_range or fits, told, subtitle, log_x)
    marked = sorted(set(xs)) if len(set(xs)) <= 12 else ticks(min(xs), max(xs))
    one.axes(x_label, y_label, {x: f"{x:g}" for x in marked})
    one.legend(list(points))
    for number, row in enumerate(points.values()):
        edge = [(one.x(x), one.y(y + e)) for x, y, e in row]
        edge += [(one.x(x), one.y(y - e)) for x, y, e in reversed(row)]
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in edge)
        one.parts.append(f"<polygon points='{path}' class='{colour(number)} band'/>")
        one.line([(one.x(x), one.y(y)) for x, y, _ in row], colour(number), 2)
        for x, y, _ in row:
            _dot(one, x, y, 3, colour(number), 1)
    return one.svg()


def scatter(
    title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    radius: float = 3,
    subtitle: str = "",
) -> str:
    """Points of several series; arguments as of `lines`, `radius` in pixels."""
    xs = [x for row in series.values() for x, _ in row]
    ys = [y for row in series.values() for _, y in row]
    told = "; ".join(f"{name}: {len(row)} points" for name, row in series.items())
    spread = x_range or _padded(min(xs), max(xs))
    one = Canvas(title, spread, y_range or _padded(min(ys), max(ys)), told, subtitle)
    one.axes(x_label, y_label, {x: f"{x:g}" for x in ticks(*spread)})
    one.legend(list(series))
    for number, row in enumerate(series.values()):
        for x, y in row:
            _dot(one, x, y, radius, colour(number), 0.45)
    return one.svg()


def density(
    title: str,
    counts: Sequence[Sequence[float]],
    x_edges: Sequence[float],
    y_edges: Sequence[float],
    x_label: str,
    y_label: str,
    means: Sequence[tuple[float, float]] = (),
    subtitle: str = "",
) -> str:
    """A map of counts, darker where there are more, and a line of means.

    Args:
        title: of the picture.
        counts: [columns, rows] of the cells between the edges.
        x_edges: [columns + 1] of the cells.
        y_edges: [rows + 1].
        x_label: of the axis.
        y_label: of the axis.
        means: points of a line over it.
        subtitle: a remark in the corner.
    """
    total = sum(map(sum, counts))
    spread, height = (x_edges[0], x_edges[-1]), (y_edges[0], y_edges[-1])
    one = Canvas(title, spread, height, f"{total:g} counts", subtitle)
    one.axes(x_label, y_label, {x: f"{x:g}" for x in ticks(*spread)})
    most = max(map(max, counts))
    for column, row in enumerate(counts):
        for place, count in enumerate(row):
            if count:
                x, y = one.x(x_edges[column]), one.y(y_edges[place + 1])
                width = one.x(x_edges[column + 1]) - x
                tall = one.y(y_edges[place]) - y
                one.box(x, y, width, tall, "c0 dot", min(0.05 + 0.94 * (count / most) ** 0.5, 0.99))
    if means:
        one.legend(["density", "mean"])
        one.line([(one.x(x), one.y(y)) for x, y in means], "c1", 2)
        for x, y in means:
            _dot(one, x, y, 3, "c1", 1)
    return one.svg()


def ticks(low: float, high: float) -> list[float]:
    """Four to ten round numbers from low to high.

    Example:
        >>> ticks(0, 3.4)
        [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    """
    rough = (high - low) / 6
    unit = 10 ** floor(log10(rough))
    step = unit * min((1, 2, 5, 10), key=lambda size: abs(size * unit - rough))
    first = -floor(-low / step + 1e-9)
    last = floor(high / step + 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _dot(one: Canvas, x: float, y: float, radius: float, look: str, opacity: float) -> None:
    pale = f" opacity='{opacity:g}'" if opacity < 1 else ""
    one.parts.append(
        f"<circle cx='{_n(one.x(x))}' cy='{_n(one.y(y))}' r='{radius:g}' class='{look} dot'{pale}/>"
    )


def _parts(value: Estimate | float) -> tuple[float, float]:
    if isinstance(value, Estimate):
        return value.value, _finite(value.error)
    return float(value), 0.0


def _finite(error: float) -> float:
    return error if isfinite(error) else 0.0


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
