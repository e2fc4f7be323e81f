"""Flax architectures, checkpoints and the small models that the project trained."""

from jspec.models import heads, sharding
from jspec.models.chat_template import ChatTemplate
from jspec.models.checkpoint import restore, save
from jspec.models.hub import bundled
from jspec.models.learned_positions import LearnedPositionConfig, LearnedPositionDecoder
from jspec.models.llama import Llama, LlamaConfig, RopeFactors, RopeScaling
from jspec.models.load import Loaded, load

__all__ = [
    "ChatTemplate",
    "LearnedPositionConfig",
    "LearnedPositionDecoder",
    "Llama",
    "LlamaConfig",
    "Loaded",
    "RopeFactors",
    "RopeScaling",
    "bundled",
    "heads",
    "load",
    "restore",
    "save",
    "sharding",
]
