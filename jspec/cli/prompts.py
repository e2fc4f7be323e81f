"""Prompts from the command line, from standard input, or from a file with one a line.

A prompt is a text to continue, token ids, or a conversation to answer.
"""

import io
import os
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from jspec._validate import plain_json
from jspec._validate.arguments import shorten
from jspec._validate.errors import InputError
from jspec.sessions.conversations import Message, from_prompt

EXAMPLE = "Once upon a time"
"""The prompt that `jspec generate` continues if nothing else is given."""


@dataclass(frozen=True)
class Prompt:
    """One prompt, not empty, with its file and line for messages."""

    content: str | tuple[int, ...] | list[Message]
    """Text, token ids, or the messages of a conversation."""
    source: str

    @property
    def is_conversation(self) -> bool:
        """True where the chat template makes the prompt."""
        return isinstance(self.content, list)


class Tokenizer(Protocol):
    """The part of a `tokenizers.Tokenizer` that prompts need."""

    def encode(self, sequence: str) -> Any: ...


def one(argument: str | None) -> list[Prompt]:
    """Returns the prompt argument; `-` or none stands for piped input, if any."""
    if argument is not None and argument != "-":
        try:
            argument.encode()
        except UnicodeEncodeError as error:  # bytes of another encoding arrive as surrogates
            raise InputError("the prompt is not UTF-8; encode it so") from error
        return [_prompt(argument, "the prompt")]
    if argument is None and not _is_piped():
        return [Prompt(EXAMPLE, "the example")]
    # To its last newline: a conversation that was rendered elsewhere ends with one.
    return [_prompt(_decode(_standard_input(), "standard input"), "standard input")]


def many(file: Path, option: str = "--batch-file") -> list[Prompt]:
    """Returns one prompt a line.

    A line is text, or JSON: a string, a list of token ids, a list of messages, or an object with
    one of these under "prompt" or "messages". Text that is JSON is never continued as plain text.
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


def ask(prompts: Sequence[Prompt], system: str | None = None) -> list[Prompt]:
    """Returns the prompts as conversations, after `system` if it is given."""
    return [_ask(prompt, system) for prompt in prompts]


def encode(
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    vocab_size: int,
    context: int | None,
    render: Callable[[Sequence[Message]], list[int]] | None = None,
) -> list[list[int]]:
    """Returns token ids of each prompt, with what the tokenizer puts before a text."""
    return [_encode(prompt, tokenizer, vocab_size, context, render) for prompt in prompts]


def _encode(
    prompt: Prompt,
    tokenizer: Tokenizer,
    vocab_size: int,
    context: int | None,
    render: Callable[[Sequence[Message]], list[int]] | None,
) -> list[int]:
    content = prompt.content
    if isinstance(content, list):
        assert render is not None, "conversations need their template"
        try:
            ids = render(content)
        except InputError as error:
            raise InputError(f"{prompt.source}: {error}") from error
    else:
        ids = tokenizer.encode(content).ids if isinstance(content, str) else list(content)
    if not ids:
        raise InputError(f"{prompt.source} gives no token ({shorten(content)}); write some text")
    for token in ids:
        if not 0 <= token < vocab_size:
            raise InputError(
                f"{prompt.source} has the token id {token}, outside the vocabulary of "
                f"{vocab_size}; use ids 0 .. {vocab_size - 1}"
            )
    if context is not None and len(ids) > context:
        drop = ", or let --drop choose turns that go" if prompt.is_conversation else ""
        raise InputError(
            f"{prompt.source} has {len(ids)} tokens and the model's context is {context}; "
            f"shorten it by {len(ids) - context}{drop}"
        )
    return ids


def _ask(prompt: Prompt, system: str | None) -> Prompt:
    content = prompt.content
    if isinstance(content, str):
        # What `echo` adds is not part of a question.
        question = content.removesuffix("\n").removesuffix("\r")
        return replace(prompt, content=from_prompt(question, system))
    if isinstance(content, tuple):
        raise InputError(
            f"{prompt.source} is a list of token ids, which no chat template takes; give a text or "
            "messages, or leave out --chat and --system"
        )
    if system is None:
        return prompt
    if any(isinstance(turn, dict) and turn.get("role") == "system" for turn in content):
        raise InputError(
            f"{prompt.source} has a system message and --system gives another; leave one out"
        )
    return replace(prompt, content=[{"role": "system", "content": system}, *content])


def _line(line: str, source: str) -> Prompt:
    if line.lstrip().startswith(("[", "{", '"')):
        try:
            parsed = plain_json.parse(line)
        except ValueError:
            return _prompt(line, source)  # text may begin with a bracket or a quotation mark
        return _parse(parsed, line, source)
    return _prompt(line, source)


def _parse(parsed: Any, line: str, source: str) -> Prompt:
    if isinstance(parsed, dict):
        values = [parsed[name] for name in ("prompt", "messages") if name in parsed]
        if len(values) != 1 or isinstance(values[0], dict):
            raise InputError(
                f'{source} is a JSON object without a "prompt" or "messages" ({shorten(line)}); '
                "give one of them"
            )
        parsed = values[0]
    if isinstance(parsed, str):
        return _prompt(parsed, source)
    if not isinstance(parsed, list):
        raise InputError(
            f"{source} has a {type(parsed).__name__} for a prompt ({shorten(line)}); give a text, "
            "token ids or messages"
        )
    if not parsed:
        raise InputError(f"{source} is an empty list; list at least one token id or message")
    if all(isinstance(part, dict) for part in parsed):
        return Prompt(parsed, source)
    if not all(isinstance(token, int) and not isinstance(token, bool) for token in parsed):
        raise InputError(
            f"{source} is a JSON list but neither of token ids nor of messages ({shorten(line)}); "
            "list integers or messages, or begin a text otherwise"
        )
    return Prompt(tuple(parsed), source)


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


def _is_piped() -> bool:
    """Returns True if standard input is a pipe or a file."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, ValueError, io.UnsupportedOperation):  # closed, or a stand-in
        return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _standard_input() -> bytes:
    return b"" if sys.stdin is None else sys.stdin.buffer.read()
