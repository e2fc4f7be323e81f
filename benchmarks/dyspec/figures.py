"""The pictures of `benchmarks.dyspec`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from benchmarks import canvas
from benchmarks.dyspec.budgets_figure import style

PARTS = ("tab:cyan", "tab:blue", "tab:gray", "tab:red", "tab:olive")

Tried = tuple[Float[np.ndarray, "B T W"], Float[np.ndarray, "B T W"], Float[np.ndarray, "B T W"]]
"""Probability of each child, chance that it is accepted, chance that it is tried."""


def bins(
    chances: np.ndarray, accept: np.ndarray, tried: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(mean acceptance, children tried) by the draft's probability."""
    weight, _ = np.histogram(chances, edges, weights=tried)
    total, _ = np.histogram(chances, edges, weights=tried * accept)
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan), weight


def means(
    chances: np.ndarray, accept: np.ndarray, tried: np.ndarray, edges: np.ndarray
) -> list[str]:
    """Mean acceptance by bin, for a table; of fewer than 5 children nothing."""
    mean, weight = bins(chances, accept, tried, edges)
    return [f"{m:.2f}" if w >= 5 else "" for m, w in zip(mean, weight, strict=True)]


def rates(path: Path, panels: Mapping[float, Tried], title: str) -> None:
    """Fig. 2: columns are normalised, as in the paper; lines are means by rank."""
    figure, axes = canvas.panels(len(panels), 4.6, 4.2)
    edges = np.linspace(0, 1, 13)
    centres = (edges[:-1] + edges[1:]) / 2
    for axis, (temperature, (chances, accept, tried)) in zip(axes[0], panels.items(), strict=True):
        first = chances[..., 0].ravel(), accept[..., 0].ravel()
        density, *_ = np.histogram2d(*first, bins=(edges, edges), weights=tried[..., 0].ravel())
        density = density / np.maximum(density.sum(1, keepdims=True), 1e-9)
        axis.pcolormesh(edges, edges, density.T, cmap="Blues", vmin=0, vmax=1)
        for rank in range(3):
            mean, weight = bins(chances[..., rank], accept[..., rank], tried[..., rank], edges)
            axis.plot(
                centres, np.where(weight >= 8, mean, np.nan), "o-", markersize=3,
                color=("tab:red", "tab:orange", "tab:olive")[rank], label=f"child {rank + 1}, mean",
            )  # fmt: skip
        axis.plot([0, 1], [0, 1], "k:", label="DySpec's estimate")
        axis.set(
            title=f"T = {temperature:g}", xlabel="draft's probability of the child", xlim=(0, 1)
        )
    axes[0, 0].set_ylabel("chance that it is accepted")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.colorbar(
        axes[0, -1].collections[0], ax=axes[0, -1], label="share of first children, by column"
    )
    figure.suptitle(f"{title}: acceptance by the draft's probability")
    canvas.save(figure, path)


def sizes(
    path: Path,
    means: Mapping[tuple[str, int, float], np.ndarray],
    names: Sequence[str],
    budgets: Sequence[int],
    temperatures: Sequence[float],
    title: str,
) -> None:
    """Fig. 5: tokens per round against the tree's size."""
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
