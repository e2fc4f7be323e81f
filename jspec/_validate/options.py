"""Options, read from the annotations of dataclasses and functions that take them.

    beam: Annotated[int, Integer(1)] = 8

says what `beam` may be, once: `check_fields` refuses anything else where a dataclass is made, and
`options_of` gives the same to the command line, with the docstring's words.
"""

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_origin

from jspec._validate.arguments import Kind, read, shorten
from jspec._validate.errors import InputError


@dataclass(frozen=True)
class Option:
    """One option of a method, which is a key of `--speculative-config`.

    Args:
        name: of the argument of `jspec.LLM`.
        kind: the values it takes.
        help: its meaning, in a few words.
        required: whether the method cannot do without.
        default: its value if it is not given; unused if it is required.
    """

    name: str
    kind: Kind
    help: str
    required: bool = False
    default: Any = None

    def read(self, value: Any) -> Any:
        """Returns the checked value.

        Raises:
            InputError: if it is of another kind or out of bounds.
        """
        return read(self.name, value, self.kind)


@cache
def options_of(function: Callable[..., Any]) -> Mapping[str, Option]:
    """Returns the annotated arguments of a function or dataclass, by name."""
    words = _describe(inspect.getdoc(function) or "")
    options = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if get_origin(parameter.annotation) is not Annotated:
            continue
        _, *marks = get_args(parameter.annotation)
        kind = next((mark for mark in marks if hasattr(mark, "read")), None)
        if kind is None:
            continue
        clause = next((mark for mark in marks if isinstance(mark, str)), words.get(name, ""))
        required = parameter.default is parameter.empty
        default = None if required else parameter.default
        options[name] = Option(name, kind, clause, required, default)
    return options


def check_fields(record: Any) -> None:
    """Raises InputError unless every annotated field of a dataclass is of its kind."""
    for name, option in options_of(type(record)).items():
        value = getattr(record, name)
        if value is not None or option.required or option.default is not None:
            option.read(value)


def unknown(what: str, name: str, choices: Iterable[str]) -> InputError:
    """Returns the error about an unknown name, with the nearest known ones."""
    names: Sequence[str] = list(choices)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    return InputError(f"{what} {shorten(name)} is unknown; {guess}known: {', '.join(names)}")


def _describe(text: str) -> dict[str, str]:
    """Returns the first clause about each argument of a docstring in Google's style."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", text, re.MULTILINE)
    if section is None:
        return {}
    entries = re.findall(r"^ {4}(\w+): ((?:.+\n?)(?: {8}.*\n?)*)", section[1], re.MULTILINE)
    return {name: _first_clause(" ".join(clause.split())) for name, clause in entries}


def _first_clause(clause: str) -> str:
    return re.split(r"[;.:](?: |$)| \(", clause, maxsplit=1)[0]
