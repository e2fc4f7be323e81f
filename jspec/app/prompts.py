"""Prompts from the command line, from standard input, or from a file with one a line."""

import io
import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jspec.errors import InputError
from jspec.methods.options import shown

EXAMPLE = "Once upon a time"
"""The prompt that `jspec generate` continues if nothing else is given."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, not empty, and where it stands, for messages."""

    content: str | tuple[int, ...]
    """Text, or token ids."""
    source: str


class Tokenizer(Protocol):
    """The part of a `tokenizers.Tokenizer` that prompts need."""

    def encode(self, sequence: str) -> Any: ...


def one(argument: str | None) -> list[Prompt]:
    """The prompt given as an argument; `-` or none stands for piped input, if there is any.

    Raises:
        InputError: if it is empty or not UTF-8.
    """
    if argument is not None and argument != "-":
        try:
            argument.encode()
        except UnicodeEncodeError as error:  # bytes of another encoding arrive as surrogates
            raise InputError("the prompt is not UTF-8; encode it so") from error
        return [_prompt(argument, "the prompt")]
    if argument is None and not _piped():
        return [Prompt(EXAMPLE, "the example")]
    text = _decode(_standard_input(), "standard input")
    # What `echo` adds is no part of the prompt.
    return [_prompt(text.removesuffix("\n").removesuffix("\r"), "standard input")]


def many(file: Path, option: str = "--batch-file") -> list[Prompt]:
    """One prompt a line: text, or a JSON list of token ids.

    Raises:
        InputError: if the file cannot be read, or a line is empty or a list of something else.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InputError(
            f"{option} {file} cannot be read ({error.strerror}); name a file with one prompt a line"
        ) from error
    # Not splitlines(): a prompt may hold any other separator.
    lines = _decode(content, f"{option} {file}").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise InputError(f"{option} {file} holds no line; write one prompt a line")
    return [
        _line(line.removesuffix("\r"), f"line {number} of {file}")
        for number, line in enumerate(lines, 1)
    ]


def encode(
    prompts: Sequence[Prompt], tokenizer: Tokenizer, vocab_size: int, context: int | None
) -> list[list[int]]:
    """Token ids of each prompt, with what the tokenizer puts before a text.

    Raises:
        InputError: if a prompt gives no token, one outside the vocabulary, or too many.
    """
    return [_encode(prompt, tokenizer, vocab_size, context) for prompt in prompts]


def _encode(
    prompt: Prompt, tokenizer: Tokenizer, vocab_size: int, context: int | None
) -> list[int]:
    content = prompt.content
    ids = tokenizer.encode(content).ids if isinstance(content, str) else list(content)
    if not ids:
        raise InputError(f"{prompt.source} gives no token ({shown(content)}); write some text")
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(
                f"{prompt.source} has the token id {token}, outside the vocabulary of "
                f"{vocab_size}; use ids 0 .. {vocab_size - 1}"
            )
    if context is not None and len(ids) > context:
        raise InputError(
            f"{prompt.source} has {len(ids)} tokens and the model's context is {context}; "
            f"shorten it by {len(ids) - context}"
        )
    return ids


def _line(line: str, source: str) -> Prompt:
    if line.lstrip().startswith("["):
        try:
            parsed = json.loads(line)
        except (ValueError, RecursionError):
            return _prompt(line, source)  # text may begin with a bracket
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in parsed):
            raise InputError(
                f"{source} is a JSON list but not of token ids ({shown(line)}); "
                "list integers, or begin a text otherwise"
            )
        if not parsed:
            raise InputError(f"{source} is an empty list; list at least one token id")
        return Prompt(tuple(parsed), source)
    return _prompt(line, source)


def _prompt(text: str, source: str) -> Prompt:
    if not text.strip():
        raise InputError(f"{source} is empty; write some text to continue")
    return Prompt(text, source)


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source} is not UTF-8 (byte {content[error.start]:#04x} at {error.start}); "
            "encode it so"
        ) from error


def _piped() -> bool:
    """True where standard input is a pipe or a file. A terminal, and /dev/null, hold no prompt."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, ValueError, io.UnsupportedOperation):  # closed, or a stand-in
        return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _standard_input() -> bytes:
    return b"" if sys.stdin is None else sys.stdin.buffer.read()
