"""The sequences that draft heads are trained on: token rows of one length, padded at the end."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from jspec._validate import plain_json
from jspec._validate.errors import InputError
from jspec.training import corpus, packing


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
        """The number of times that each token is to be foretold."""
        return np.bincount(self.tokens[self.live], minlength=vocab_size)


def fill(rows: Iterable[Row], length: int) -> Sequences:
    """Rows kept whole: each sequence holds as many, in their order, as fit.

    A row that is longer than a sequence is cut to several. Rows behind others see those, as the
    documents of a language model's training do.

    Raises:
        InputError: if all rows together are shorter than one sequence.
    """
    room = length + 1
    pieces = [
        np.stack([row.tokens[i : i + room], np.arange(len(row.tokens))[i : i + room] >= written])
        for row, written in ((row, row.num_prompt) for row in rows)
        for i in starts(row.tokens, room)
    ]
    packing.check(sum(piece.shape[1] for piece in pieces), length)
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
    """Offsets at which the pieces of a row begin; a single token at its end teaches nothing."""
    return range(0, max(len(row) - 1, 0), room)


def cut(rows: Iterable[Sequence[int]], length: int) -> Sequences:
    """Rows joined to one stream, which is cut anywhere: `packing.pack` of documents in tokens.

    Raises:
        InputError: if the stream is shorter than one sequence.
    """
    stream = np.concatenate([np.zeros(0, np.int32), *(np.asarray(row, np.int32) for row in rows)])
    tokens = packing.cut(stream, length)
    return Sequences(tokens, np.ones(tokens.shape, bool))


def holds_rows(path: Path) -> bool:
    """True where a file holds rows of tokens, as `jspec train data` writes them."""
    if path.suffix != ".jsonl" or not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            first = plain_json.parsed(file.readline())
        except json.JSONDecodeError:
            return False
    return isinstance(first, dict) and isinstance(first.get("tokens"), list)


def read(path: Path, vocab_size: int) -> list[Row]:
    """The rows of such a file; a last line that is still being written is left out.

    A row whose `holds_prompt` is true begins with `prompt_tokens` tokens of a prompt. One with
    `prompt_ids`, as `jspec generate --json` writes it, has its prompt there. All else is text.

    Raises:
        InputError: if a row is no list of token ids below `vocab_size`.
    """
    rows = []
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            row = _row(plain_json.parsed(line))
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
    """(train, held out), decided by each row's own digest as `corpus.split` does for documents."""
    by_text = {json.dumps(row.tokens): row for row in rows}
    kept, out = corpus.split([json.dumps(row.tokens) for row in rows], fraction)
    return [by_text[row] for row in kept], [by_text[row] for row in out]


def join(parts: Sequence[Sequences]) -> Sequences:
    """The sequences of all parts, one behind the other; classes come in `packing.order`'s order."""
    return Sequences(
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.live for part in parts]),
    )
