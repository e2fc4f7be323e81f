"""Lyanna (Chen et al. 2026), Table 1: is a token accepted if the one before it was?

python -m benchmarks.lyanna.acceptance RUN... --out acceptance.jsonl
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from jaxtyping import Float, Int
from rich import box
from rich.table import Table

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.lyanna import trained_heads
from benchmarks.lyanna.trained_heads import DEPTH, WIDTH, Run
from benchmarks.model_pairs import Subject
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Decoding
from jspec.drafters.draft_head.eagle import EAGLE2
from jspec.drafters.draft_head.lyanna import Lyanna
from jspec.types import PyTree

PAPER = {
    "Lyanna w/o token info": (0.90, 0.73, 0.64),
    "Lyanna w/o first token": (0.84, 0.71, 0.63),
    "Lyanna": (0.91, 0.80, 0.70),
}
"""The acceptance of each draft step in the paper's Table 1: LLaMA-2-7B, temperature 0."""
BOOTSTRAP_DRAWS = 2000


def main(
    runs: Annotated[list[Path], typer.Argument(help="folders of `jspec train`")],
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    nodes: Annotated[
        int, typer.Option(min=1, help="drafted nodes; the paper verifies 16 with the root")
    ] = 15,
    count: options.Count = 12,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 128,
    out: options.Out = None,
) -> None:
    """Decodes the same prompts greedily with every head, without re-sampling."""
    subject, ledger = model_pairs.subject(model, questions, prompts, classes), Ledger(out)
    asked = subject.of_all_classes(count, prompt_tokens)
    about: dict[str, Any] = dict(
        bench="lyanna_acceptance", **subject.about, nodes=nodes, count=count,
        prompt_tokens=prompt_tokens, new_tokens=new_tokens,
    )  # fmt: skip
    headline(
        f"Table 1: {subject.name}, {subject.target.model.vocab_size:,} tokens of vocabulary, trees "
        f"of depth {DEPTH} and width {WIDTH}, {nodes + 1} verified tokens, {asked.count} prompts"
    )
    trained = [Run(folder) for folder in runs]
    for run in trained:
        if not ledger.find(**about, head=run.digest):
            head, variables = run.load(subject.target)
            drafter = trained_heads.tree(head, nodes)
            with console.status(run.name):
                found = histograms(subject, drafter, variables, asked, new_tokens)
            ledger.add(**about, head=run.digest, run=run.name, histograms=found.tolist())
    seen = {
        run: np.array(ledger.find(**about, head=run.digest)[-1]["histograms"]) for run in trained
    }
    console.print(table(seen))
    console.print(by_class(seen, list(subject.classes), count))
    for line in words(seen):
        console.print(line, highlight=False)


def histograms(
    subject: Subject,
    drafter: EAGLE2 | Lyanna,
    variables: PyTree,
    prompts: Prompts,
    new_tokens: int,
) -> Int[np.ndarray, "B P"]:
    """Rounds of each row by accepted drafts, up to the one that passes `new_tokens`, whole."""
    target = subject.target
    one = Decoding(target.model, target.params, drafter, variables, new_tokens)
    return one.count(prompts).histogram[:, : drafter.depth + 1]


def conditional(histogram: Int[np.ndarray, "*A P"]) -> Float[np.ndarray, "*A P-1"]:
    """Returns acceptance per draft step given that all before were accepted; NaN if none were."""
    reached = np.cumsum(histogram[..., ::-1], axis=-1)[..., ::-1]
    return reached[..., 1:] / np.where(reached[..., :-1] > 0, reached[..., :-1], np.nan)


def tokens_per_round(histogram: Int[np.ndarray, "*A P"]) -> Float[np.ndarray, "*A"]:
    """Returns mean tokens per round, the bonus token included."""
    return (histogram * np.arange(1, histogram.shape[-1] + 1)).sum(-1) / histogram.sum(-1)


def lead(
    one: Int[np.ndarray, "B P"], other: Int[np.ndarray, "B P"]
) -> tuple[Float[np.ndarray, " P-1"], Float[np.ndarray, " P-1"]]:
    """Returns the lead of `one` over `other` in acceptance by draft step, with standard error.

    Bootstrapped: prompts are drawn for both at once, since they are the same.
    """
    drawn = np.random.default_rng(0).integers(len(one), size=(BOOTSTRAP_DRAWS, len(one)))
    again = [conditional(rows[drawn].sum(1)) for rows in (one, other)]
    gap = conditional(one.sum(0)) - conditional(other.sum(0))
    return gap, (again[0] - again[1]).std(0, ddof=1)


def table(seen: dict[Run, np.ndarray]) -> Table:
    """Returns the layout of Table 1, the paper's figure alongside each of ours."""
    steps = [f"draft step {step + 1}" for step in range(DEPTH)]
    shown = Table(
        "setting", "trained", *steps, "tokens per round", "paper: LLaMA-2-7B", box=box.MARKDOWN
    )
    for run, rows in seen.items():
        shares = conditional(rows.sum(0))
        paper = PAPER.get(run.setting)
        shown.add_row(
            run.setting,
            f"{len(run.curve)} steps",
            *(f"{share:.1%}" for share in shares),
            f"{tokens_per_round(rows.sum(0)):.2f}",
            "" if paper is None else " ".join(f"{share:.0%}" for share in paper),
        )
    return shown


def by_class(seen: dict[Run, np.ndarray], kinds: Sequence[str], count: int) -> Table:
    shown = Table("tokens per round", "trained", *kinds, box=box.MARKDOWN)
    for run, rows in seen.items():
        parts = rows.reshape(len(kinds), count, -1).sum(1)
        shown.add_row(
            run.setting,
            f"{len(run.curve)} steps",
            *(f"{value:.2f}" for value in tokens_per_round(parts)),
        )
    return shown


def words(seen: dict[Run, np.ndarray]) -> list[str]:
    """Returns the full head against each other that was trained for as many steps."""
    lines = ["Differences by draft step +- standard error over prompts; sure beyond two of them."]
    for group in trained_heads.alike(list(seen)).values():
        full = [run for run in group if run.setting == "Lyanna"]
        for one in full[:1]:
            for other in group:
                if other is not one:
                    gaps = ", ".join(
                        f"{100 * gap:+.1f} +- {100 * error:.1f}{verdict(gap, error)}"
                        for gap, error in zip(*lead(seen[one], seen[other]), strict=True)
                    )
                    lines.append(f"{one.name} against {other.setting}: {gaps} points.")
    return lines


def verdict(gap: float, error: float) -> str:
    if abs(gap) <= 2 * error:
        return " (level)"
    return "" if gap > 0 else " (behind)"


if __name__ == "__main__":
    command(main)
