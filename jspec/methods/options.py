"""The options of a method: how a value given as JSON is checked, and what to say if it is wrong."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from jspec.app.text import shown
from jspec.errors import InputError


class Kind(Protocol):
    """What values an option takes."""

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
        if isinstance(value, bool) or not isinstance(value, int) or value < self.low:
            return None
        return None if self.high is not None and value > self.high else value


@dataclass(frozen=True)
class Flag:
    """True or false."""

    what: str = "true or false"

    def read(self, value: Any) -> bool | None:
        return value if isinstance(value, bool) else None


@dataclass(frozen=True)
class Number:
    """A number in low .. high."""

    low: float
    high: float

    @property
    def what(self) -> str:
        return f"a number in {self.low:g} .. {self.high:g}"

    def read(self, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if self.low <= value <= self.high else None  # NaN is outside too


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
        return value if isinstance(value, str) and value else None


@dataclass(frozen=True)
class Several:
    """A list of one or more values of a kind."""

    kind: Kind
    example: str

    @property
    def what(self) -> str:
        return f"a list such as {self.example}, each {self.kind.what}"

    def read(self, value: Any) -> tuple[Any, ...] | None:
        if not isinstance(value, list) or not value:
            return None
        found = tuple(map(self.kind.read, value))
        return None if None in found else found


@dataclass(frozen=True)
class Paths:
    """A tree template: each node as the ranks that lead to it."""

    what: str = "a list of paths such as [[0], [1], [0, 0]], parents included"

    def read(self, value: Any) -> tuple[tuple[int, ...], ...] | None:
        rank = Integer(0)
        if not isinstance(value, list) or not value:
            return None
        for path in value:
            if not isinstance(path, list) or any(rank.read(step) is None for step in path):
                return None
        return tuple(map(tuple, value))


@dataclass(frozen=True)
class Option:
    """One key of `--speculative-config`."""

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
