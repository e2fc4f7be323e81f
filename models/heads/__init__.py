"""Draft heads: their networks, one table of their kinds, their files, and published ones."""

from jspec.models.heads.registry import KINDS, TARGET, borrow
from jspec.models.heads.store import find, load, ready, save

__all__ = ["KINDS", "TARGET", "borrow", "find", "load", "ready", "save"]
