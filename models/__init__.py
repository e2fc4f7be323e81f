"""Flax architectures, checkpoints and the small models that the project trained."""

from jspec.models.llama import Llama, LlamaConfig, RopeScaling
from jspec.models.load import Loaded, load

__all__ = ["Llama", "LlamaConfig", "Loaded", "RopeScaling", "load"]
