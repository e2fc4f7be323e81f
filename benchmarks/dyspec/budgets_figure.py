"""The picture of `benchmarks.dyspec.budgets`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks import canvas

COLOURS = {
    "speculative_decoding": "tab:gray",
    "rsd_s": "tab:green",
    "sequoia": "tab:orange",
    "dyspec": "tab:blue",
    "calibrated_dyspec": "tab:purple",
    "coupled_tree": "tab:red",
}


def style(name: str) -> dict:
    """Colour by method, dashes for the coupled scheme, a heavier line where it is the only one."""
    method = name.removesuffix(" coupled")
    return dict(
        color=COLOURS[method],
        linestyle="--" if name.endswith(" coupled") else "-",
        linewidth=2.4 if name == "coupled_tree" else 1.5,
        marker="o",
        markersize=3.5,
    )


def draw(
    path: Path,
    means: Mapping[tuple[str, int, float], np.ndarray],
    names: Sequence[str],
    sizes: Sequence[int],
    temperatures: Sequence[float],
    title: str,
) -> None:
    """Tokens per round against the budget, a panel for each temperature; and what T 1 leaves."""
    retention = {0.0, 1.0} <= set(temperatures)
    figure, axes = canvas.panels(len(temperatures) + retention, 3.6, 4.4)
    top = max(values.max() for values in means.values())
    for axis, temperature in zip(axes[0], temperatures, strict=False):
        for name in names:
            values = np.array([means[name, size, temperature] for size in sizes])
            error = values.std(1, ddof=1) if values.shape[1] > 1 else None
            axis.errorbar(sizes, values.mean(1), error, capsize=2, label=name, **style(name))
        axis.set(title=f"T = {temperature:g}", ylim=(1, 1.05 * top))
    if retention:
        for name in names:
            kept = [(means[name, size, 1.0] / means[name, size, 0.0]).mean() for size in sizes]
            axes[0, -1].plot(sizes, kept, **style(name))
        axes[0, -1].set(title="T = 1 over T = 0")
    for axis in axes[0]:
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set_xlabel("drafted nodes")
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("tokens per round")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(f"{title}; dashed: coupled, plain: recursive rejection")
    canvas.save(figure, path)
