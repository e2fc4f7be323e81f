"""The pictures of `benchmarks.dyspec`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import canvas
from benchmarks.dyspec.budgets_figure import style

PARTS = ("tab:cyan", "tab:blue", "tab:gray", "tab:red", "tab:olive")


def sweep(
    path: Path,
    means: Mapping[tuple[str, int, float], np.ndarray],
    names: Sequence[str],
    budgets: Sequence[int],
    temperatures: Sequence[float],
    title: str,
) -> None:
    """Tokens per round against the tree's size."""
    figure, axes = canvas.panels(len(temperatures), 4.6, 4.2)
    for axis, temperature in zip(axes[0], temperatures, strict=True):
        for name in names:
            values = np.array([means[name, size, temperature] for size in budgets])
            error = values.std(1, ddof=1) if values.shape[1] > 1 else None
            axis.errorbar(budgets, values.mean(1), error, capsize=2, label=name, **style(name))
        axis.set_xscale("log", base=2)
        axis.set_xticks(budgets, [str(size) for size in budgets])
        axis.set(title=f"T = {temperature:g}", xlabel="drafted nodes", ylabel="tokens per round")
        axis.grid(alpha=0.3)
    axes[0, 0].legend()
    figure.suptitle(f"{title}: tokens per round by size of the tree")
    canvas.save(figure, path)


def components(
    path: Path, rows: Mapping[str, Mapping[str, float]], pieces: Sequence[str], title: str
) -> None:
    """Fig. 4: a bar for each method, and a mark where the whole round ends."""
    figure, axes = canvas.panels(1, 8.5, 1.7 + 0.5 * len(rows))
    axis, names = axes[0, 0], list(rows)[::-1]
    start = np.zeros(len(names))
    for piece, colour in zip(pieces, PARTS, strict=True):
        values = np.array([1e3 * rows[name][piece] for name in names])
        axis.barh(names, values, left=start, label=piece, color=colour, height=0.6)
        start = start + np.maximum(values, 0)
    whole = [1e3 * rows[name]["whole"] for name in names]
    axis.plot(whole, names, "k|", markersize=22, markeredgewidth=2, label="whole round")
    axis.set(xlabel="ms a round", title=title)
    figure.legend(loc="outside lower center", ncols=6, fontsize=8, frameon=False, markerscale=0.4)
    canvas.save(figure, path)
