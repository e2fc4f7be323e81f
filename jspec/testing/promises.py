"""Promises, the error about a broken one, and the report of a check that found none."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jspec._validate.errors import InputError
from jspec.types import Result, Status


@dataclass
class Report:
    """The report of a check that passed. A broken promise raises an AssertionError instead."""

    checked: list[str] = field(default_factory=list)
    """Promises that were kept."""
    skipped: list[str] = field(default_factory=list)
    """Promises that were not checked, each with its reason."""
    remarks: list[str] = field(default_factory=list)
    """Remarks on what costs speed and breaks nothing."""

    def __str__(self) -> str:
        parts = [("kept", self.checked), ("not checked", self.skipped), ("remark", self.remarks)]
        return "\n".join(f"{what}: {line}" for what, lines in parts for line in lines)


def promise(condition: Any, sentence: str) -> None:
    """Raises AssertionError with the sentence if the promise is not kept."""
    if not condition:
        raise AssertionError(sentence)


@contextmanager
def accepted_by_the_engine(what: str) -> Iterator[None]:
    """Turns refused inputs into broken promises of the code under test."""
    try:
        yield
    except InputError as error:
        raise AssertionError(f"{what}: jspec refuses it: {error}") from error


def same_tokens(result: Result, plain: Result, what: str, rows: np.ndarray | None = None) -> None:
    """Raises AssertionError unless tokens, lengths and status are those of plain decoding."""
    actual, reference = (
        [np.asarray(x) for x in (one.tokens, one.lengths, one.status)] for one in (result, plain)
    )
    actual[0] = actual[0][:, : reference[0].shape[1]]  # an output buffer may have more room
    if rows is not None:
        reference = [x[rows] for x in reference]
    for row in range(len(actual[0])):
        unlike = np.flatnonzero(actual[0][row] != reference[0][row])
        if unlike.size:
            place = int(unlike[0])
            part = slice(max(0, place - 2), place + 6)
            promise(
                False,
                f"{what}: row {row} leaves plain decoding at token {place}; tokens {part.start} to "
                f"{part.stop - 1} should be {reference[0][row, part].tolist()} and are "
                f"{actual[0][row, part].tolist()}",
            )
        promise(
            actual[1][row] == reference[1][row],
            f"{what}: row {row} should emit {reference[1][row]} tokens and emitted "
            f"{actual[1][row]}",
        )
        promise(
            actual[2][row] == reference[2][row],
            f"{what}: row {row} should end with status {Status(reference[2][row]).name} and has "
            f"{Status(actual[2][row]).name}",
        )


def consistent_stats(result: Result, what: str) -> None:
    """Raises AssertionError unless the rounds add up to the tokens that were emitted."""
    histogram, lengths = np.asarray(result.stats.acceptance_histogram), np.asarray(result.lengths)
    total = (histogram * (1 + np.arange(histogram.shape[1]))).sum(-1)
    for row in range(len(lengths)):
        promise(
            total[row] == lengths[row],
            f"{what}: the rounds of row {row} should add up to the {lengths[row]} tokens that it "
            f"emitted and add up to {total[row]}; histogram {histogram[row].tolist()}",
        )
    accepted = np.asarray(result.stats.num_accepted_tokens)
    drafted = np.asarray(result.stats.num_draft_tokens)
    for row in np.flatnonzero(accepted > drafted):
        promise(
            False,
            f"{what}: row {row} should not accept more drafted tokens than were verified, "
            f"{drafted[row]}, and accepted {accepted[row]}",
        )
