"""Figures 4 and 5 of RSD (Jeon et al. 2024) from the rows of `benchmarks.rsd`."""

from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib.pyplot as plt

from benchmarks.rsd.results import Measured, Results
from benchmarks.rsd.settings import METHODS

Curve = Callable[[Results, Measured], tuple[float, float]]
"""A tree's height and its spread."""

_LOOKS = {
    "speculative_decoding": dict(color="#7f7f7f", marker="o"),
    "spectr": dict(color="#e6842a", marker="s"),
    "rsd_c": dict(color="#3b8f4e", marker="^"),
    "rsd_s": dict(color="#c23b3b", marker="D"),
    "dyspec": dict(color="#7d5fb2", marker="v", linestyle="--"),
    "coupled_tree": dict(color="#2b6cb0", marker="P", linestyle="--"),
}
_AXES = {1: "draft length", 2: "drafted tokens that the target verifies"}


def draw(number: int, by_sampling: Mapping[tuple[float, float], Results], file: Path) -> None:
    """One experiment: a column a temperature, a line a method.

    At each size stands the method's tree that is best in the metric of the axis, as in the paper.
    """
    metrics: dict[str, Curve] = {
        "block efficiency": lambda results, tree: (tree.efficiency, tree.spread),
        "memory-bound speed-up": lambda results, tree: (tree.mbsu, tree.spread / tree.cost),
    }
    if all("TR" in results.metrics for results in by_sampling.values()):
        metrics["token rate over plain"] = lambda results, tree: (tree.rate, 0.0)
    if all(results.plain is not None for results in by_sampling.values()):
        metrics["score of the texts"] = lambda results, tree: (tree.score, 0.0)
    figure, axes = plt.subplots(
        len(metrics),
        len(by_sampling),
        figsize=(4.6 * len(by_sampling), 3.1 * len(metrics)),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, results in enumerate(by_sampling.values()):
        groups = results.groups(number)
        axes[0, column].set_title(results.title, fontsize=10)
        axes[-1, column].set_xlabel(_AXES[number])
        for row, (metric, value) in enumerate(metrics.items()):
            axis = axes[row, column]
            axes[row, 0].set_ylabel(metric)
            for method, look in _LOOKS.items():
                # The highest of a group, whatever its spread.
                points = [
                    max(value(results, results.measured[method, shape]) for shape in group[method])
                    for group in groups.values()
                ]
                axis.errorbar(
                    list(groups),
                    [height for height, _ in points],
                    [spread for _, spread in points],
                    label=METHODS[method].title,
                    capsize=2,
                    markersize=5,
                    linewidth=1.4,
                    **look,
                )
            axis.set_xticks(list(groups))
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(file, dpi=150)
    plt.close(figure)
