"""Drafters against plain decoding, by class of prompt: acceptance, speed and speed-up.

python -m benchmarks.speed.methods                       # the bundled model
python -m benchmarks.speed.methods --model DIR --methods token_recycling,prompt_lookup
"""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

import jspec
from benchmarks.harness import command, console, headline, paired, record
from benchmarks.prompts import CLASSES, texts
from benchmarks.registry import build_those_there, standalone
from jspec.models import load


def main(
    model: Annotated[str, typer.Option(help="folder, bundled name or hub id")] = "jspec-7m",
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(standalone()),
    classes: Annotated[str, typer.Option(help="comma-separated")] = ",".join(CLASSES),
    count: Annotated[int, typer.Option(min=1, help="prompts per class")] = 4,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 48,
    new_tokens: Annotated[int, typer.Option(min=1)] = 128,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    out: Annotated[Path | None, typer.Option(help="append JSON lines here")] = None,
) -> None:
    """Decodes greedily at batch 1, prompts cut to one length; drafters keep their states."""
    loaded = load(model)
    plain_decoding = loaded.model, jspec.Autoregressive(), None
    drafters = build_those_there(methods.split(","), loaded)
    # As in service, each drafter's state goes from prompt to prompt and class to class.
    states: dict[str, object] = dict.fromkeys(drafters)
    headline(f"{model}: greedy, batch 1, {new_tokens} new tokens, {count} prompts a class")
    table = Table("method", *(f"{name}\nMAT, speed-up" for name in classes.split(",")), "all")
    cells: dict[str, list[str]] = {name: [] for name in drafters}
    lengths: dict[str, list[float]] = {name: [] for name in drafters}
    gains: dict[str, list[float]] = {name: [] for name in drafters}
    for kind in classes.split(","):
        tokens = dict.fromkeys(drafters, 0)
        rounds = dict.fromkeys(drafters, 0)
        ratios: dict[str, list[float]] = {name: [] for name in drafters}
        for text in texts(kind, count):
            ids = loaded.tokenizer.encode(text).ids[:prompt_tokens]

            def run(name, ids=ids):
                model, drafter, weights = drafters.get(name, plain_decoding)
                return jspec.decode(
                    model,
                    loaded.params,
                    np.array([ids]),
                    drafter=drafter,
                    drafter_params=weights,
                    drafter_state=states.get(name),
                    max_new_tokens=new_tokens,
                )

            plain = run("plain")
            runs = {name: (lambda name=name: run(name).tokens) for name in ("plain", *drafters)}
            seconds = paired(runs, repeats)
            for name in drafters:
                result = run(name)
                if result.tokens.tolist() != plain.tokens.tolist():
                    raise AssertionError(f"{name} changed the tokens of {text[:40]!r}")
                states[name] = result.drafter_state
                tokens[name] += int(result.lengths[0])
                rounds[name] += int(result.stats.num_rounds[0])
                ratios[name].append(float(np.median(seconds["plain"] / seconds[name])))
                record(
                    out,
                    {"bench": "methods", "model": Path(model).name, "method": name, "class": kind}
                    | {"tokens": int(result.lengths[0])}
                    | {"histogram": result.stats.acceptance_histogram[0].tolist()}
                    | {"seconds": seconds[name].tolist(), "plain": seconds["plain"].tolist()},
                )
        for name in drafters:
            mean, gain = tokens[name] / rounds[name], float(np.mean(ratios[name]))
            cells[name].append(f"{mean:.2f}, {gain:.2f}x")
            lengths[name].append(mean)
            gains[name].append(gain)
    for name, row in cells.items():
        table.add_row(name, *row, f"{np.mean(lengths[name]):.2f}, {np.mean(gains[name]):.2f}x")
    console.print(table)
    console.print(
        "MAT: tokens per target forward pass, bonus included. Tokens equal plain decoding's."
    )


if __name__ == "__main__":
    command(main)
