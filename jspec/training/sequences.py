"""Training sequences, token rows of one length, and their order."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jspec._validate import plain_json
from jspec._validate.errors import InputError
from jspec.training import corpus


class Row(NamedTuple):
    """A prompt and what a model wrote after it."""

    tokens: list[int]
    num_prompt: int
    """Tokens of the prompt, which heads read and are not asked to foretell."""


@dataclass(frozen=True)
class Sequences:
    """M rows of tokens, all of one length."""

    tokens: Int[np.ndarray, "M T+1"]
    live: Bool[np.ndarray, "M T+1"]
    """True where a token is to be foretold; prompts and the padding behind the text are not."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits for the tokens and their order."""
        shape = str(self.tokens.shape).encode()
        return hashlib.sha256(shape + self.tokens.tobytes() + self.live.tobytes()).hexdigest()[:16]

    def counts(self, vocab_size: int) -> Int[np.ndarray, " V"]:
        """Returns the number of times that each token is to be foretold."""
        return np.bincount(self.tokens[self.live], minlength=vocab_size)


def fill(rows: Iterable[Row], length: int) -> Sequences:
    """Returns rows kept whole: each sequence holds as many, in their order, as fit.

    A row that is longer than a sequence is cut to several. Rows behind others see those, as the
    documents of a language model's training do.

    Raises:
        InputError: if all rows together are shorter than one sequence.
    """
    room = length + 1
    pieces = [
        np.stack([row.tokens[i : i + room], np.arange(len(row.tokens))[i : i + room] >= first])
        for row, first in ((row, row.num_prompt) for row in rows)
        for i in starts(row.tokens, room)
    ]
    _check(sum(piece.shape[1] for piece in pieces), length)
    tokens: list[list[np.ndarray]] = []
    free = 0
    for piece in pieces:
        if piece.shape[1] > free:
            tokens.append([])
            free = room
        tokens[-1].append(piece)
        free -= piece.shape[1]
    filled = np.zeros((len(tokens), room), np.int32)
    live = np.zeros((len(tokens), room), bool)
    for place, members in enumerate(tokens):
        row = np.concatenate(members, axis=1)
        filled[place, : row.shape[1]] = row[0]
        live[place, : row.shape[1]] = row[1]
    return Sequences(filled, live)


def starts(row: Sequence[int], room: int) -> range:
    """Returns offsets of a row's pieces; a single last token is left out."""
    return range(0, max(len(row) - 1, 0), room)


def cut(rows: Iterable[Sequence[int]], length: int) -> Sequences:
    """Returns rows joined to one stream, which is cut anywhere.

    Neighbours overlap by one token, so each is predicted once; the rest at the end is left out.

    Raises:
        InputError: if the stream is shorter than one sequence.
    """
    stream = _stream(rows)
    _check(len(stream), length)
    starts = np.arange((len(stream) - 1) // length)[:, None] * length
    tokens = stream[starts + np.arange(length + 1)]
    return Sequences(tokens, np.ones(tokens.shape, bool))


def _stream(rows: Iterable[Sequence[int]]) -> Int[np.ndarray, " S"]:
    return np.concatenate([np.zeros(0, np.int32), *(np.asarray(row, np.int32) for row in rows)])


def _check(total: int, length: int) -> None:
    """Raises InputError if so many tokens are less than one sequence."""
    if total <= length:
        raise InputError(
            f"the text holds {total} tokens but one sequence needs {length + 1}; "
            f"give more text or a sequence <= {max(total - 1, 1)}"
        )


def holds_rows(path: Path) -> bool:
    """Returns True where a file holds rows of tokens, as `jspec train data` writes them."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            first = plain_json.parse(file.readline())
        except json.JSONDecodeError:
            return False
    return isinstance(first, dict) and isinstance(first.get("tokens"), list)


def read(path: Path, vocab_size: int) -> list[Row]:
    """Returns the rows of such a file; a last line that is still being written is left out.

    A row whose `holds_prompt` is true begins with `prompt_tokens` tokens of a prompt. One with
    `prompt_ids`, as `jspec generate --json` writes it, has its prompt there. All else is text.

    Raises:
        InputError: if a row is not a list of token ids below `vocab_size`.
    """
    rows = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = _row(plain_json.parse(line))
            right = type(row.tokens) is list and all(
                type(token) is int and 0 <= token < vocab_size for token in row.tokens
            )
        except (ValueError, KeyError, TypeError):
            right = False
        if not right:
            raise InputError(
                f"{path}, line {number} has no tokens of a vocabulary of {vocab_size}; write the "
                f"file with jspec train data and the same model"
            )
        rows.append(row)
    return rows


def _row(fields: Any) -> Row:
    tokens = fields["tokens"]
    if "prompt_ids" in fields and not fields.get("holds_prompt"):
        return Row(fields["prompt_ids"] + tokens, len(fields["prompt_ids"]))
    return Row(tokens, int(fields.get("prompt_tokens", 0)))


def split(rows: Sequence[Row], fraction: float) -> tuple[list[Row], list[Row]]:
    """Splits into (train, held out) by each row's own digest."""
    by_text = {json.dumps(row.tokens): row for row in rows}
    train, out = corpus.split([json.dumps(row.tokens) for row in rows], fraction)
    return [by_text[row] for row in train], [by_text[row] for row in out]


def join(parts: Sequence[Sequences]) -> Sequences:
    """Returns the sequences of all parts, one behind the other; classes come in `order`'s order."""
    return Sequences(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.live for part in parts]),
    )


def order(
    sizes: Mapping[str, int], weights: Mapping[str, float], count: int, seed: int
) -> Int[np.ndarray, " count"]:
    """Returns the class of each row drawn by weight, in shuffled epochs.

    Args:
        sizes: members of each class.

    Returns:
        Members, counted through all classes in their order. The first do not depend on `count`.
    """
    labels = list(sizes)
    shares = np.array([weights[label] for label in labels], np.float64)
    draws = np.random.default_rng([seed, 0]).random(count)
    classes = np.searchsorted(np.cumsum(shares / shares.sum()), draws, side="right")
    classes = np.minimum(classes, len(labels) - 1)
    members = np.empty(count, np.int64)
    base = 0
    for index, label in enumerate(labels):
        size, rows = sizes[label], np.flatnonzero(classes == index)
        generator = np.random.default_rng([seed, 1, index])
        epochs = [generator.permutation(size) for _ in range(-(-len(rows) // size))]
        if epochs:
            members[rows] = base + np.concatenate(epochs)[: len(rows)]
        base += size
    return members
