"""Kinds of options that are not integers: flags, numbers, words, paths, lists.

A list and a tuple are the same: values come from JSON or Python. A kind reads its own output.
"""

import os
from dataclasses import dataclass
from numbers import Real
from typing import Any

from jspec._validate.arguments import Integer, Kind, read, shorten
from jspec._validate.errors import InputError


@dataclass(frozen=True)
class Flag:
    """True or False; a text is neither, as "false" would count as true."""

    what: str = "true or false"

    def read(self, value: Any) -> bool | None:
        return value if isinstance(value, bool) else None


@dataclass(frozen=True)
class Number:
    """A finite number in low .. high; `above_low`, `below_high` refuse the bounds themselves."""

    low: float
    high: float
    above_low: bool = False
    below_high: bool = False

    @property
    def what(self) -> str:
        below = "<" if self.below_high else "<="
        return f"a number x with {self.low} {'<' if self.above_low else '<='} x {below} {self.high}"

    def read(self, value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
        # Not made a float before it is compared: Python's integers have no bound.
        number: Any = value
        within = self.low <= number <= self.high  # NaN is outside too
        at_bound = (self.above_low and number == self.low) or (
            self.below_high and number == self.high
        )
        return float(number) if within and not at_bound else None


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
        values = tuple(map(self.kind.read, value))
        return None if None in values else values


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


COUNT = Integer(1, 4096)
"""The most nodes of a tree, levels, or children of a node."""
TOKEN = Integer(0, 2**31 - 1)
"""A token id."""


def check_number(
    name: str,
    value: Any,
    low: float,
    high: float | None,
    why: str = "",
    *,
    above_low: bool = False,
    below_high: bool = False,
) -> None:
    """Raises InputError unless `value` is a number in `low` .. `high`; NaN never is."""
    top = float("inf") if high is None else high
    kind = Number(low, top, above_low=above_low, below_high=below_high or high is None)
    read(name, value, kind, why)


def to_utf8(name: str, text: str) -> bytes:
    """Returns the bytes of a text. Raises InputError for half of a pair of surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} is {shorten(text)}, which is not UTF-8; pass a text") from error
