"""Flax architectures, checkpoints and the small models that the project trained."""

from jspec.models import heads, sharding
from jspec.models.chat_template import ChatTemplate
from jspec.models.checkpoint import restore, save
from jspec.models.experts import Experts
from jspec.models.hub import bundled
from jspec.models.learned_positions import LearnedPositionConfig, LearnedPositionDecoder
from jspec.models.llama import Layer, Llama, LlamaConfig
from jspec.models.load import Loaded, load
from jspec.models.rope import (
    LinearScaling,
    LongScaling,
    Rope,
    RopeFactors,
    RopeScaling,
    YarnScaling,
)

__all__ = [
    "ChatTemplate",
    "Experts",
    "Layer",
    "LearnedPositionConfig",
    "LearnedPositionDecoder",
    "LinearScaling",
    "Llama",
    "LlamaConfig",
    "Loaded",
    "LongScaling",
    "Rope",
    "RopeFactors",
    "RopeScaling",
    "YarnScaling",
    "bundled",
    "heads",
    "load",
    "restore",
    "save",
    "sharding",
]
