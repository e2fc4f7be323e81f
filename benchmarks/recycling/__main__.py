"""Token Recycling's experiments (Luo et al. 2024): Table 1, its shuffled row, Figs. 3 and 4.

python -m benchmarks.recycling --out FILE                          # Table 1, by class of prompt
python -m benchmarks.recycling --out FILE --questions question.jsonl    # a file of Spec-Bench
python -m benchmarks.recycling --out FILE --classes mbpp           # its columns of MBPP
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
import typer

from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Subject
from benchmarks.recycling import figures
from benchmarks.recycling.bench import Bench, ahead
from benchmarks.recycling.settings import PARTS, Rows, rows, table
from benchmarks.recycling.shares import shares, show
from benchmarks.recycling.tables import layout
from benchmarks.recycling.wordings import task, wording
from jspec._validate.errors import InputError
from jspec.cli.bench.questions import Question


def main(
    out: options.Out = None,
    model: options.Model = None,
    head: options.Head = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    parts: Annotated[str, typer.Option(help=f"comma-separated, of {', '.join(PARTS)}")] = "table",
    only: Annotated[str | None, typer.Option(help="labels of rows, separated by ;")] = None,
    count: Annotated[int, typer.Option(min=0, help="per class; 0: all of a file")] = 4,
    nodes: Annotated[int | None, typer.Option(min=1, help="drafted nodes, for all alike")] = None,
    datastore: Annotated[
        Path | None, typer.Option(help="file of jspec datastore, for REST")
    ] = None,
    tree: Annotated[
        Path | None, typer.Option(help="template of benchmarks.recycling.measured_tree")
    ] = None,
    prompt_tokens: options.PromptTokens = 48,
    new_tokens: options.NewTokens = 128,
    timed: Annotated[bool, typer.Option("--timed/--untimed")] = True,
    loops: Annotated[bool, typer.Option(help="go on where a text only repeats itself")] = False,
    seed: Annotated[int, typer.Option(help="seed of the shuffled order")] = 0,
) -> None:
    """Decodes greedily at batch 1; a method without a trained head or datastore is left out.

    The paper answers whole questions of Spec-Bench with up to 1,024 tokens.
    """
    subject = model_pairs.subject(model, questions, prompts, classes)
    asked = by_task(subject, count)
    words = wording(subject.target, subject.texts)
    bench = Bench(subject.target, words, new_tokens, prompt_tokens, timed, loops)
    heads = {} if head is None else {"head": head}
    ledger, known = Ledger(out), table(nodes, datastore, tree, heads)
    about = dict(
        bench="recycling", **subject.about, backend=jax.default_backend(), nodes=nodes,
        new_tokens=new_tokens, prompt_tokens=prompt_tokens, timed=timed, loops=loops, count=count,
        classes=list(subject.classes),
    )  # fmt: skip
    for part in parts.split(","):
        headline(f"{subject.name}: {part}, greedy, batch 1, {new_tokens} new tokens a turn")
        if part == "time":
            show(divided(bench, Ledger(out, about | {"part": "time"}), asked))
            continue
        order = list(asked)
        if part == "shuffled":
            random.Random(seed).shuffle(order)
        wanted = {
            label: row
            for label, row in rows(part, known).items()
            if only is None or label in only.split(";")
        }
        answered = answer(bench, ledger, wanted, order, about | dict(part=part, seed=seed))
        _print(answered, timed)
        if out is not None and part in figures.AXES:
            picture = out.with_name(f"{out.stem}_{part}.png")
            figures.draw(picture, part, answered, subject.name)
            console.print(f"figure: {picture}", soft_wrap=True)
    if bench.num_cut:
        console.print(
            f"{bench.num_cut} times a chat was longer than {bench.room} tokens: its end was read."
        )
    cells = subject.target.model.vocab_size * 8 * 4
    console.print(
        f"The matrix: {subject.target.model.vocab_size:,} lines of 8 tokens, {cells / 2**20:.2f} "
        "MiB; the dynamic one holds a probability beside each, twice as much. Of 32,000 tokens it "
        "has 0.98 MiB (the paper: under 2 MB), of 128,256 tokens 3.91 MiB."
    )


def by_task(subject: Subject, count: int) -> list[Question]:
    """`count` questions of each task, the tasks one after the other; 0: all that a file has."""
    most = count or 1 << 20
    tasks: dict[str, list[Question]] = {}
    for kind in subject.classes:
        for question in subject.texts.some(kind, most):
            tasks.setdefault(task(kind), []).append(question)
    return [one for found in tasks.values() for one in found[:: max(1, len(found) // most)][:most]]


def divided(bench: Bench, ledger: Ledger, asked: list[Question]) -> list[dict[str, Any]]:
    """Seconds of each piece of a round by question, from the ledger where it has them."""
    for question in asked:
        if not ledger.find(question=question.name):
            ledger.add(question=question.name, pieces=shares(bench, question))
    return ledger.rows


def answer(
    bench: Bench, ledger: Ledger, wanted: Rows, order: list[Question], about: dict[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """The answers by label, from the ledger where it has them."""
    answered: dict[str, list[dict[str, Any]]] = {}
    for label, row in wanted.items():
        this = about | dict(method=label, options=row.told, cold=row.cold)
        if not ledger.find(**this):
            try:
                made = row.make(bench.target)
            except (InputError, OSError) as reason:
                console.print(f"{label}: left out, {reason}")
                continue
            with console.status(label):
                ledger.add(**this, rows=list(bench.answers(made, order, row.cold)))
        answered[label] = ledger.find(**this)[-1]["rows"]
    return answered


def _print(answered: dict[str, list[dict[str, Any]]], timed: bool) -> None:
    if not answered:
        return
    console.print(layout(answered, timed))
    kinds = list(dict.fromkeys(row["kind"] for row in next(iter(answered.values()))))
    for label, found in answered.items():
        if differing := [row["question"] for row in found if not row.get("same", True)]:
            console.print(f"{label}: other tokens than plain decoding in {differing}")
    for label, gains in ahead(answered).items():
        told = ", ".join(f"{kind} {gain:+.1%}" for kind, gain in zip(kinds, gains, strict=True))
        console.print(f"{label}, MAT over the best single method's: {told}")


if __name__ == "__main__":
    command(main)
