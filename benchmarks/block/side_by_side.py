"""Heads of all kinds beside each other: tokens per round at equal nodes, alone and with retrieval.

python -m benchmarks.block.side_by_side --model smollm2-135m --head runs/block --head runs/eagle \
    --questions question.jsonl --out side_by_side.jsonl
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

import jspec
from benchmarks import model_pairs, options, texts
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Subject
from benchmarks.texts import Prompts
from benchmarks.whole_rounds import Decoding
from jspec.models import heads

ALONE = {"block": "block", "eagle": "eagle2", "lyanna": "lyanna", "medusa": "medusa"}
"""The method of each kind of head."""
JOINED = {
    "auto": "auto",
    "dynamic_token_recycling": "{}+token_recycling",
    "suffix": "{}+suffix",
}
"""Methods of retrieval, each with the method that unites its tree with that of a head's method."""


def main(
    head: Annotated[list[str], typer.Option(metavar="DIR|NAME", help="Each trained head.")],
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    nodes: Annotated[str, typer.Option(help="Drafted nodes, comma-separated.")] = "15,63",
    temperatures: Annotated[str, typer.Option(help="Comma-separated.")] = "0,1",
    alone: Annotated[bool, typer.Option(help="Each head without retrieval too.")] = True,
    partner: Annotated[str, typer.Option(help=f"Retrieval: {', '.join(JOINED)}.")] = "auto",
    count: Annotated[int, typer.Option(min=0, help="Prompts per class; 0: all.")] = 1,
    longest: Annotated[int, typer.Option(help="Prompts of more tokens are left out.")] = 96,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 48,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts decoded together.")] = 4,
    remember: Annotated[
        bool, typer.Option(help="Keep a drafter's memory from batch to batch, as a chat does.")
    ] = False,
    out: options.Out = None,
) -> None:
    """Counts the rounds of the same prompts, up to the one that reaches the limit, whole."""
    subject = model_pairs.subject(model, questions, prompts, classes, scan_layers=True)
    ledger = Ledger(out)
    asked = list(chosen(subject, count, prompt_tokens, longest))
    kinds = [kind for kind, _ in asked]
    headline(
        f"{subject.name}: {len(asked)} prompts of {len(set(kinds))} classes, {new_tokens} tokens "
        "each"
    )
    about: dict[str, Any] = dict(
        bench="side_by_side", **subject.about, count=count, longest=longest,
        prompt_tokens=prompt_tokens, new_tokens=new_tokens, ends=True,
    )  # fmt: skip
    if remember:
        about |= {"remembers": batch_size}
    if partner != "auto":
        about |= {"retrieval": partner}
    warm = [float(one) for one in temperatures.split(",")]
    rows: list[dict[str, Any]] = []
    for size in map(int, nodes.split(",")):
        for name, method, given in contenders(subject, head, alone, partner):
            for temperature in warm:
                one = dict(about, nodes=size, drafter=name, temperature=temperature)
                if not ledger.find(**one):
                    with console.status(f"{name}, {size} nodes, T {temperature:g}"):
                        made = drafting(subject, method, given, size, new_tokens)
                        ids = [ids for _, ids in asked]
                        ends = subject.target.eos or None
                        found = counted(made, ids, batch_size, temperature, remember, ends)
                    ledger.add(**one, **found)
                rows.append(ledger.find(**one)[-1])
    console.print(table(rows, warm))
    console.print(by_class(rows, kinds))


def chosen(
    subject: Subject, count: int, tokens: int, longest: int
) -> Iterator[tuple[str, list[int]]]:
    """`count` prompts of each class that has so many short ones, or all; its name and their ids."""
    for kind in subject.classes:
        every = len(subject.texts.some(kind, 1 << 30))
        found = subject.texts.choose(subject.target, kind, every, tokens)
        short = [ids for _, ids in found if len(ids) <= longest]
        if len(short) >= count:
            yield from ((kind, ids) for ids in short[: count or None])


def contenders(
    subject: Subject, named: Sequence[str], alone: bool, partner: str
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, method and options of all that is compared; retrieval alone is the first."""
    yield "retrieval", partner, {}
    for name in named:
        kind = heads.kind_of(heads.load(name, subject.target).head)
        where: dict[str, Any] = {"head": name}
        if alone:
            yield f"{kind}: {Path(name).name}", ALONE[kind], where
        yield (
            f"{kind}: {Path(name).name}, with retrieval",
            JOINED[partner].format(ALONE[kind]),
            where,
        )


def drafting(
    subject: Subject, method: str, given: dict[str, Any], size: int, new_tokens: int
) -> Decoding:
    """A method with a budget of nodes that every round verifies."""
    fixed: dict[str, Any] = {"widths": (size,)} if method == "auto" else {}
    built = jspec.methods.build(
        method, subject.target, num_speculative_tokens=size, **fixed, **given
    )
    params = subject.target.params
    return Decoding(built.model, params, built.drafter, built.drafter_params, new_tokens)


def counted(
    one: Decoding,
    prompts: Sequence[Sequence[int]],
    batch_size: int,
    temperature: float,
    remember: bool,
    ends: tuple[int, ...] | None,
) -> dict[str, list[int]]:
    """Tokens and rounds of each prompt, up to an end; every batch runs the same program."""
    width, memory = max(map(len, prompts)), None
    found = []
    for first in range(0, len(prompts), batch_size):
        part = list(prompts[first : first + batch_size])
        filled = texts.pad([*part, *[part[-1]] * (batch_size - len(part))])
        tokens = np.zeros((batch_size, width), np.int32)
        tokens[:, : filled.tokens.shape[1]] = filled.tokens
        sampling = jspec.Sampling(temperature)
        asked = Prompts(tokens, filled.lengths)
        told = one.count(asked, drafter_state=memory, sampling=sampling, key=0, eos=ends)
        memory = told.memory if remember else None
        found.append([values[: len(part)] for values in (told.tokens, told.rounds)])
    tokens, rounds = (np.concatenate(values).tolist() for values in zip(*found, strict=True))
    return {"tokens": tokens, "rounds": rounds}


def mean(row: dict[str, Any], where: np.ndarray | slice = slice(None)) -> float:
    """Tokens per round over some prompts."""
    return float(np.sum(np.array(row["tokens"])[where]) / np.sum(np.array(row["rounds"])[where]))


def table(rows: Sequence[dict[str, Any]], warm: Sequence[float]) -> Table:
    """Tokens per round, a line for each drafter and number of nodes."""
    shown = Table(*("nodes", "drafter", *(f"T {one:g}" for one in warm)), "kept", box=box.MARKDOWN)
    for first in range(0, len(rows), len(warm)):
        group = rows[first : first + len(warm)]
        means = [mean(row) for row in group]
        cells = (f"{one:.2f}" for one in means)
        shown.add_row(
            str(group[0]["nodes"]), group[0]["drafter"], *cells, f"{means[-1] / means[0]:.0%}"
        )
    return shown


def by_class(rows: Sequence[dict[str, Any]], kinds: Sequence[str]) -> Table:
    """The same by class of prompts."""
    named = list(dict.fromkeys(kinds))
    shown = Table("nodes", "drafter", "T", *named, box=box.MARKDOWN)
    for row in rows:
        parts = (mean(row, np.array(kinds) == kind) for kind in named)
        cells = (f"{part:.2f}" for part in parts)
        shown.add_row(str(row["nodes"]), row["drafter"], f"{row['temperature']:g}", *cells)
    return shown


if __name__ == "__main__":
    command(main)
