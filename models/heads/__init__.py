"""Draft heads: their networks, one table of their kinds, their files, and published ones."""

from jspec.models.heads.eagle import EAGLEConfig, EAGLEHead
from jspec.models.heads.loading import LoadedHead, bundled, find, load, own, read_variables
from jspec.models.heads.lyanna import LyannaConfig, LyannaHead
from jspec.models.heads.medusa import MedusaConfig, MedusaHeads, fresh
from jspec.models.heads.registry import HEAD_KINDS, TARGET, borrow, kind_of
from jspec.models.heads.store import save

__all__ = [
    "HEAD_KINDS",
    "TARGET",
    "EAGLEConfig",
    "EAGLEHead",
    "LoadedHead",
    "LyannaConfig",
    "LyannaHead",
    "MedusaConfig",
    "MedusaHeads",
    "borrow",
    "bundled",
    "find",
    "fresh",
    "kind_of",
    "load",
    "own",
    "read_variables",
    "save",
]
