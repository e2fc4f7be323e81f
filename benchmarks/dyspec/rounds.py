"""DySpec, Figs. 5 and 9, round by round: the size of each tree, its tokens, its blocks.

python -m benchmarks.dyspec.rounds --budget 768 --out rounds.jsonl
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import jspec
from benchmarks import model_pairs, options
from benchmarks.dyspec.blocks import ORDERS, blocks, depths
from benchmarks.dyspec.contenders import Workload, drafter, threshold
from benchmarks.dyspec.counts import DRAFT_TEMPERATURE, KINDS
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import DEEPEST


def main(
    out: Annotated[Path, typer.Option(help="JSON lines; what is there is not traced again")],
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = KINDS,
    budget: Annotated[int, typer.Option(min=1, help="drafted nodes at most")] = 768,
    method: Annotated[str, typer.Option(help="threshold or dyspec")] = "threshold",
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6",
    count: options.Count = 3,
    prompt_tokens: options.PromptTokens = 128,
    new_tokens: options.NewTokens = 64,
) -> None:
    """Traces one text after the other, of all classes in turn."""
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes, scan_layers=True)
    work = Workload(pair, count, 1, prompt_tokens, new_tokens)
    setting = dict(
        bench="dyspec_rounds", **pair.about, kinds=classes, budget=budget, method=method,
        threshold=threshold(budget) if method == "threshold" else 0.0, count=count,
        prompt=prompt_tokens, new=new_tokens,
    )  # fmt: skip
    ledger = Ledger(out, setting)
    headline(f"{pair.name}: {method}, {budget} nodes, round by round")
    texts, each = work.prompts(0), len(pair.classes)
    order = np.arange(texts.count).reshape(each, -1).T.ravel()
    for text in order.tolist():
        for temperature in map(float, temperatures.split(",")):
            if not ledger.find(text=text, temperature=temperature):
                grower = drafter(method, work, budget, temperature, DRAFT_TEMPERATURE)
                found = traced(work, grower, temperature, texts.take([text]))
                if text:  # one tree is drawn
                    del found["parents"]
                ledger.add(text=text, temperature=temperature, **found)
        console.print(f"text {text}: there", highlight=False)


def traced(work: Workload, method: Any, temperature: float, prompt: Prompts) -> dict[str, Any]:
    """Returns nodes, tokens, levels, most children and blocks by round; and the largest tree."""
    target, draft = work.pair.target, work.pair.draft
    trace = jspec.trace(
        target.model, target.params, *prompt, drafter=method, drafter_params=draft.params,
        max_new_tokens=work.new_tokens + DEEPEST, key=0,
        sampling=jspec.Sampling(temperature=temperature),
    )  # fmt: skip
    tokens = np.cumsum([len(one.path) for one in trace.rounds])
    rounds = trace.rounds[: 1 + int(np.argmax(tokens >= work.new_tokens))]
    trees = [one.parents[: one.num_verified].astype(np.int64) for one in rounds]
    return dict(
        parents=max(trees, key=len).tolist(),
        nodes=[len(tree) - 1 for tree in trees],
        tokens=[len(one.path) for one in rounds],
        levels=[int(depths(tree).max()) for tree in trees],
        children=[int(np.bincount(tree[1:], minlength=1).max()) for tree in trees],
        beam=method.beam,
        blocks={
            name: [blocks(tree, order(tree)) for tree in trees] for name, order in ORDERS.items()
        },
    )


if __name__ == "__main__":
    command(main)
