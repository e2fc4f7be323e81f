"""Restores configs from JSON: lists become tuples again, and objects dataclasses."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from jspec.models.activations import ClampedGate
from jspec.models.experts import ExpertGroups, Experts
from jspec.models.latent import LatentAttention
from jspec.models.llama import Layer
from jspec.models.mixers import DeltaNet, Mamba2
from jspec.models.rope import (
    LinearScaling,
    LongScaling,
    ProportionalScaling,
    Rope,
    RopeFactors,
    RopeScaling,
    YarnScaling,
)

PARTS = (
    *(Layer, Rope, Experts, ExpertGroups, ClampedGate, DeltaNet, Mamba2, LatentAttention),
    *(RopeScaling, RopeFactors, LinearScaling, YarnScaling, LongScaling),
    ProportionalScaling,
)
"""Records that configs are made of; no two can have the same fields."""


def part(value: Any) -> Any:
    """Returns a field of a config."""
    if isinstance(value, list):
        return tuple(part(entry) for entry in value)
    if not isinstance(value, Mapping):
        return value
    for kind in PARTS:
        # A record of an earlier version lacks the fields that have come since.
        needed = {field.name for field in fields(kind) if field.default is MISSING}
        if needed <= set(value) <= {field.name for field in fields(kind)}:
            return kind(**{name: part(entry) for name, entry in value.items()})
    raise TypeError(f"nothing has the fields {', '.join(value)}")
