"""Restores configs from JSON: lists become tuples again, and objects dataclasses."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from jspec.models.experts import Experts
from jspec.models.llama import Layer
from jspec.models.rope import (
    LinearScaling,
    LongScaling,
    Rope,
    RopeFactors,
    RopeScaling,
    YarnScaling,
)

PARTS = (
    *(Layer, Rope, Experts),
    *(RopeScaling, RopeFactors, LinearScaling, YarnScaling, LongScaling),
)
"""What configs are made of; no two have the same fields."""


def part(value: Any) -> Any:
    """A field of a config.

    Raises:
        TypeError: if nothing that a config is made of has such fields.

    Example:
        >>> part({"factor": 4.0})
        LinearScaling(factor=4.0)
    """
    if isinstance(value, list):
        return tuple(part(entry) for entry in value)
    if not isinstance(value, Mapping):
        return value
    for kind in PARTS:
        if {field.name for field in fields(kind)} == set(value):
            return kind(**{name: part(entry) for name, entry in value.items()})
    raise TypeError(f"nothing has the fields {', '.join(value)}")
