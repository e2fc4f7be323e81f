"""The figures: the cost of wide forwards, the bandwidth's bound, and what is gained."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks import canvas
from benchmarks.accelerator.results import Results


def draw(found: Results, folder: Path) -> Iterator[Path]:
    """Draws what there are rows for, and yields the files."""
    for name, panel in {"forwards": _forwards, "gains": _gains}.items():
        path = folder / f"{name}.png"
        if panel(found, path):
            yield path


def _title(found: Results) -> str:
    last = found.last
    return f"{last['kind']}, {found.scale.name} in {found.scale.dtype}, {last['date']}"


def _forwards(found: Results, path: Path) -> bool:
    """t(N)/t(1) by batch, and milliseconds beside the bound."""
    grid = {key: row for key, row in found.grid().items() if "error" not in row}
    if not grid:
        return False
    figure, axes = canvas.panels(2, 6.0, 4.4)
    ratios, times = axes[0]
    for index, batch in enumerate(sorted({batch for batch, _ in grid})):
        widths = sorted(width for other, width in grid if other == batch)
        seconds = np.array([np.median(grid[batch, width]["seconds"]) for width in widths])
        # Of the twenty colours every second one is pale.
        style = dict(color=canvas.colour(2 * index), marker=".", label=f"batch {batch}")
        if widths[0] == 1:
            ratios.plot(widths, seconds / seconds[0], **style)
        times.plot(widths, 1e3 * seconds, **style)
        bound = [1e3 * found.bound(batch, width) for width in widths]
        times.plot(widths, bound, color=style["color"], linestyle="--", linewidth=1)
    for axis in (ratios, times):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set_xlabel("N, tokens of a forward")
        axis.grid(alpha=0.3)
    ratios.set_ylabel("t(N) / t(1)")
    times.set_ylabel("ms; dashed: the bound of bandwidth and arithmetic")
    ratios.legend(frameon=False)
    figure.suptitle(_title(found))
    canvas.save(figure, path)
    return True


def _gains(found: Results, path: Path) -> bool:
    """Speed over plain decoding: by method on real text, and with forced acceptance."""
    rows = [row for row in found.find(section="methods") if "error" not in row]
    if not rows and not found.forced:
        return False
    figure, axes = canvas.panels(2, 6.0, 4.8)
    left, right = axes[0]
    for place, row in enumerate(rows):
        one = found.method(row)
        left.barh(place, one.gain, color=canvas.colour(0), alpha=0.8)
        left.plot([one.lowest, one.highest], [place, place], color="black", linewidth=1)
        told = f"{one.gain:.2f}x, {one.tokens_per_round:.2f} tokens a round"
        left.text(0.02, place, told, va="center", fontsize=8)
    left.set_yticks(range(len(rows)), [f"{row['model']}: {row['method']}" for row in rows])
    left.invert_yaxis()
    left.axvline(1, color="black", linestyle=":")
    left.set_xlabel("speed over plain decoding, real text; lines: by prompt")
    for index, (batch, pairs) in enumerate(sorted(found.forced.items())):
        tokens, gains = zip(*sorted(pairs), strict=True)
        right.plot(
            tokens, gains, color=canvas.colour(2 * index), marker="o", label=f"batch {batch}"
        )
    if found.forced:
        right.plot([1, 5], [1, 5], color="black", linestyle=":", label="drafting and width free")
        right.legend(frameon=False)
    right.set_xlabel("tokens a round, forced")
    right.set_ylabel("speed over plain decoding")
    right.grid(alpha=0.3)
    figure.suptitle(_title(found))
    canvas.save(figure, path)
    return True
