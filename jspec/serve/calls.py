"""Function calls: their formats, their grammars and their parsers.

Two ways are common, and have vLLM's names here. Which of them a model was trained for, its chat
template shows:

    hermes         <tool_call>{"name": .., "arguments": {..}}</tool_call>, amid text
    llama3_json    {"name": .., "parameters": {..}} as the whole answer, several with ; between
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jspec.models.reasoning import THINK, Parts

HERMES = "hermes"
LLAMA = "llama3_json"
PARSERS = (HERMES, LLAMA)

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON = "<|python_tag|>"
_OTHER = ("<function=", "<arg_key>")
"""Marks of templates with other calls between the same tags: Qwen3-Coder's and GLM-4.5's."""
_ARGUMENTS = ("arguments", "parameters")


@dataclass(frozen=True)
class Call:
    """A call of a function."""

    name: str
    arguments: str


class Reader(Protocol):
    """Reads the calls out of one answer as it comes."""

    def read(self, text: str, is_last: bool) -> tuple[str, list[Call]]:
        """Returns what is certain after more text."""
        ...


def parser_of(template: str) -> str | None:
    """Returns the name of a chat template's format of calls, or None."""
    if any(mark in template for mark in _OTHER):
        return None
    if _OPEN in template:
        return HERMES
    return LLAMA if '"parameters": ' in template else None


def reader_of(parser: str, names: Collection[str]) -> "Callable[..., ContentReader]":
    """Returns what makes a reader for each answer."""
    kind = TaggedCalls if parser == HERMES else BareCalls
    return lambda parts=None: ContentReader(parts or Parts(THINK, ""), kind(names))


class ContentReader:
    """Reads the calls behind the thoughts of an answer, where what is drafted is not called."""

    def __init__(self, parts: Parts, calls: Reader | None = None):
        self._parts = parts
        self._calls = calls
        self.thoughts = ""  # which became certain with the last text

    def read(self, text: str, is_last: bool) -> tuple[str, list[Call]]:
        """As `Reader` has it."""
        self.thoughts, content = self._parts.read(text, is_last)
        return (content, []) if self._calls is None else self._calls.read(content, is_last)


class TaggedCalls:
    """Reads calls between tags, amid text. What cannot be read is text as it was written."""

    def __init__(self, names: Collection[str]):
        self._names = tuple(names)
        self._held = ""
        self._called = False
        self._said = False
        """True if there was text since the last call."""

    def read(self, text: str, is_last: bool) -> tuple[str, list[Call]]:
        """As `Reader` has it."""
        self._held += text
        content, calls = "", []
        while _OPEN in self._held:
            before, _, rest = self._held.partition(_OPEN)
            value, after = _object(rest)
            if value is None and not is_last:
                break
            if value is not None:
                follows = after.lstrip()
                if not is_last and len(follows) < len(_CLOSE) and _CLOSE.startswith(follows):
                    break
                after = follows.removeprefix(_CLOSE)
            if (call := _call(value, self._names)) is not None:
                content += before.rstrip()
                calls.append(call)
                self._called, self._said = True, False
            else:
                # Text up to where the next call may begin.
                end = rest.find(_OPEN)
                inside, closed, _ = rest.partition(_CLOSE)
                if not is_last and end < 0 and not closed:
                    break
                size = len(inside) + len(closed)
                end = size if end < 0 else min(end, size)
                text = rest[:end].rstrip()
                content += before + _OPEN + text
                after, self._said = rest[len(text) :], True
            self._held = after
        end = self._certain(is_last)
        self._said |= bool(self._held[:end].strip())
        content, self._held = content + self._held[:end], self._held[end:]
        return content, calls

    def _certain(self, is_last: bool) -> int:
        """Returns the length of the held text outside calls: space before one is not shown."""
        buffer = self._held
        if is_last:
            return len(buffer) if buffer.strip() or self._said or not self._called else 0
        end = buffer.find(_OPEN)
        if end < 0:
            sizes = (n for n in range(len(_OPEN) - 1, 0, -1) if buffer.endswith(_OPEN[:n]))
            end = len(buffer) - next(sizes, 0)
        return len(buffer[:end].rstrip())


class BareCalls:
    """Reads calls that are the whole answer. Any other answer is text, from its first letter on."""

    def __init__(self, names: Collection[str]):
        self._names = tuple(names)
        self._held = ""
        self._is_text = False

    def read(self, text: str, is_last: bool) -> tuple[str, list[Call]]:
        """As `Reader` has it."""
        self._held += text
        if not self._is_text:
            start = self._held.lstrip()
            if not is_last and _PYTHON.startswith(start):
                return "", []
            rest = start.removeprefix(_PYTHON).lstrip()
            if rest.startswith("{"):
                if not is_last:
                    return "", []
                if calls := self._calls(rest):
                    self._held = ""
                    return "", calls
            self._is_text = True
        content, self._held = self._held, ""
        return content, []

    def _calls(self, rest: str) -> list[Call]:
        """Returns all calls; an empty list if there is other text between them."""
        calls = []
        while rest:
            value, rest = _object(rest)
            call = _call(value, self._names)
            if call is None:
                return []
            calls.append(call)
            rest = rest.lstrip().removeprefix(";").lstrip()
        return calls


def schema_of(tools: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Returns the JSON schema of a call of one of several functions."""
    # Each schema refers to its own parts, which are elsewhere here.
    parts = {str(n): _move(schema, f"#/$defs/{n}") for n, (_, schema) in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                "arguments": {"$ref": f"#/$defs/{number}"},
            },
            "required": ["name", "arguments"],
        }
        for number, (name, _) in enumerate(tools)
    ]
    return json.dumps({"anyOf": calls, "$defs": parts})


def _move(schema: Any, place: str) -> Any:
    """Returns a schema with its references moved to such a place."""
    if isinstance(schema, list):
        return [_move(part, place) for part in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _move(part, place) for key, part in schema.items()}
    if isinstance(path := schema.get("$ref"), str) and path.startswith("#"):
        moved["$ref"] = place + path[1:]
    return moved


def _object(text: str) -> tuple[Any, str]:
    """Returns the JSON value that begins a text, and the rest; (None, text) if cut."""
    begin = len(text) - len(text.lstrip())
    try:
        value, end = json.JSONDecoder(parse_constant=_refuse).raw_decode(text, begin)
    except (ValueError, RecursionError):
        return None, text
    return value, text[end:]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _call(value: Any, names: Collection[str]) -> Call | None:
    """Returns the call that a JSON value is; None if it names no known function."""
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = next((value[key] for key in _ARGUMENTS if key in value), {})
    if isinstance(arguments, str):  # some write the arguments as text, as the API has them
        arguments = _object(arguments)[0]
    if not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair of surrogates, which is not a letter
        text = json.dumps(arguments)
    return Call(value["name"], text)
