"""Token Recycling's experiments (Luo et al. 2024): Table 1, its shuffled row, Figs. 3 and 4.

python -m benchmarks.recycling --out FILE                          # Table 1, by class of prompt
python -m benchmarks.recycling --out FILE --questions question.jsonl    # a file of Spec-Bench
python -m benchmarks.recycling --out FILE --nodes 16 --untimed     # equal budgets, counts alone
python -m benchmarks.recycling --out FILE --parts shuffled,breadth,depth,update,time
python -m benchmarks.recycling --out FILE --datastore STORE --tree TREE    # REST's row, and a
                                       # tree of `benchmarks.recycling.measured_tree`

What is in FILE already is not run again: an interrupted run goes on with the next method.
"""

import random
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.table import Table

from benchmarks.harness import console, headline
from benchmarks.ledger import Ledger
from benchmarks.recycling.bench import Bench, ahead, summary
from benchmarks.recycling.questions import read, shared
from benchmarks.recycling.settings import PARTS, digest, rows, table, told
from benchmarks.recycling.shares import shares, show
from benchmarks.registry import build
from jspec.errors import InputError


def main(
    out: Annotated[
        Path | None, typer.Option(help="JSON lines: what is there is not measured again")
    ] = None,
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    parts: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(PARTS)}")] = "table",
    only: Annotated[str | None, typer.Option(help="labels of rows, separated by ;")] = None,
    questions: Annotated[Path | None, typer.Option(help="a file in Spec-Bench's schema")] = None,
    count: Annotated[int, typer.Option(min=0, help="per class; 0: all questions of a file")] = 4,
    nodes: Annotated[int | None, typer.Option(min=1, help="drafted nodes, for all alike")] = None,
    datastore: Annotated[
        Path | None, typer.Option(help="file of jspec datastore, for REST")
    ] = None,
    tree: Annotated[
        Path | None, typer.Option(help="template of benchmarks.recycling.measured_tree")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="most tokens of a prompt that are read")
    ] = 48,
    new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    timed: Annotated[bool, typer.Option("--timed/--untimed")] = True,
    loops: Annotated[bool, typer.Option(help="go on where a text only repeats itself")] = False,
    seed: Annotated[int, typer.Option(help="seed of the shuffled order")] = 0,
) -> None:
    """Decodes greedily at batch 1; a method without a trained head or datastore is left out."""
    bench = Bench(model, new_tokens, prompt_tokens, timed, loops)
    asked = shared(max(count, 1)) if questions is None else read(questions, count or None)
    ledger, known = Ledger(out), table(nodes, datastore, tree)
    about = dict(
        bench="recycling", model=model, backend=jax.default_backend(), nodes=nodes,
        new_tokens=new_tokens, prompt_tokens=prompt_tokens, timed=timed, loops=loops, count=count,
        questions=None if questions is None else digest(questions),
    )  # fmt: skip
    for part in parts.split(","):
        headline(f"{model}: {part}, greedy, batch 1, {new_tokens} new tokens a turn")
        if part == "time":
            show(shares(bench, asked[0]))
            continue
        order = list(asked)
        if part == "shuffled":
            random.Random(seed).shuffle(order)
        answered: dict[str, list[dict[str, Any]]] = {}
        for label, (method, options) in rows(part, known).items():
            if only is not None and label not in only.split(";"):
                continue
            this = about | dict(part=part, method=label, seed=seed, options=told(options))
            if not ledger.find(**this):
                try:
                    made = build(method, bench.target, **options)
                except (InputError, OSError) as reason:
                    console.print(f"{label}: left out, {reason}")
                    continue
                found = list(bench.answers(*made, order, label.endswith("cold")))
                ledger.add(**this, rows=found)
            answered[label] = ledger.find(**this)[-1]["rows"]
        _print(answered, timed)


def _print(answered: dict[str, list[dict[str, Any]]], timed: bool) -> None:
    if not answered:
        return
    kinds = list(dict.fromkeys(row["kind"] for row in next(iter(answered.values()))))
    what = "MAT, tokens/s, speed-up" if timed else "MAT"
    table = Table("method", *(f"{kind}\n{what}" for kind in kinds), f"all\n{what}")

    def cell(found):
        length, speed, gain = summary(found)
        return f"{length:.2f}, {speed:.0f}, {gain:.2f}x" if timed else f"{length:.2f}"

    if timed:
        first = next(iter(answered.values()))
        speeds = [
            np.mean([row["tokens"] / row["plain_seconds"] for row in first if row["kind"] == kind])
            for kind in kinds
        ]
        table.add_row("autoregressive", *(f"1.00, {speed:.0f}, 1.00x" for speed in speeds), "1.00")
    for label, found in answered.items():
        by_kind = [[row for row in found if row["kind"] == kind] for kind in kinds]
        table.add_row(label, *map(cell, by_kind), cell(found))
        if differing := [row["question"] for row in found if not row.get("same", True)]:
            console.print(f"{label}: other tokens than plain decoding in {differing}")
    console.print(table)
    for label, gains in ahead(answered).items():
        told = ", ".join(f"{kind} {gain:+.1%}" for kind, gain in zip(kinds, gains, strict=True))
        console.print(f"{label}, MAT over the best single method's: {told}")


if __name__ == "__main__":
    typer.run(main)
