"""Fig. 2 of DySpec: acceptance, and the target's probability, by the draft's probability."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from benchmarks.dyspec import figures
from benchmarks.dyspec.contenders import Workload
from benchmarks.dyspec.figures import Tried
from benchmarks.dyspec.table import DRAFT_TEMPERATURE
from benchmarks.harness import console, headline
from jspec.verify import schemes

WIDTH = 4
"""Children of a node."""


def report(work: Workload, temperatures: Sequence[float], picture: Path | None) -> None:
    """Is a child accepted as often, and as likely to the target, as the draft thinks it likely?"""
    headline(
        f"{work.pair.name}: acceptance by the draft's probability, temperature {DRAFT_TEMPERATURE}"
    )
    panels = {temperature: tried(work, temperature) for temperature in temperatures}
    edges = 2.0 ** -np.arange(8, -1, -1)
    bins = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges)]
    for temperature, seen in panels.items():
        shown = Table(f"T {temperature:g}: child", *bins, box=box.MARKDOWN)
        for rank in range(WIDTH):
            of = seen.child_probs[:, rank], seen.accept[:, rank], seen.tried[:, rank]
            shown.add_row(str(rank + 1), *figures.means(*of, edges))
        of = seen.child_probs[:, 0], seen.target[:, 0], seen.tried[:, 0]
        shown.add_row("1: target's probability", *figures.means(*of, edges))
        console.print(shown)
        first = seen.tried[:, 0] > 0
        for what, values in (("acceptance", seen.accept), ("target", seen.target)):
            found = np.corrcoef(seen.child_probs[first, 0], values[first, 0])[0, 1]
            console.print(
                f"T {temperature:g}: correlation of the draft's probability of a first child with "
                f"its {what}: {found:.2f} (of {first.sum():,})",
                highlight=False,
            )
    console.print(
        "Mean probability that a child is accepted where it is tried, and the target's probability "
        "of first children, by the draft's probability among the tokens not drawn before. DySpec "
        "takes the draft's probability for the probability of acceptance: its Hypothesis 1."
    )
    if picture is not None:
        figures.rates(picture, panels, work.pair.name)
        console.print(f"figure: {picture}")


def tried(work: Workload, temperature: float) -> Tried:
    """Children at every token of texts that the target wrote, and how far each is tried."""
    seen = work.trials(temperature, DRAFT_TEMPERATURE, schemes.RECURSIVE, WIDTH)
    left = 1 - (np.cumsum(seen.child_probs, -1) - seen.child_probs)
    refused = np.cumprod(1 - np.asarray(seen.accept), -1)
    reached = np.concatenate([np.ones_like(refused[:, :1]), refused[:, :-1]], -1)
    there = np.asarray(seen.child_probs) > 0
    among_left = np.where(there, seen.child_probs / np.maximum(left, 1e-9), 0)
    return Tried(
        np.minimum(among_left, 1),
        np.asarray(seen.accept),
        np.asarray(seen.target),
        np.where(there, reached, 0),
    )
