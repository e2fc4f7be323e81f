"""Fig. 3 of Token Recycling (Luo et al. 2024)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import canvas
from benchmarks.recycling.bench import summary

AXES = {
    "breadth": "(a) drafted nodes, 6 levels",
    "depth": "(b) levels, 80 nodes",
    "update": "(c) which of equal tokens' candidates is kept",
}
"""Parts that are a panel of Fig. 3, and what its axis shows."""


def draw(
    path: Path, part: str, answered: Mapping[str, Sequence[dict[str, Any]]], title: str
) -> None:
    """One panel: MAT as bars, tokens per second as a line where they were timed."""
    found = {label: summary(list(rows)) for label, rows in answered.items()}
    names = [label.removeprefix("TR, ") for label in found]
    lengths = [length for length, _, _ in found.values()]
    figure, axes = canvas.panels(1, 6.0, 3.8)
    axis = axes[0, 0]
    axis.bar(names, lengths, 0.6, color="tab:blue", label="MAT")
    axis.set(ylabel="MAT", xlabel=AXES[part], ylim=(0.9 * min(lengths), 1.05 * max(lengths)))
    speeds = [speed for _, speed, _ in found.values()]
    if speeds == speeds:  # not a number where nothing was timed
        other = axis.twinx()
        other.plot(names, speeds, "o-", color="tab:red", label="tokens/s")
        other.set_ylabel("tokens per second")
    figure.suptitle(f"{title}: Token Recycling")
    canvas.save(figure, path)
