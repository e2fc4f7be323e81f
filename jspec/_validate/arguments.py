"""Checks of single arguments: one number, its bounds, and the sentence if it lies outside.

They take Python's and numpy's numbers, never arrays: what they check is static, and hashed.
`jspec._validate.kinds` has what is not an integer.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from numbers import Integral
from typing import Any, Protocol

from jspec._validate.errors import InputError

_LONGEST = 80
"""The number of characters of a value that a message shows."""


def shorten(value: Any) -> str:
    """Returns the value as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."


class Kind(Protocol):
    """The values that an option takes."""

    @property
    def what(self) -> str:
        """The values, in words that follow "pass"."""
        ...

    def read(self, value: Any) -> Any:
        """Returns the value as the drafter wants it, or None if it is of another kind."""
        ...


def read(name: str, value: Any, kind: Kind, why: str = "") -> Any:
    """Returns the checked value of an option."""
    result = kind.read(value)
    if result is None:
        raise InputError(f"{name} is {shorten(value)}; pass {kind.what}{why and ', '}{why}")
    return result


@dataclass(frozen=True)
class Integer:
    """A whole number in low .. high; a bool or a whole float is not accepted."""

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


def check_integer(name: str, value: Any, low: int, high: int | None, why: str = "") -> None:
    """Raises InputError unless `value` is an integer in `low` .. `high`, both included."""
    read(name, value, Integer(low, high), why)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Returns whether a function can be called with so many arguments; True if it does not say."""
    try:
        signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin
        return True
    return True
