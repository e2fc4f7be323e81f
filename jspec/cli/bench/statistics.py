"""Figures of a bench: speed-ups with their spread, tokens per round, differing tokens."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jspec.cli.bench.ledger import Row

_SHARE = 0.1
"""The least part of a run that its answer took, for a difference of two times to say how long."""


def geometric_mean(values: Iterable[float]) -> float:
    """Returns the mean of ratios; NaN of nothing."""
    return spread(values)[0]


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Returns the geometric mean, and its bounds at two standard errors of the logarithms."""
    logs = [math.log(value) for value in values]
    if not logs:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(logs)
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return math.exp(mean), math.exp(mean - 2 * error), _exp(mean + 2 * error)


def quartiles(values: Sequence[float]) -> tuple[float, float, float, float, float]:
    """Returns the least, the quartiles and the largest value, interpolated between neighbours."""
    if len(values) == 1:
        value = values[0]
        return value, value, value, value, value
    inner = statistics.quantiles(values, n=4, method="inclusive")
    return min(values), inner[0], inner[1], inner[2], max(values)


def first_difference(ours: Sequence[int], plain: Sequence[int]) -> int | None:
    """Returns the index of the first differing token, from 0; None if all are the same."""
    if list(ours) == list(plain):
        return None
    pairs = enumerate(zip(ours, plain, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(ours), len(plain)))


def speedup(row: Row) -> float:
    """Returns tokens per second over plain decoding's: the median of neighbours in time."""
    return statistics.median(_ratios(row["plain_seconds"], row["seconds"])) * _longer(row)


def decode_speedup(row: Row) -> float | None:
    """Returns the same without reading the prompt; None where that took nearly all the time."""
    ours, plain = _after_prompt(row), _after_prompt(row, "plain_")
    if ours is None or plain is None:
        return None
    return statistics.median(_ratios(plain, ours)) * _longer(row)


def decode_seconds(row: Row) -> float | None:
    """Returns the median time of a row after its prompt; None if the clock cannot tell."""
    seconds = _after_prompt(row)
    return None if seconds is None else statistics.median(seconds)


def repeats_differ(rows: Iterable[Row]) -> tuple[float, float]:
    """Returns the quartiles of all repeats' speed-ups, each over the median of its prompt."""
    relative = []
    for row in rows:
        ratios = _ratios(row["plain_seconds"], row["seconds"])
        relative += [ratio / statistics.median(ratios) for ratio in ratios]
    _, low, _, high, _ = quartiles(relative)
    return low, high


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Returns the ratios of times that are neighbours."""
    return [upper / lower for upper, lower in zip(above, below, strict=True)]


def _after_prompt(row: Row, whose: str = "") -> list[float] | None:
    """Returns the time after the prompt in each repeat; None if it is lost in noise."""
    seconds = row[f"{whose}seconds"]
    # Prompts are timed apart: one that a busy machine held up must not be taken off an answer.
    prefill = statistics.median(row[f"{whose}prefill_seconds"])
    if prefill > (1 - _SHARE) * min(seconds):
        return None
    return [total - prefill for total in seconds]


def _longer(row: Row) -> float:
    """Returns the tokens of a method over plain decoding's; 1 wherever the two say the same."""
    # Of a model that has no token to write, both have none.
    return max(row["num_tokens_together"], 1) / max(row["plain_num_tokens_together"], 1)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


@dataclass(frozen=True)
class Summary:
    """A contender's rows in figures, of all classes or of one."""

    name: str
    is_peer: bool
    num_prompts: int
    tokens_per_round: float
    tokens_per_second: float
    """From prompt to last token, all prompts together."""
    decode_tokens_per_second: float
    """Without reading the prompts."""
    speedup: float
    """The geometric mean over prompts, reading them included."""
    bounds: tuple[float, float]
    """The mean at two standard errors."""
    decode_speedup: float
    """The geometric mean over prompts without reading them."""
    quartiles: tuple[float, float, float, float, float]
    compared: bool
    """False where the tokens need not be plain decoding's: they are drawn with other noise."""
    repeats: tuple[float, float]
    """Spread of repeats: quartiles of their speed-ups over the median of their prompt."""
    differing: tuple[tuple[str, int], ...]
    """Questions with other tokens than plain decoding's, and the place of the first."""


def summarise(name: str, rows: Sequence[Row]) -> Summary:
    """Returns the figures of one contender's rows."""
    gains = [speedup(row) for row in rows]
    mean, low, high = spread(gains)
    # Rows that ran together share their seconds.
    seconds = sum(statistics.median(row["seconds"]) / row["num_together"] for row in rows)
    pairs = [(row, decode_seconds(row)) for row in rows]
    decoding = sum(
        duration / row["num_together"] for row, duration in pairs if duration is not None
    )
    tokens = sum(row["num_tokens"] for row in rows)
    decoded = sum(row["num_tokens"] for row, duration in pairs if duration is not None)
    return Summary(
        name=name,
        is_peer=rows[0]["peer"],
        num_prompts=len(rows),
        tokens_per_round=tokens / max(sum(row["num_rounds"] for row in rows), 1),
        tokens_per_second=tokens / seconds,
        decode_tokens_per_second=decoded / decoding if decoding else math.nan,
        speedup=mean,
        bounds=(low, high),
        decode_speedup=geometric_mean(
            gain for gain in map(decode_speedup, rows) if gain is not None
        ),
        quartiles=quartiles(gains),
        compared=rows[0]["compared"],
        repeats=repeats_differ(rows),
        differing=tuple(
            (row["question"], row["first_difference"])
            for row in rows
            if row["first_difference"] is not None
        ),
    )


@dataclass(frozen=True)
class BenchReport:
    """All figures of a run."""

    summaries: dict[str, Summary]
    """Of each contender over all prompts, plain decoding first."""
    by_class: dict[str, dict[str, Summary]]
    """Of each class, of each contender."""


def report(rows: Sequence[Row], names: Sequence[str]) -> BenchReport:
    """Returns the figures of the rows, over all and by class."""
    by_name = {name: [row for row in rows if row["method"] == name] for name in names}
    by_name = {name: mine for name, mine in by_name.items() if mine}
    classes = dict.fromkeys(row["category"] for row in sorted(rows, key=lambda row: row["prompt"]))
    return BenchReport(
        {name: summarise(name, mine) for name, mine in by_name.items()},
        {
            kind: {
                name: summarise(name, of_kind)
                for name, mine in by_name.items()
                if (of_kind := [row for row in mine if row["category"] == kind])
            }
            for kind in classes
        },
    )
