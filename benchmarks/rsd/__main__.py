"""RSD's experiments (Jeon et al. 2024, section 5): trees against draft length and against budget.

python -m benchmarks.rsd --out rsd.jsonl               # the bundled pair; again, it goes on
python -m benchmarks.rsd.report rsd.jsonl --out rsd    # tables and figures
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import jax.numpy as jnp
import numpy as np
import typer
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

import jspec
from benchmarks import model_pairs, options, references
from benchmarks.harness import command, console, headline, paired, record
from benchmarks.model_pairs import Pair
from benchmarks.references import SCORES
from benchmarks.rsd.settings import METHODS, TEMPERATURES, Shape, settings
from benchmarks.texts import join, pad
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_model.sequoia_tree import memory_bound_speedup

Key = tuple[str, ...]


PLAIN = ("autoregressive", ())


class Bench:
    """A pair, its prompts, and what the file already holds.

    Args:
        pair: the models and their texts.
        count: prompts of each class.
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
        prompt_tokens: int,
        tokens: int,
        out: Path,
        answers: Mapping[str, str],
        score: str,
    ):
        self.pair, self.tokens, self.out, self.score = pair, tokens, out, score
        chosen = {
            kind: pair.texts.choose(pair.target, kind, count, prompt_tokens)
            for kind in pair.classes
        }
        self.prompts = {kind: pad([ids for _, ids in rows]) for kind, rows in chosen.items()}
        self.references = [
            answers.get(question.name) for rows in chosen.values() for question, _ in rows
        ]
        self.asked = pair.about | {"count": count, "prompt": prompt_tokens, "new": tokens}
        self.asked |= {"score": score if answers else None}
        self.done = {_key(row) for row in _rows(out)}

    def decoding(self, method: str, shape: Shape) -> Decoding:
        drafter = METHODS[method].build(self.pair.draft.model, shape)
        params = self.pair.draft.params if METHODS[method].nodes(shape) else None
        target = self.pair.target
        return Decoding(target.model, target.params, drafter, params, self.tokens)

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
        prompts = join([*self.prompts.values()] * len(TEMPERATURES))
        each = prompts.count // len(TEMPERATURES)
        temperatures, top_ps = jnp.repeat(jnp.array(TEMPERATURES), each, axis=0).T
        # No end token: every row runs to the same number of tokens.
        counted = self.decoding(method, shape).count(
            prompts,
            sampling=jspec.Sampling(temperature=temperatures, top_p=top_ps),
            key=seed,
            ids=np.tile(np.arange(each), len(TEMPERATURES)),
        )
        calls = counted.rounds.reshape(len(rows), -1)
        tokens = counted.tokens.reshape(len(rows), -1)
        scores = self.scored(counted.texts).reshape(len(rows), -1)
        for row, made, emitted, near in zip(rows, calls, tokens, scores, strict=True):
            eta = float(emitted.sum() / made.sum())
            row |= {"calls": made.tolist(), "tokens": emitted.tolist(), "efficiency": eta}
            row |= {"mbsu": memory_bound_speedup(eta, row["length"], row["ratio"])}
            row |= {"scores": near.tolist()}
        self.write(rows)

    def scored(self, texts: np.ndarray) -> np.ndarray:
        """[B] the score of each text by its reference; not a number where there is none."""
        ends, tokenizer = self.pair.target.eos, self.pair.target.tokenizer
        found = []
        for row, reference in zip(texts, self.references * len(TEMPERATURES), strict=True):
            ended = np.flatnonzero(np.isin(row[: self.tokens], ends))
            said = tokenizer.decode(row[: ended[0] if len(ended) else self.tokens].tolist())
            judge = SCORES[self.score]
            found.append(np.nan if reference is None else judge(said, reference))
        return np.array(found)

    def rate(self, method: str, shape: Shape, number: int) -> None:
        """Token rate over plain decoding's, batch 1, prefill included, in turn in one process."""
        in_turn = zip(*(range(part.count) for part in self.prompts.values()), strict=False)
        kinds = list(self.prompts.values())
        prompts = [kinds[kind].take([row]) for rows in in_turn for kind, row in enumerate(rows)]
        prompts = prompts[:number]
        drafted, plain = self.decoding(method, shape), self.decoding(*PLAIN)
        for temperature, top_p in TEMPERATURES:
            row = self.describe("rsd_rate", method, shape, temperature=temperature, top_p=top_p)
            if _key(row) in self.done:
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
            self.write(
                [
                    row
                    | {name: taken.tolist() for name, taken in seconds.items()}
                    | {"rates": (seconds["plain"] / seconds["drafted"]).tolist()}
                    | {"plain_rate": emitted / float(np.median(seconds["plain"]))}
                ]
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
    """Every tree of appendix C.3 with its published verifier; DySpec, CoupledTree and the chain
    with as many nodes beside them.
    """
    numbers = {"1": [1], "2": [2], "all": [1, 2]}.get(experiment)
    if numbers is None:
        raise typer.BadParameter(f"experiment is {experiment!r}; take 1, 2 or all")
    if score is not None and (score not in SCORES or prompts is None):
        raise typer.BadParameter(f"--score {score} needs --prompts, and is {' or '.join(SCORES)}")
    if quick:
        seeds, count, new_tokens = 1, 1, 32
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    answers = {} if score is None or prompts is None else references.read(prompts)
    bench = Bench(pair, count, prompt_tokens, new_tokens, out, answers, score or "rouge2")
    wanted = [*([PLAIN] if answers else []), *settings(numbers, sizes)]
    headline(
        f"{pair.name}: {len(wanted)} trees, {seeds} seeds, {count} prompts of {prompt_tokens} "
        f"tokens a class, {new_tokens} new tokens each; r = {pair.ratio:.4f}"
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
    "texts",
    "score",
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
    command(main)
