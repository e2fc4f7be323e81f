"""Checks of single arguments: one number, its bounds, and the sentence if it lies outside.

They take Python's and numpy's numbers, never arrays: what they check is static, and hashed.
"""

from collections.abc import Callable
from inspect import signature
from numbers import Integral, Real
from typing import Any

from jspec._validate.errors import InputError


def check_integer(name: str, value: Any, low: int, high: int | None, why: str = "") -> None:
    """Raises InputError unless `value` is an integer in `low` .. `high`, both included.

    Args:
        name: of the argument, as the caller wrote it.
        value: what was given; anything. A bool and a whole float are no integers.
        low: the least that is taken.
        high: the most that is taken; None: there is no upper bound.
        why: what the bounds are, such as "the vocabulary"; it ends the message.

    Example:
        >>> check_integer("beam", 8, 1, 4096, "the vocabulary")
        >>> check_integer("beam", 2.5, 1, 4096, "the vocabulary")
        Traceback (most recent call last):
        jspec.InputError: beam is 2.5; pass an integer in 1 .. 4096, the vocabulary
    """
    integer = isinstance(value, Integral) and not isinstance(value, bool)
    given: Any = value  # a number, where it is compared
    if not integer or given < low or (high is not None and given > high):
        bounds = f"of at least {low}" if high is None else f"in {low} .. {high}"
        raise InputError(_sentence(name, value, f"an integer {bounds}", why))


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
    """Raises InputError unless `value` is a number in `low` .. `high`; NaN never is.

    Args:
        name: of the argument, as the caller wrote it.
        value: what was given; anything. A bool is no number.
        low: the least that is taken.
        high: the most that is taken; None: any finite number.
        why: what the bounds are, such as "0 is greedy"; it ends the message.
        above_low: refuse `low` itself.
        below_high: refuse `high` itself.

    Example:
        >>> check_number("threshold", 0.0, 0, 1, below_high=True)
        >>> check_number("threshold", 1.0, 0, 1, below_high=True)
        Traceback (most recent call last):
        jspec.InputError: threshold is 1.0; pass a number x with 0 <= x < 1
    """
    top = float("inf") if high is None else high
    below_high = below_high or high is None
    inside = isinstance(value, Real) and not isinstance(value, bool)
    given: Any = value  # a number, where it is compared
    inside = inside and (low < given if above_low else low <= given)
    inside = inside and (given < top if below_high else given <= top)
    if not inside:
        bounds = f"{low} {'<' if above_low else '<='} x {'<' if below_high else '<='} {top}"
        raise InputError(_sentence(name, value, f"a number x with {bounds}", why))


def check_flag(name: str, value: Any) -> None:
    """Raises InputError unless `value` is Python's True or False.

    Args:
        name: of the argument, as the caller wrote it.
        value: what was given; anything. A text is none: "false" would count as true.

    Example:
        >>> check_flag("per_row", False)
        >>> check_flag("per_row", "false")
        Traceback (most recent call last):
        jspec.InputError: per_row is 'false'; pass True or False
    """
    if not isinstance(value, bool):
        raise InputError(_sentence(name, value, "True or False", ""))


def _sentence(name: str, value: Any, wanted: str, why: str) -> str:
    return f"{name} is {value!r:.80}; pass {wanted}{why and ', '}{why}"


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments; True if it does not say.

    Example:
        >>> takes(lambda p, q: p, 2), takes(lambda p, q: p, 5)
        (True, False)
    """
    try:
        signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a builtin
        return True
    return True
