"""RSD's experiments (Jeon et al. 2024, section 5): trees by draft length and by budget.

python -m benchmarks.rsd --out rsd.jsonl               # the bundled pair; again, it goes on
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Pair
from benchmarks.rsd.settings import METHODS, TEMPERATURES, Shape, settings
from benchmarks.texts import join, pad
from benchmarks.whole_rounds import Decoding


class Bench:
    """A pair, its prompts, and what the file already holds.

    Args:
        pair: the models and their texts.
        count: prompts of each class for each seed: every seed has texts of its own.
        seeds: how many.
        prompt_tokens: of each text.
        tokens: new ones of each prompt; the round that passes them counts whole.
        out: the file.
    """

    def __init__(
        self,
        pair: Pair,
        count: int,
        seeds: int,
        prompt_tokens: int,
        tokens: int,
        out: Path,
    ):
        self.pair, self.tokens = pair, tokens
        chosen = {
            kind: pair.texts.choose(pair.target, kind, count * seeds, prompt_tokens)
            for kind in pair.classes
        }
        self.prompts = [
            {kind: pad([ids for _, ids in rows[seed::seeds]]) for kind, rows in chosen.items()}
            for seed in range(seeds)
        ]
        setting = dict(pair.about, count=count, seeds=seeds, prompt=prompt_tokens, new=tokens)
        self.ledger = Ledger(out, setting | {"ratio": pair.ratio})

    def decoding(self, method: str, shape: Shape) -> Decoding:
        drafter = METHODS[method].build(self.pair.draft.model, shape)
        target, params = self.pair.target, self.pair.draft.params
        return Decoding(target.model, target.params, drafter, params, self.tokens)

    def efficiency(self, method: str, shape: Shape, seed: int) -> None:
        """Tokens per target call: the texts of a seed at one temperature are rows of one call."""
        prompts = join([*self.prompts[seed].values()])
        drafted = self.decoding(method, shape)
        for temperature, top_p in TEMPERATURES:
            here = dict(
                bench="rsd", method=method, shape=list(shape), temperature=temperature,
                top_p=top_p, seed=seed,
            )  # fmt: skip
            if self.ledger.find(**here):
                continue
            # No end token: every row runs to the same number of tokens.
            counted = drafted.count(
                prompts, sampling=jspec.Sampling(temperature=temperature, top_p=top_p), key=seed
            )
            here |= {"calls": counted.rounds.tolist(), "tokens": counted.tokens.tolist()}
            here |= {"levels": counted.num_levels.tolist()}
            self.ledger.add(**here)


def main(
    out: Annotated[Path, typer.Option(help="append JSON lines here; what it holds is skipped")],
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    experiment: Annotated[str, typer.Option(help="1, 2 or all")] = "all",
    sizes: Annotated[
        str | None, typer.Option(help="draft lengths or budgets, comma-separated; all if not given")
    ] = None,
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    count: options.Count = 2,
    prompt_tokens: options.PromptTokens = 32,
    new_tokens: options.NewTokens = 64,
    quick: Annotated[bool, typer.Option("--quick", help="one seed, one prompt, 32 tokens")] = False,
) -> None:
    """Counts C.3's trees by their published verifiers; DySpec, CoupledTree, chains as large."""
    numbers = {"1": [1], "2": [2], "all": [1, 2]}.get(experiment)
    if numbers is None:
        raise typer.BadParameter(f"experiment is {experiment!r}; take 1, 2 or all")
    if quick:
        seeds, count, new_tokens = 1, 1, 32
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes, scan_layers=True)
    bench = Bench(pair, count, seeds, prompt_tokens, new_tokens, out)
    names = methods.split(",")
    if unknown := set(names) - set(METHODS):
        raise typer.BadParameter(f"no method {min(unknown)!r}; there are {', '.join(METHODS)}")
    wanted = [tree for tree in settings(numbers, sizes) if tree[0] in names]
    headline(
        f"{pair.name}: {len(wanted)} trees, {seeds} seeds, each with {count} prompts of "
        f"{prompt_tokens} tokens a class, {new_tokens} new tokens each; r = {pair.ratio:.4f}"
    )
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=len(wanted) * seeds)
        # Seed by seed, so that an interrupted run has as many texts of every tree.
        for seed in range(seeds):
            for method, shape in wanted:
                name = f"{METHODS[method].title} {METHODS[method].text(shape)}"
                progress.update(task, description=f"{name}, seed {seed}")
                bench.efficiency(method, shape, seed)
                progress.advance(task)
    console.print(f"rows in {out}; `python -m benchmarks.results` shows those in results/rows")


if __name__ == "__main__":
    command(main)
