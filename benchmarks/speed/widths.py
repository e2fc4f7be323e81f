"""Are widths that are chosen round by round as good as the best fixed one, on a given cost curve?

python -m benchmarks.speed.widths --model smollm2-135m --questions question.jsonl --out widths.jsonl

Rounds are counted, and their time is read off the curve: nothing here depends on the machine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.table import Table

import jspec
from benchmarks import model_pairs, options
from benchmarks.harness import command, console, headline
from benchmarks.ledger import Ledger
from benchmarks.model_pairs import Subject
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._validate.kinds import check_number

FLAT = "1,1.02,1.03,1.05"
"""An accelerator's, on which a wide forward is nearly free."""
CPU = "1,1.42,1.6,2"
"""Of two AMD EPYC cores and SmolLM2-135M-Instruct in float32."""


def main(
    model: options.Model = None,
    questions: options.Questions = None,
    prompts: options.Prompts = None,
    classes: options.Classes = options.ALL_CLASSES,
    method: Annotated[str, typer.Option(help="Of the methods with chosen widths.")] = "auto",
    widths: Annotated[
        str, typer.Option(help="Drafted nodes of a round, rising from 0.")
    ] = "0,3,7,15",
    curve: Annotated[
        list[str],
        typer.Option(metavar="T,T,..", help="What a round of each width takes, in plain rounds."),
    ] = [FLAT, CPU],  # noqa: B006 (a default that typer copies)
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    count: Annotated[int, typer.Option(min=0, help="Prompts per class; 0: all.")] = 2,
    longest: Annotated[int, typer.Option(help="Prompts of more tokens are left out.")] = 512,
    prompt_tokens: options.PromptTokens = 24,
    new_tokens: options.NewTokens = 96,
    out: options.Out = None,
) -> None:
    """Decodes the same prompts with each width fixed, and with widths chosen for each curve."""
    buckets = widths_of(widths)
    times = [curve_of(text, buckets) for text in curve]
    subject = model_pairs.subject(model, questions, prompts, classes)
    asked = list(chosen(subject, count, prompt_tokens, longest))
    kinds = [kind for kind, _ in asked]
    headline(
        f"{subject.name}: {len(asked)} prompts of {len(set(kinds))} classes, {new_tokens} tokens "
        "each"
    )
    ledger = Ledger(out)
    about: dict[str, Any] = dict(
        bench="widths", **subject.about, method=method, temperature=temperature, count=count,
        longest=longest, prompt_tokens=prompt_tokens, new_tokens=new_tokens,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    for name, few, taken in contenders(buckets, times):
        one = dict(about, drafter=name, widths=[*few], curve=taken and [*taken])
        if not ledger.find(**one):
            with console.status(name):
                found = counted(subject, method, few, taken, asked, temperature, new_tokens)
            ledger.add(**one, **found)
        rows.append(ledger.find(**one)[-1])
    for curve_times in times:
        console.print(table(rows, kinds, dict(zip(buckets, curve_times, strict=True))))


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


def widths_of(text: str) -> tuple[int, ...]:
    """The widths of an option.

    Raises:
        InputError: if these are no rising numbers from 0.
    """
    given = text.split(",")
    if not all(one.strip().isdecimal() for one in given):
        raise InputError(f"widths is {text!r}; give numbers of drafted nodes, such as 0,3,7,15")
    buckets = tuple(int(one) for one in given)
    check_integer("the first of widths", buckets[0], 0, 0, "plain decoding")
    if len(buckets) < 2 or tuple(sorted(set(buckets))) != buckets:
        raise InputError(f"widths is {text!r}; give two or more, each above the one before")
    return buckets


def curve_of(text: str, buckets: Sequence[int]) -> tuple[float, ...]:
    """What a round of each width takes.

    Raises:
        InputError: if there is not one positive number for each width.
    """
    try:
        times = tuple(float(one) for one in text.split(","))
    except ValueError:
        raise InputError(f"curve is {text!r}; give numbers, such as {FLAT}") from None
    if len(times) != len(buckets):
        raise InputError(f"curve is {text!r}; give one number for each of {len(buckets)} widths")
    for one in times:
        check_number("a number of the curve", one, 0, None, above_low=True)
    return times


def contenders(
    buckets: Sequence[int], curves: Sequence[tuple[float, ...]]
) -> Iterator[tuple[str, tuple[int, ...], tuple[float, ...] | None]]:
    """Name, widths and curve of all that is compared: each width by itself, and each choice."""
    for width in buckets[1:]:
        yield f"{width} nodes in every round", (width,), None
    for times in curves:
        yield f"chosen, {', '.join(map('{:g}'.format, times))}", tuple(buckets), times


def counted(
    subject: Subject,
    method: str,
    widths: tuple[int, ...],
    curve: tuple[float, ...] | None,
    asked: Sequence[tuple[str, list[int]]],
    temperature: float,
    new_tokens: int,
) -> dict[str, Any]:
    """Tokens of each prompt, and its rounds of each width; what is learnt is kept between them."""
    target = subject.target
    built = jspec.methods.build(method, target, num_speculative_tokens=widths[-1], widths=widths)
    params: Any = built.drafter_params
    if curve is not None:
        points = {1 + width: seconds for width, seconds in zip(widths, curve, strict=True)}
        params = replace(params, costs=jspec.CostCurve.of(points))
    tokens, rounds, memory = [], [], None
    for number, (_, ids) in enumerate(asked):
        result = jspec.decode(
            built.model, target.params, np.array([ids]), drafter=built.drafter,
            drafter_params=params, drafter_state=memory, max_new_tokens=new_tokens,
            sampling=jspec.Sampling(temperature), key=number, eos=target.eos or None,
        )  # fmt: skip
        memory = result.drafter_state
        tokens.append(int(result.lengths[0]))
        rounds.append(np.asarray(result.stats.width_histogram[0]).tolist())
    return {"tokens": tokens, "rounds": rounds}


def speed(row: dict[str, Any], times: dict[int, float], here: np.ndarray) -> float:
    """Tokens for each plain round's time, over some prompts."""
    rounds = np.array(row["rounds"])[here].sum(0)
    seconds = rounds @ np.array([times[width] for width in row["widths"]])
    return float(np.array(row["tokens"])[here].sum() / seconds)


def table(rows: Sequence[dict[str, Any]], kinds: Sequence[str], times: dict[int, float]) -> Table:
    """Speed-ups by class on one curve, and what the choice has of the best fixed width's."""
    shown = Table("width", *dict.fromkeys(kinds), "all", box=box.MARKDOWN)
    parts = [np.array(kinds) == kind for kind in dict.fromkeys(kinds)]
    parts.append(np.ones(len(kinds), bool))
    fixed = [[1.0] * len(parts)]
    shown.add_row("0", *("1.00" for _ in parts))
    for row in rows:
        if row["curve"] is None:
            fixed.append([speed(row, times, part) for part in parts])
            shown.add_row(str(row["widths"][0]), *(f"{one:.2f}" for one in fixed[-1]))
    found = next(
        row for row in rows if row["curve"] and tuple(row["curve"]) == tuple(times.values())
    )
    chosen_ones = [speed(found, times, part) for part in parts]
    shown.add_row("chosen", *(f"{one:.2f}" for one in chosen_ones))
    for name, best in (("of the best", np.max(fixed, axis=0)), ("of the widest", fixed[-1])):
        shares = (f"{one / wanted:.0%}" for one, wanted in zip(chosen_ones, best, strict=True))
        shown.add_row(name, *shares)
    shown.title = f"a round takes {', '.join(map('{:g}'.format, times.values()))} plain ones"
    return shown


if __name__ == "__main__":
    command(main)
