"""Options of a method: parses and validates their values.

A value comes from JSON or from Python, so that a list and a tuple are the same here. What a kind
has read, it reads again unchanged.
"""

import difflib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Protocol

from jspec._validate.errors import InputError

_LONGEST = 60
"""The number of characters of a value that a message shows."""


def shown(value: Any) -> str:
    """The value as Python writes it, cut where it is long."""
    written = repr(value)
    return written if len(written) <= _LONGEST else f"{written[: _LONGEST - 4]} ..."


class Kind(Protocol):
    """The values that an option takes."""

    @property
    def what(self) -> str:
        """The values, in words that follow "pass"."""
        ...

    def read(self, value: Any) -> Any:
        """The value as the drafter wants it, or None if it is none of this kind."""
        ...


@dataclass(frozen=True)
class Integer:
    """A whole number in low .. high."""

    low: int
    high: int | None = None

    @property
    def what(self) -> str:
        bound = f"of at least {self.low}" if self.high is None else f"in {self.low} .. {self.high}"
        return f"an integer {bound}"

    def read(self, value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, Integral):
            return None
        number = int(value)
        within = self.low <= number and (self.high is None or number <= self.high)
        return number if within else None


@dataclass(frozen=True)
class Flag:
    """True or false."""

    what: str = "true or false"

    def read(self, value: Any) -> bool | None:
        return value if isinstance(value, bool) else None


@dataclass(frozen=True)
class Number:
    """A number in low .. high; `below_high` refuses high itself."""

    low: float
    high: float
    below_high: bool = False

    @property
    def what(self) -> str:
        return f"a number x with {self.low:g} <= x {'<' if self.below_high else '<='} {self.high:g}"

    def read(self, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        # Not made a float before it is compared: Python's integers have no bound.
        number: Any = value
        within = self.low <= number <= self.high  # NaN is outside too
        return float(number) if within and not (self.below_high and number == self.high) else None


@dataclass(frozen=True)
class Word:
    """One of two or more names."""

    names: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"{', '.join(self.names[:-1])} or {self.names[-1]}"

    def read(self, value: Any) -> str | None:
        return value if isinstance(value, str) and value in self.names else None


@dataclass(frozen=True)
class Place:
    """A path, or the name of something bundled."""

    what: str = "a path"

    def read(self, value: Any) -> str | None:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        return path if isinstance(path, str) and path else None


@dataclass(frozen=True)
class Several:
    """A list of one or more values of a kind."""

    kind: Kind
    example: str

    @property
    def what(self) -> str:
        return f"a list such as {self.example}, each {self.kind.what}"

    def read(self, value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, list | tuple) or not value:
            return None
        found = tuple(map(self.kind.read, value))
        return None if None in found else found


@dataclass(frozen=True)
class Paths:
    """A tree template: each node as the ranks that lead to it. A `jspec.Template` is one too."""

    what: str = "a list of paths such as [[0], [1], [0, 0]], parents included"

    def read(self, value: Any) -> tuple[tuple[int, ...], ...] | None:
        rank = Integer(0)
        paths = getattr(value, "paths", value)
        if not isinstance(paths, list | tuple) or not paths:
            return None
        for path in paths:
            if not isinstance(path, list | tuple) or any(rank.read(step) is None for step in path):
                return None
        return tuple(map(tuple, paths))


@dataclass(frozen=True)
class Option:
    """One option of a method, which is a key of `--speculative-config`.

    Args:
        name: of the argument of `jspec.methods.build`.
        kind: the values it takes.
        help: its meaning, in a few words.
        required: whether the method cannot do without.
    """

    name: str
    kind: Kind
    help: str
    required: bool = False

    def read(self, value: Any) -> Any:
        """The checked value.

        Raises:
            InputError: if it is of another kind or out of bounds.
        """
        found = self.kind.read(value)
        if found is None:
            raise InputError(f"{self.name} is {shown(value)}; pass {self.kind.what}")
        return found


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """The error about a name that is none of those known, with the nearest of them."""
    names: Sequence[str] = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]}? " if near else ""
    return InputError(f"{what} {shown(name)} is unknown; {guess}known: {', '.join(names)}")
