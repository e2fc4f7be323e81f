"""Flax architectures, checkpoints and the small models that the project trained."""

from jspec.models import heads, sharding
from jspec.models.checkpoint import restore, save
from jspec.models.classic import Classic, ClassicConfig
from jspec.models.hub import bundled
from jspec.models.llama import Llama, LlamaConfig, RopeScaling
from jspec.models.load import Loaded, load

__all__ = [
    "Classic",
    "ClassicConfig",
    "Llama",
    "LlamaConfig",
    "Loaded",
    "RopeScaling",
    "bundled",
    "heads",
    "load",
    "restore",
    "save",
    "sharding",
]
