"""RSD's experiments (Jeon et al. 2024, section 5): trees by draft length and by budget.

python -m benchmarks.rsd --out rsd.jsonl               # the bundled pair; again, it goes on
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

import jspec
from benchmarks import model_pairs, options, references
from benchmarks.harness import command, console, headline, paired
from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Pair
from benchmarks.references import SCORES
from benchmarks.rsd.settings import METHODS, TEMPERATURES, Shape, settings
from benchmarks.texts import join, pad
from benchmarks.whole_rounds import Decoding

PLAIN = ("autoregressive", ())
EVERY = tuple(name for name in METHODS if name != PLAIN[0])
"""The paper's four methods, and jspec's alongside them."""


class Bench:
    """A pair, its prompts, and what the file already holds.

    Args:
        pair: the models and their texts.
        count: prompts of each class for each seed: every seed has texts of its own.
        seeds: how many.
        prompt_tokens: of each text.
        tokens: new ones of each prompt; the round that passes them counts whole.
        out: the file.
        answers: reference answers by the name of their question; none: texts are not scored.
        score: of `references.SCORES`.
    """

    def __init__(
        self,
        pair: Pair,
        count: int,
        seeds: int,
        prompt_tokens: int,
        tokens: int,
        out: Path,
        answers: Mapping[str, str],
        score: str,
    ):
        self.pair, self.tokens, self.score = pair, tokens, score if answers else None
        chosen = {
            kind: pair.texts.choose(pair.target, kind, count * seeds, prompt_tokens)
            for kind in pair.classes
        }
        self.prompts = [
            {kind: pad([ids for _, ids in rows[seed::seeds]]) for kind, rows in chosen.items()}
            for seed in range(seeds)
        ]
        self.references = [
            [answers.get(one.name) for rows in chosen.values() for one, _ in rows[seed::seeds]]
            for seed in range(seeds)
        ]
        setting = dict(pair.about, count=count, seeds=seeds, prompt=prompt_tokens, new=tokens)
        setting |= {"score": score if answers else None, "ratio": pair.ratio}
        self.ledger = Ledger(out, setting)

    def decoding(self, method: str, shape: Shape) -> Decoding:
        drafter = METHODS[method].build(self.pair.draft.model, shape)
        params = self.pair.draft.params if METHODS[method].nodes(shape) else None
        target = self.pair.target
        return Decoding(target.model, target.params, drafter, params, self.tokens)

    def describe(self, bench: str, method: str, shape: Shape, sampling: tuple[float, float]):
        """Returns what a row is of."""
        temperature, top_p = sampling
        return dict(
            bench=bench, method=method, shape=list(shape), temperature=temperature, top_p=top_p
        )

    def efficiency(self, method: str, shape: Shape, seed: int) -> None:
        """Tokens per target call: the texts of a seed at one temperature are rows of one call."""
        prompts = join([*self.prompts[seed].values()])
        drafted = self.decoding(method, shape)
        for sampling in TEMPERATURES:
            here = self.describe("rsd", method, shape, sampling) | {"seed": seed}
            if self.ledger.find(**here):
                continue
            temperature, top_p = sampling
            # No end token: every row runs to the same number of tokens.
            counted = drafted.count(
                prompts, sampling=jspec.Sampling(temperature=temperature, top_p=top_p), key=seed
            )
            here |= {"calls": counted.rounds.tolist(), "tokens": counted.tokens.tolist()}
            here |= {"levels": counted.num_levels.tolist()}
            if self.score is not None:
                here |= {"scores": self.scored(counted.texts, seed).tolist()}
            self.ledger.add(**here)

    def scored(self, texts: np.ndarray, seed: int) -> np.ndarray:
        """Returns [B], each text's score against its reference; NaN where there is none."""
        ends, tokenizer = self.pair.target.eos, self.pair.target.tokenizer
        found = []
        for row, reference in zip(texts, self.references[seed], strict=True):
            ended = np.flatnonzero(np.isin(row[: self.tokens], ends))
            said = tokenizer.decode(row[: ended[0] if len(ended) else self.tokens].tolist())
            judge = SCORES[self.score or "rouge2"]
            found.append(np.nan if reference is None else judge(said, reference))
        return np.array(found)

    def rate(self, method: str, shape: Shape, number: int) -> None:
        """Measures token rates over plain decoding's, batch 1, prefill included, in one process."""
        kinds = list(self.prompts[0].values())
        in_turn = zip(*(range(part.count) for part in kinds), strict=False)
        prompts = [kinds[kind].take([row]) for rows in in_turn for kind, row in enumerate(rows)]
        prompts = prompts[:number]
        drafted, plain = self.decoding(method, shape), self.decoding(*PLAIN)
        for temperature, top_p in TEMPERATURES:
            row = self.describe("rsd_rate", method, shape, (temperature, top_p))
            if self.ledger.find(**row):
                continue
            sampling = jspec.Sampling(temperature=temperature, top_p=top_p)
            limits = [drafted.count(one, sampling=sampling, key=0).tokens for one in prompts]

            def run(how: Decoding, sampling=sampling, limits=limits):
                return [
                    how.run(one, limit, sampling=sampling, key=0).tokens
                    for one, limit in zip(prompts, limits, strict=True)
                ]

            seconds = paired(
                {"plain": lambda run=run: run(plain), "drafted": lambda run=run: run(drafted)},
                repeats=3,
            )
            emitted = int(np.sum(limits))
            self.ledger.add(
                **row,
                **{name: taken.tolist() for name, taken in seconds.items()},
                rates=(seconds["plain"] / seconds["drafted"]).tolist(),
                plain_rate=emitted / float(np.median(seconds["plain"])),
            )


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
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(EVERY),
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    count: options.Count = 2,
    prompt_tokens: options.PromptTokens = 32,
    new_tokens: options.NewTokens = 64,
    rates: Annotated[int, typer.Option(min=0, help="time this many prompts too")] = 0,
    score: Annotated[
        str | None,
        typer.Option(
            help=f'of the "answer" beside each line of --prompts: {", ".join(SCORES)}; '
            "--prompt-tokens 0 reads prompts whole"
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="one seed, one prompt, 32 tokens")] = False,
) -> None:
    """Counts C.3's trees by their published verifiers; DySpec, CoupledTree, chains as large."""
    numbers = {"1": [1], "2": [2], "all": [1, 2]}.get(experiment)
    if numbers is None:
        raise typer.BadParameter(f"experiment is {experiment!r}; take 1, 2 or all")
    if score is not None and (score not in SCORES or prompts is None):
        raise typer.BadParameter(f"--score {score} needs --prompts, and is {' or '.join(SCORES)}")
    if quick:
        seeds, count, new_tokens = 1, 1, 32
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes, scan_layers=not rates)
    answers = {} if score is None or prompts is None else references.read(prompts)
    bench = Bench(pair, count, seeds, prompt_tokens, new_tokens, out, answers, score or "rouge2")
    names = methods.split(",")
    if unknown := set(names) - set(EVERY):
        raise typer.BadParameter(f"no method {min(unknown)!r}; there are {', '.join(EVERY)}")
    wanted = [tree for tree in settings(numbers, sizes) if tree[0] in names]
    wanted = [*([PLAIN] if answers else []), *wanted]
    headline(
        f"{pair.name}: {len(wanted)} trees, {seeds} seeds, each with {count} prompts of "
        f"{prompt_tokens} tokens a class, {new_tokens} new tokens each; r = {pair.ratio:.4f}"
    )
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("", total=len(wanted) * (seeds + (rates > 0)))
        # Seed by seed, so that an interrupted run has as many texts of every tree.
        for seed in range(seeds):
            for method, shape in wanted:
                name = f"{METHODS[method].title} {METHODS[method].text(shape)}"
                progress.update(task, description=f"{name}, seed {seed}")
                bench.efficiency(method, shape, seed)
                progress.advance(task)
        for method, shape in wanted if rates else ():
            progress.update(task, description=f"{method} {shape}, token rate")
            bench.rate(method, shape, rates)
            progress.advance(task)
    if answers:
        for method in dict.fromkeys(method for method, _ in wanted):
            scores = [one for row in bench.ledger.find(method=method) for one in row["scores"]]
            console.print(f"{METHODS[method].title}, mean {bench.score}: {np.nanmean(scores):.3f}")
    console.print(f"rows in {out}; `python -m benchmarks.results` shows those in results/rows")


if __name__ == "__main__":
    command(main)
