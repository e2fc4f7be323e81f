"""Draft heads: their networks, one table of their kinds, their files, and published ones."""

from jspec.models.heads.loading import LoadedHead, bundled, find, load, own, read_variables
from jspec.models.heads.registry import HEAD_KINDS, TARGET, borrow, kind_of
from jspec.models.heads.store import save

__all__ = [
    "HEAD_KINDS",
    "TARGET",
    "LoadedHead",
    "borrow",
    "bundled",
    "find",
    "kind_of",
    "load",
    "own",
    "read_variables",
    "save",
]
