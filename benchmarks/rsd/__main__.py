"""RSD's experiments (Jeon et al. 2024, section 5): trees against draft length and against budget.

python -m benchmarks.rsd --out rsd.jsonl               # the bundled pair; again, it goes on
python -m benchmarks.rsd.report rsd.jsonl --out rsd    # tables and figures
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

import jspec
from benchmarks import model_pairs
from benchmarks.harness import console, headline, paired, record
from benchmarks.rsd.settings import METHODS, TEMPERATURES, Shape, settings
from jspec.drafters.draft_model.sequoia_tree import memory_bound_speedup

Key = tuple[str, ...]


class Bench:
    """A pair, its prompts, and what the file already holds."""

    def __init__(
        self, pair: model_pairs.Pair, count: int, prompt_tokens: int, tokens: int, out: Path
    ):
        self.pair, self.tokens, self.out = pair, tokens, out
        self.prompts = {kind: pair.prompts(kind, count, prompt_tokens) for kind in pair.classes}
        self.asked = {"pair": pair.name, "count": count, "prompt": prompt_tokens, "new": tokens}
        self.done = {_key(row) for row in _rows(out)}

    def decode(self, prompts: np.ndarray, sampling: jspec.Sampling, seed: int, **options):
        return jspec.decode(
            self.pair.target.model,
            self.pair.target.params,
            prompts,
            max_new_tokens=self.tokens,
            sampling=sampling,
            key=seed,
            **options,
        )

    def drafting(self, method: str, shape: Shape) -> dict:
        drafter = METHODS[method].build(self.pair.draft.model, shape)
        return {"drafter": drafter, "drafter_params": self.pair.draft.params}

    def describe(self, bench: str, method: str, shape: Shape, **more) -> dict:
        kind = METHODS[method]
        return (
            {"bench": bench, **self.asked, "ratio": self.pair.ratio}
            | {"method": method, "shape": shape}
            | {"nodes": kind.nodes(shape), "length": kind.length(shape)}
            | more
        )

    def write(self, rows: Iterable[dict]) -> None:
        for row in rows:
            if _key(row) not in self.done:
                record(self.out, row)
                self.done.add(_key(row))

    def efficiency(self, method: str, shape: Shape, seed: int) -> None:
        """Tokens per target call: all prompts at all temperatures are rows of one call."""
        rows = [
            self.describe("rsd", method, shape)
            | {"temperature": temperature, "top_p": top_p, "seed": seed, "class": kind}
            for temperature, top_p in TEMPERATURES
            for kind in self.prompts
        ]
        if all(_key(row) in self.done for row in rows):
            return
        prompts = np.concatenate(list(self.prompts.values()))
        temperatures, top_ps = jnp.repeat(jnp.array(TEMPERATURES), len(prompts), axis=0).T
        # No end token: every row runs to the same number of tokens.
        result = self.decode(
            np.tile(prompts, (len(TEMPERATURES), 1)),
            jspec.Sampling(temperature=temperatures, top_p=top_ps),
            seed,
            rows=np.tile(np.arange(len(prompts)), len(TEMPERATURES)),
            **self.drafting(method, shape),
        )
        calls = np.asarray(result.stats.num_rounds).reshape(len(rows), -1)
        tokens = np.asarray(result.lengths).reshape(len(rows), -1)
        for row, made, emitted in zip(rows, calls, tokens, strict=True):
            eta = float(emitted.sum() / made.sum())
            row |= {"calls": made.tolist(), "tokens": emitted.tolist(), "efficiency": eta}
            row |= {"mbsu": memory_bound_speedup(eta, row["length"], row["ratio"])}
        self.write(rows)

    def rate(self, method: str, shape: Shape, number: int) -> None:
        """Token rate over plain decoding's, batch 1, prefill included, in turn in one process."""
        prompts = np.concatenate(list(zip(*self.prompts.values(), strict=True)))[:number]
        drafting = self.drafting(method, shape)
        for temperature, top_p in TEMPERATURES:
            row = self.describe("rsd_rate", method, shape, temperature=temperature, top_p=top_p)
            if _key(row) in self.done:
                continue
            sampling = jspec.Sampling(temperature=temperature, top_p=top_p)

            def run(sampling=sampling, **options):
                return [self.decode(prompt[None], sampling, 0, **options) for prompt in prompts]

            seconds = paired({"plain": run, "drafted": lambda run=run: run(**drafting)}, repeats=3)
            rate = float(np.median(seconds["plain"] / seconds["drafted"]))
            self.write([row | {name: s.tolist() for name, s in seconds.items()} | {"rate": rate}])


def main(
    out: Annotated[Path, typer.Option(help="append JSON lines here; what it holds is skipped")],
    pair: Annotated[str, typer.Option(help=", ".join(model_pairs.PAIRS))] = "bundled",
    experiment: Annotated[str, typer.Option(help="1, 2 or all")] = "all",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    count: Annotated[int, typer.Option(min=1, help="prompts per class")] = 2,
    prompt_tokens: Annotated[int, typer.Option(min=1)] = 32,
    tokens: Annotated[int, typer.Option(min=1, help="new tokens a prompt")] = 64,
    rates: Annotated[int, typer.Option(min=0, help="time this many prompts too")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="one seed, one prompt, 32 tokens")] = False,
) -> None:
    """Every tree of appendix C.3 with its published verifier; DySpec, CoupledTree and the chain
    with as many nodes beside them.
    """
    numbers = {"1": [1], "2": [2], "all": [1, 2]}.get(experiment)
    if numbers is None:
        raise typer.BadParameter(f"experiment is {experiment!r}; take 1, 2 or all")
    if quick:
        seeds, count, tokens = 1, 1, 32
    bench = Bench(model_pairs.find(pair), count, prompt_tokens, tokens, out)
    wanted = settings(numbers)
    headline(
        f"{pair}: {len(wanted)} trees, {seeds} seeds, {count} prompts of {prompt_tokens} tokens a "
        f"class, {tokens} new tokens each; r = {bench.pair.ratio:.4f}"
    )
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=len(wanted) * (seeds + (rates > 0)))
        for method, shape in wanted:
            name = f"{METHODS[method].title} {METHODS[method].text(shape)}"
            for seed in range(seeds):
                progress.update(task, description=f"{name}, seed {seed}")
                bench.efficiency(method, shape, seed)
                progress.advance(task)
            if rates:
                progress.update(task, description=f"{name}, token rate")
                bench.rate(method, shape, rates)
                progress.advance(task)
    console.print(f"rows in {out}; python -m benchmarks.rsd.report {out} --out FOLDER shows them")


def _rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


_KEY = (
    "bench",
    "pair",
    "count",
    "prompt",
    "new",
    "method",
    "shape",
    "temperature",
    "seed",
    "class",
)


def _key(row: dict) -> Key:
    """The fields that tell one measurement from another, as text."""
    return tuple(json.dumps(row.get(name)) for name in _KEY)


if __name__ == "__main__":
    typer.run(main)
