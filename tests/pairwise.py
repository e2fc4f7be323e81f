"""Products of cases, of which the quick tests have each value once and the slow ones the rest."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """The parameters of a test, of which these alone are quick."""
    slow = pytest.mark.slow
    return [value if value in quick else pytest.param(value, marks=slow) for value in values]


def product(*axes: Collection[Any]) -> list[Any]:
    """All combinations as parameters of a test; those are quick that have each value first.

    Example:
        `product("abc", [0, 1])` has (a, 0), (b, 1) and (c, 0) quickly.
    """
    lists = [list(axis) for axis in axes]
    most = max(map(len, lists))
    quick = {tuple(at % len(axis) for axis in lists) for at in range(most)}
    return [
        pytest.param(
            *(axis[at] for axis, at in zip(lists, places, strict=True)),
            marks=() if places in quick else pytest.mark.slow,
        )
        for places in itertools.product(*(range(len(axis)) for axis in lists))
    ]
