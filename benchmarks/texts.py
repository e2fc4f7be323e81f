"""Texts that the models of a bench continue or answer: shared ones, or a file of one's own."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from jaxtyping import Int

from benchmarks.prompts import texts
from jspec._validate.errors import InputError
from jspec.cli.bench import chat, questions
from jspec.cli.bench.questions import Question
from jspec.models import Loaded


class Prompts(NamedTuple):
    """The prompts of a batch, padded on the right."""

    tokens: Int[np.ndarray, "B T"]
    lengths: Int[np.ndarray, " B"]

    @property
    def count(self) -> int:
        return len(self.lengths)

    def take(self, rows) -> "Prompts":
        """Returns some of the rows: a slice, or their numbers."""
        return Prompts(self.tokens[rows], self.lengths[rows])


def pad(rows: Sequence[Sequence[int]]) -> Prompts:
    """Returns rows of token ids as one batch.

    Example:
        >>> pad([[1, 2, 3], [4]]).tokens.tolist()
        [[1, 2, 3], [4, 0, 0]]
    """
    lengths = np.array([len(row) for row in rows])
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    for row, ids in zip(tokens, rows, strict=True):
        row[: len(ids)] = ids
    return Prompts(tokens, lengths)


def join(parts: Sequence[Prompts]) -> Prompts:
    """Returns batches one after the other."""
    rows = [part.tokens[row, : part.lengths[row]] for part in parts for row in range(part.count)]
    return pad([row.tolist() for row in rows])


def continued(prompts: Prompts, tokens: Int[np.ndarray, "B N"]) -> Prompts:
    """Returns each prompt with what was written after it."""
    return pad(
        [
            [*row[:size].tolist(), *more.tolist()]
            for row, size, more in zip(*prompts, tokens, strict=True)
        ]
    )


Chosen = list[tuple[Question, list[int]]]
"""Questions, each with the token ids of its prompt."""


class Texts(Protocol):
    """Sources of prompts."""

    @property
    def name(self) -> str:
        """Settings that identify these texts."""
        ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    def some(self, kind: str, count: int) -> list[Question]:
        """Takes at most `count` of a class, spread over it."""
        ...

    def choose(self, target: Loaded, kind: str, count: int, tokens: int) -> Chosen:
        """Returns `count` prompts of a class.

        Args:
            target: whose tokens they are.
            kind: the class.
            count: how many.
            tokens: the first so many of a text to continue; 0: all. Questions are whole.

        Raises:
            InputError: if the class has too few.
        """
        ...


@dataclass(frozen=True)
class Shared:
    """The texts of `benchmarks.prompts`, cut to their beginnings."""

    classes: tuple[str, ...]
    name: str = "shared"

    def some(self, kind: str, count: int) -> list[Question]:
        return [
            Question(f"{kind}-{index}", kind, (text,), f"text {index} of {kind}")
            for index, text in enumerate(texts(kind, count))
        ]

    def choose(self, target: Loaded, kind: str, count: int, tokens: int) -> Chosen:
        # Many are asked for at first, since the short ones drop out.
        return _beginnings(target, self.some(kind, 8 * count), kind, count, tokens)


@dataclass(frozen=True)
class PromptLines:
    """A file of prompts, one a line, each cut to its beginning."""

    name: str
    questions: tuple[Question, ...]
    classes: tuple[str, ...] = ("prompts",)

    def some(self, kind: str, count: int) -> list[Question]:
        del kind
        return questions.choose(self.questions, count)

    def choose(self, target: Loaded, kind: str, count: int, tokens: int) -> Chosen:
        return _beginnings(target, self.questions, kind, count, tokens)


@dataclass(frozen=True)
class ChatQuestions:
    """A file of questions, whole, in the target's chat template where it has one."""

    name: str
    questions: tuple[Question, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(question.category for question in self.questions))

    def some(self, kind: str, count: int) -> list[Question]:
        return questions.choose([one for one in self.questions if one.category == kind], count)

    def choose(self, target: Loaded, kind: str, count: int, tokens: int) -> Chosen:
        del tokens
        found, wording = self.some(kind, count), chat.wording(target)
        _check_count(len(found), kind, count, "")
        return [(question, wording.ids(question.turns[:1], [])) for question in found]


def find(questions_file: Path | None, prompts_file: Path | None, classes: str) -> Texts:
    """Returns the texts that `--questions`, `--prompts` and `--classes` name.

    Raises:
        InputError: if a file cannot be read, or both are given.
    """
    if questions_file is not None and prompts_file is not None:
        raise InputError("--questions and --prompts were both given; give one of them")
    if questions_file is not None:
        return ChatQuestions(digest(questions_file), tuple(questions.read(questions_file)))
    if prompts_file is not None:
        return PromptLines(digest(prompts_file), tuple(questions.from_prompts(prompts_file)))
    return Shared(tuple(classes.split(",")))


def digest(path: Path) -> str:
    """Returns a text that tells one file's contents from another's.

    Raises:
        InputError: if it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name a file") from error


def _beginnings(
    target: Loaded, found: Sequence[Question], kind: str, count: int, tokens: int
) -> Chosen:
    wording = chat.Bare(target.tokenizer)
    encoded = ((question, wording.ids(question.turns[:1], [])) for question in found)
    long_enough = [
        (question, ids[: tokens or None]) for question, ids in encoded if len(ids) >= tokens
    ]
    _check_count(len(long_enough), kind, count, f" of at least {tokens} tokens")
    return long_enough[:: len(long_enough) // count][:count]


def _check_count(found: int, kind: str, count: int, what: str) -> None:
    if found < count:
        raise InputError(
            f"class {kind} has {found} prompts{what} and {count} were asked for; ask for fewer or "
            "shorter ones"
        )
