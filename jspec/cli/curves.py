"""The curve of a training run as a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jspec._validate import extras


def plot(curve: Sequence[Mapping[str, Any]], path: Path, unit: str) -> None:
    """Loss against steps, and below it the acceptance of each draft step if the curve has it."""
    extras.require("a picture", "pictures", "matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    steps = [line["step"] for line in curve]
    losses = np.array([line["loss"] for line in curve])
    accepted = np.array([line["acceptance"] for line in curve if "acceptance" in line])
    panels = 1 + bool(accepted.size)
    figure, grid = pyplot.subplots(
        panels, figsize=(7, 4 * panels), sharex=True, squeeze=False, layout="constrained"
    )
    top, bottom = grid[0, 0], grid[-1, 0]
    top.plot(steps, losses, alpha=0.3, label="each step")
    top.plot(steps, smooth(losses), label="running mean")
    top.set(ylabel=f"training loss ({unit})", yscale="log")
    top.legend()
    for index, values in enumerate(accepted.T):
        bottom.plot(steps, smooth(values), label=f"step {index + 1}")
    if accepted.size:
        bottom.set(ylabel="likeliest token accepted\n(running mean, given all before)", ylim=(0, 1))
        bottom.legend(title="draft")
    bottom.set(xlabel="step")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def smooth(values: np.ndarray) -> np.ndarray:
    """Returns the mean over the last fiftieth of the run at each step."""
    window = max(len(values) // 50, 1) + 1
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[ends] - sums[begins]) / (ends - begins)
