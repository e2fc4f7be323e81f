"""DySpec's latencies (Xiong et al. 2024): Tables 1 to 4 with times, and Figure 4.

python -m benchmarks.dyspec --out dyspec.jsonl                    # Tables 1 to 3: 64 nodes
python -m benchmarks.dyspec --budget 768 --out dyspec.jsonl       # Table 4
"""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks import model_pairs, options
from benchmarks.dyspec import components, sweep, table
from benchmarks.dyspec.contenders import Workload
from benchmarks.harness import command, headline
from benchmarks.ledger import Ledger

METHODS = (
    "dyspec",
    "threshold",
    "dyspec beam 8",
    "calibrated_dyspec",
    "coupled_tree",
    "sequoia",
    "sequoia coupled",
    "specinfer",
    "speculative_decoding",
)
"""Methods of the table. Those not called coupled verify by rejection, at the draft's temperature
at T = 0 too. `sequoia coupled` at T = 0 takes the draft's likeliest tokens, as Sequoia's authors
do when decoding greedily."""
ALIKE = ("threshold", "dyspec beam 8", "sequoia coupled", "specinfer")
"""Methods whose rounds have the same parts as those of another."""
PARTS = ("table", "components", "sweep")
LONG_CLASSES = "stories,books,speeches"
"""Classes of the shared texts that have 128 tokens, the paper's prompt."""


def main(
    model: options.Model = None,
    draft_model: options.DraftModel = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = LONG_CLASSES,
    budget: Annotated[int, typer.Option(min=1, help="drafted nodes; 64 and 768 in the paper")] = 64,
    parts: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(PARTS)}")] = ",".join(
        PARTS
    ),
    methods: Annotated[str, typer.Option(help="comma-separated")] = ",".join(METHODS),
    temperatures: Annotated[
        str, typer.Option(help="temperatures of the target, comma-separated")
    ] = "0,0.6",
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    count: Annotated[int, typer.Option(min=1, help="Prompts per class and seed.")] = 1,
    prompt_tokens: options.PromptTokens = 128,
    new_tokens: options.NewTokens = 128,
    rounds: Annotated[int, typer.Option(min=1, help="rounds that components are timed in")] = 12,
    timed: Annotated[bool, typer.Option("--timed/--untimed")] = True,
    out: Annotated[
        Path | None,
        typer.Option(help="JSON lines: what is there is not measured again; PNGs go beside it"),
    ] = None,
) -> None:
    """Runs at batch 1, 128 tokens after the first 128 of a text as in the paper; the draft is
    sampled at temperature 0.6 whatever the target's.
    """
    ledger = Ledger(out)
    pair = model_pairs.pair(model, draft_model, questions, prompts, classes)
    work = Workload(pair, count, seeds, prompt_tokens, new_tokens)
    names, wanted = methods.split(","), parts.split(",")
    targets = [float(temperature) for temperature in temperatures.split(",")]
    picture = (lambda part: out.with_name(f"{out.stem}_{part}.png")) if out else lambda part: None
    if "table" in wanted:
        headline(f"{pair.name}: {budget} nodes, batch 1, {new_tokens} tokens, {seeds} seeds")
        table.report(ledger, work, names, budget, targets, timed)
    if "components" in wanted:
        different = [name for name in names if name not in ALIKE]
        components.report(
            ledger, work, different, budget, targets[-1], table.DRAFT_TEMPERATURE, rounds,
            picture("components"),
        )  # fmt: skip
    if "sweep" in wanted:
        sweep.report(ledger, work, targets, picture("sweep"))


if __name__ == "__main__":
    command(main)
