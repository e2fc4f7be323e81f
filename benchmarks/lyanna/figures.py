"""The pictures of Lyanna's experiments."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

from benchmarks import canvas
from benchmarks.harness import provenance

COLOURS = {
    "Lyanna": "tab:red",
    "Lyanna, sparse": "tab:orange",
    "Lyanna w/o token info": "tab:green",
    "Lyanna w/o first token": "tab:purple",
    "EAGLE": "tab:blue",
}


def training(path: Path, curves: Mapping[str, Float[np.ndarray, "panels steps"]]) -> None:
    """Fig. 5: loss, and acceptance of each draft step, against steps of training.

    Args:
        path: of the picture.
        curves: of each head, the loss first.
    """
    figure, axes = _open(len(next(iter(curves.values()))), width=3.6)
    for name, lines in curves.items():
        for axis, line in zip(axes[0], lines, strict=True):
            positions = np.arange(1, len(line) + 1)
            axis.plot(positions, line, label=name, color=COLOURS[name], linewidth=1.3)
    axes[0, 0].set(ylabel="training loss, weighted sum", yscale="log", xlabel="step of training")
    for step, axis in enumerate(axes[0, 1:]):
        axis.set(title=f"draft step {step + 1}", xlabel="step of training")
    axes[0, 1].set_ylabel("likeliest token accepted, given all before")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    _save(figure, path, "jspec-7m's heads in training, running means")


def throughput(
    path: Path,
    title: str,
    rates: Mapping[int, Mapping[str, float]],
    ablation: Sequence[str],
    paper: Mapping[str, Sequence[float]],
) -> None:
    """Figs. 8 to 12: bars by batch over plain decoding, and re-sampling against none.

    Args:
        path: of the picture.
        title: of the models.
        rates: tokens a second by batch and method; the first method is plain decoding.
        ablation: the methods of Fig. 12, the one without re-sampling first.
        paper: what the paper has for those that it measured, over the first, a target each.
    """
    figure, axes = _open(2, width=6.5, height=4.8)
    left, right = axes[0]
    names = list(next(iter(rates.values())))
    width = 0.85 / len(names)
    for index, name in enumerate(names):
        positions = np.arange(len(rates)) + (index - (len(names) - 1) / 2) * width
        values = [of[name] / of[names[0]] for of in rates.values()]
        left.bar(positions, values, width, label=name, color=canvas.colour(index))
    left.axhline(1, color="black", linewidth=0.8)
    left.set_xticks(range(len(rates)), [str(size) for size in rates])
    left.set(xlabel="batch", ylabel="tokens per second over plain decoding")
    width = 0.85 / (len(rates) + 1)
    for index, (size, of) in enumerate(rates.items()):
        positions = np.arange(len(ablation)) + (index - len(rates) / 2) * width
        values = [of[name] / of[ablation[0]] for name in ablation]
        right.bar(
            positions, values, width, label=f"batch {size}", color=canvas.colour(2 * index + 1)
        )
    for index, name in enumerate(ablation):
        at = [index + len(rates) / 2 * width] * len(paper.get(name, ()))
        right.plot(at, paper.get(name, ()), "k_", markersize=16, markeredgewidth=2)
    right.plot([], [], "k_", label="paper, batch 2")
    right.axhline(1, color="black", linewidth=0.8)
    short = [name.removeprefix("Lyanna ") for name in ablation]
    right.set_xticks(range(len(ablation)), short, rotation=20)
    right.set(ylabel="over no re-sampling")
    for axis in (left, right):
        axis.legend(fontsize=7, ncols=2, loc="upper left")
        axis.set_ylim(top=1.35 * axis.get_ylim()[1])
    _save(figure, path, f"{title}, greedy")


def latency(
    path: Path, times: Mapping[str, float], parts: Sequence[str], steps: int, batch: int
) -> None:
    """Fig. 13: (a) draft steps in turn and at once; (b) the parts of a round's drafting.

    Args:
        path: of the picture.
        times: milliseconds by "who, what".
        parts: of (b), in the order of the bars.
        steps: of (a).
        batch: rows.
    """
    figure, axes = _open(2, width=5.5)
    left, right = axes[0]
    pieces = ("head", "softmax", "sampling")
    for index, (way, label) in enumerate({"in turn": "tokens", "at once": "states"}.items()):
        values = [times[f"{way}, {piece}"] for piece in pieces]
        left.bar(np.arange(3) + 0.4 * index - 0.2, values, 0.4, label=f"{label}, {way}")
    left.set_xticks(range(3), pieces)
    left.set(ylabel="ms", title=f"(a) {steps} draft steps")
    left.legend()
    for index, name in enumerate(("EAGLE", "Lyanna")):
        bottom = 0.0
        for colour, part in enumerate(parts):
            value = max(times[f"{name}, {part}"], 0.0)
            label = part if index == 0 else None
            right.bar(index, value, 0.6, bottom, label=label, color=canvas.colour(2 * colour))
            bottom += value
        label = "whole draft" if index == 0 else None
        right.plot(index, times[f"{name}, draft"], "k_", markersize=60, label=label)
    right.set_xticks(range(2), ("EAGLE", "Lyanna"))
    right.set(ylabel="ms a round", title="(b) drafting, depth 3, width 4")
    right.legend(fontsize=8, loc="lower right", markerscale=0.3)
    right.set_xlim(-0.6, 2.3)
    _save(figure, path, f"jspec-7m's heads, batch {batch}")


def _open(columns: int, width: float, height: float = 4.2):
    figure, axes = canvas.panels(columns, width, height)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure, axes


def _save(figure, path: Path, title: str) -> None:
    """Writes a figure with the device and the date on it."""
    where = provenance()
    figure.suptitle(f"{title} ({where['device']}, {where['date']})", fontsize=10)
    canvas.save(figure, path)
