"""Fig. 5 and Table 2 of Lyanna (Chen et al. 2026): how the variants learn.

python -m benchmarks.lyanna.training RUN... --out training.png
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float
from rich import box
from rich.table import Table

from benchmarks.harness import command, console, headline
from benchmarks.lyanna import figures, trained_heads
from benchmarks.lyanna.trained_heads import Run

EPOCHS = (1, 2, 4, 6, 8)
"""The epochs of the paper's Table 2; ours are eighths of the run."""
PAPER = {
    "Lyanna, sparse": (42.95, 50.07, 56.07, 60.01, 60.83),
    "Lyanna": (42.02, 48.86, 55.86, 58.60, 59.28),
}
"""Test accuracy in percent, mean of 3 draft steps; sparse: 32K hot tokens."""


def main(
    runs: Annotated[list[Path], typer.Argument(help="folders of `jspec train`, finished or not")],
    out: Annotated[
        Path | None, typer.Option(help="folder for a PNG for each number of steps")
    ] = None,
) -> None:
    """Compares runs of as many steps; others were on another schedule."""
    headline("Fig. 5 and Table 2: training curves of jspec-7m's heads")
    for steps, group in trained_heads.alike([Run(folder) for folder in runs]).items():
        console.print(progress(group, steps))
        if any(run.heldout for run in group):
            console.print(heldout(group))
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            picture = out / f"lyanna_training_{steps}.png"
            figures.training(picture, {run.setting: lines(run) for run in group})
            console.print(f"figure: {picture}", soft_wrap=True)
    console.print(
        "Ours: the likeliest token is the target's likeliest, given that those of the draft steps "
        "before are. Held out: on text of the same make (the target's own) that no step has read, "
        "for runs of `jspec train head --kind lyanna --scores 8`; training: running means on what "
        "is trained on. In brackets: Table 2 of the paper, test accuracy at as many epochs of 8."
    )


def lines(run: Run) -> Float[np.ndarray, "1+draft steps"]:
    """The loss, and the acceptance of each draft step: running means over a sixteenth."""
    values = np.array([[line["loss"], *line["acceptance"]] for line in run.curve]).T
    window = max(values.shape[1] // 16, 1)
    sums = np.concatenate([np.zeros((len(values), 1)), values.cumsum(1)], axis=1)
    ends = np.arange(1, values.shape[1] + 1)
    begins = np.maximum(ends - window, 0)
    return (sums[:, ends] - sums[:, begins]) / (ends - begins)


def progress(group: Sequence[Run], steps: int) -> Table:
    """The layout of Table 2: on held-out text where it was scored on the way."""
    ends_at = [max(1, round(steps * epoch / EPOCHS[-1])) for epoch in EPOCHS]
    columns = (f"after {end}" for end in ends_at)
    shown = Table("mean of 3 draft steps, %", "text", *columns, box=box.MARKDOWN)
    for run in group:
        paper = PAPER.get(run.setting)
        published = [""] * len(EPOCHS) if paper is None else [f" ({value:.2f})" for value in paper]
        means = 100 * lines(run)[1:].mean(0)
        found = {"training": {end: means[end - 1] for end in ends_at}}
        if run.heldout_curve:
            found = {"held out": {row["step"]: heldout_mean(row) for row in run.heldout_curve}}
        for what, by_step in found.items():
            cells = (f"{by_step[end]:.2f}" if end in by_step else "" for end in ends_at)
            texts = (cell + text for cell, text in zip(cells, published, strict=True))
            shown.add_row(run.setting, what, *texts)
    return shown


def heldout_mean(row: dict) -> float:
    """Percent accepted on held-out text, the mean of draft steps and of classes."""
    scores = [score for name, score in row.items() if name != "step"]
    return 100 * float(np.mean([np.mean(score["acceptance"]) for score in scores]))


def heldout(group: Sequence[Run]) -> Table:
    """Loss and acceptance on held-out text, by draft step."""
    shown = Table("held out", "loss", "draft step 1", "2", "3", "mean", box=box.MARKDOWN)
    for run in group:
        for label, score in run.heldout.items():
            shares = [100 * share for share in score["acceptance"]]
            name = run.setting if len(run.heldout) == 1 else f"{run.setting}, {label}"
            cells = (f"{share:.2f}" for share in (*shares, float(np.mean(shares))))
            shown.add_row(name, f"{score['loss']:.3f}", *cells)
    return shown


if __name__ == "__main__":
    command(main)
