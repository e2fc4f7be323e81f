"""Tests of which some cases are quick, and the others slow: more of the same."""

from collections.abc import Iterable
from typing import Any

import pytest


def only(values: Iterable[Any], *quick: Any) -> list[Any]:
    """The values as parameters of a test, of which these alone are quick."""
    values, slow = list(values), pytest.mark.slow
    assert all(one in values for one in quick), quick
    return [value if value in quick else pytest.param(value, marks=slow) for value in values]
