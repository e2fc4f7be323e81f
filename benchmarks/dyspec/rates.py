"""Fig. 2 of DySpec: acceptance, and the target's probability, by the draft's probability.

python -m benchmarks.dyspec.rates --out rates.jsonl
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from jaxtyping import Float

from benchmarks import model_pairs, options
from benchmarks.dyspec.contenders import Workload
from benchmarks.dyspec.counts import DRAFT_TEMPERATURE, KINDS
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from jspec.verify import schemes

WIDTH = 4
"""Children of a node."""
EDGES = np.linspace(0, 1, 17)
"""Of the cells of the densities."""


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


def main(
    out: Annotated[Path, typer.Option(help="JSON lines; what is there is not measured again")],
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = KINDS,
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6,1",
    count: options.Count = 5,
    prompt_tokens: options.PromptTokens = 128,
    new_tokens: options.NewTokens = 128,
) -> None:
    """Draws children at every token of texts that the target wrote. DySpec takes the draft's
    probability of a token for the probability that it is accepted: its Hypothesis 1.
    """
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes, scan_layers=True)
    # No seeds: all texts are there to learn from.
    work = Workload(pair, count, 0, prompt_tokens, new_tokens)
    setting = dict(
        bench="dyspec_fig2", **pair.about, kinds=classes, count=count, prompt=prompt_tokens,
        new=new_tokens, draft_temperature=DRAFT_TEMPERATURE,
    )  # fmt: skip
    ledger = Ledger(out, setting)
    headline(f"{pair.name}: acceptance by the draft's probability, {len(work.kinds)} texts")
    for temperature in map(float, temperatures.split(",")):
        if not ledger.find(temperature=temperature):
            ledger.add(temperature=temperature, **counted(tried(work, temperature)))
        row = ledger.find(temperature=temperature)[0]
        told = ", ".join(f"{name} {row['correlation'][name]:.2f}" for name in row["correlation"])
        console.print(
            f"T {temperature:g}: correlation of the draft's probability of a first child with "
            f"{told} (of {row['places']:,} tokens)",
            highlight=False,
        )


def counted(seen: Tried) -> dict:
    """Returns densities, means by column, first children's correlations, later ones' means."""
    found: dict = {"places": len(seen.tried), "edges": EDGES.round(4).tolist()}
    first = seen.tried[:, 0] > 0
    x = seen.child_probs[first, 0]
    found["density"], found["correlation"] = {}, {}
    for name, values in (("acceptance", seen.accept), ("target", seen.target)):
        y = values[first, 0]
        cells, _, _ = np.histogram2d(x, np.minimum(y, 1), bins=(EDGES, EDGES))
        found["density"][name] = cells.astype(int).tolist()
        found["correlation"][name] = round(float(np.corrcoef(x, y)[0, 1]), 4)
    ranks = range(seen.accept.shape[1])
    found["means"] = {
        name: [means(seen.child_probs[:, k], values[:, k], seen.tried[:, k]) for k in ranks]
        for name, values in (("acceptance", seen.accept), ("target", seen.target))
    }
    return found


def means(
    probabilities: np.ndarray, values: np.ndarray, tried: np.ndarray
) -> list[list[float | None]]:
    """Returns mean value and weight of each column; no mean of fewer than 5 children."""
    weight, _ = np.histogram(probabilities, EDGES, weights=tried)
    total, _ = np.histogram(probabilities, EDGES, weights=tried * values)
    return [
        [round(float(t / w), 4) if w >= 5 else None, round(float(w), 1)]
        for t, w in zip(total, weight, strict=True)
    ]


def tried(work: Workload, temperature: float) -> Tried:
    """Returns children at every token of texts that the target wrote, and how far each is tried."""
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


if __name__ == "__main__":
    command(main)
