"""The pictures of `benchmarks.dyspec`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from benchmarks import canvas
from benchmarks.dyspec.budgets_figure import style

PARTS = ("tab:cyan", "tab:blue", "tab:gray", "tab:red", "tab:olive")


class Tried(NamedTuple):
    """Children that were drawn at M places, W at each."""

    child_probs: Float[np.ndarray, "M W"]
    """The draft's probability of each, among the tokens not drawn before."""
    accept: Float[np.ndarray, "M W"]
    """The probability that it is accepted."""
    target: Float[np.ndarray, "M W"]
    """The target's probability of it."""
    tried: Float[np.ndarray, "M W"]
    """The probability that it is tried."""


def bins(
    probabilities: np.ndarray, accept: np.ndarray, tried: np.ndarray, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(mean acceptance, children tried) by the draft's probability."""
    weight, _ = np.histogram(probabilities, edges, weights=tried)
    total, _ = np.histogram(probabilities, edges, weights=tried * accept)
    return np.where(weight > 0, total / np.where(weight > 0, weight, 1), np.nan), weight


def means(
    probabilities: np.ndarray, accept: np.ndarray, tried: np.ndarray, edges: np.ndarray
) -> list[str]:
    """Mean acceptance by bin, for a table; of fewer than 5 children nothing."""
    mean, weight = bins(probabilities, accept, tried, edges)
    return [f"{m:.2f}" if w >= 5 else "" for m, w in zip(mean, weight, strict=True)]


def rates(path: Path, panels: Mapping[float, Tried], title: str) -> None:
    """Fig. 2: left acceptance, right the target's probability; columns add up to 1, as there.

    The paper has one density of each; lines are means by rank.
    """
    figure, axes = canvas.panels(2 * len(panels), 4.6, 4.2)
    edges = np.linspace(0, 1, 13)
    centres = (edges[:-1] + edges[1:]) / 2
    for index, (temperature, seen) in enumerate(panels.items()):
        for axis, heights, what in (
            (axes[0, 2 * index], seen.accept, "probability that it is accepted"),
            (axes[0, 2 * index + 1], seen.target, "target's probability"),
        ):
            first, tried = (seen.child_probs[:, 0], heights[:, 0]), seen.tried[:, 0]
            density, *_ = np.histogram2d(*first, bins=(edges, edges), weights=tried)
            density = density / np.maximum(density.sum(1, keepdims=True), 1e-9)
            axis.pcolormesh(edges, edges, density.T, cmap="Blues", vmin=0, vmax=1)
            for rank in range(3):
                of = seen.child_probs[:, rank], heights[:, rank], seen.tried[:, rank]
                mean, weight = bins(*of, edges)
                axis.plot(
                    centres, np.where(weight >= 8, mean, np.nan), "o-", markersize=3,
                    color=("tab:red", "tab:orange", "tab:olive")[rank],
                    label=f"child {rank + 1}, mean",
                )  # fmt: skip
            axis.plot([0, 1], [0, 1], "k:", label="DySpec's estimate")
            axis.set(
                title=f"T = {temperature:g}", xlabel="draft's probability of the child",
                ylabel=what, xlim=(0, 1), ylim=(0, 1),
            )  # fmt: skip
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.colorbar(
        axes[0, -1].collections[0], ax=axes[0, -1], label="share of first children, by column"
    )
    figure.suptitle(f"{title}: acceptance and target by the draft's probability")
    canvas.save(figure, path)


def grown_trees(
    path: Path, rounds: Mapping[float, Int[np.ndarray, "rounds 6"]], title: str
) -> None:
    """Fig. 5: the nodes of each round's tree, and the tokens that the round gave."""
    figure, axes = canvas.panels(len(rounds), 5.6, 4.0)
    for axis, (temperature, rows) in zip(axes[0], rounds.items(), strict=True):
        axis.bar(np.arange(len(rows)), rows[:, 0], 1.0, color="tab:blue", alpha=0.4)
        axis.set(title=f"T = {temperature:g}", xlabel="round", ylabel="drafted nodes")
        other = axis.twinx()
        other.plot(np.arange(len(rows)), rows[:, 1], "o", color="tab:red", markersize=3)
        other.set(ylabel="tokens of the round", ylim=(0, None))
    figure.suptitle(f"{title}: trees grown by a threshold")
    canvas.save(figure, path)


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
