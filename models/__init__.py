"""Flax architectures, checkpoints and the small models that the project trained."""

from jspec.models import heads, sharding
from jspec.models.chat_template import ChatTemplate
from jspec.models.checkpoint import relaid, restore, save
from jspec.models.experts import Experts
from jspec.models.hub import bundled
from jspec.models.learned_positions import LearnedPositionConfig, LearnedPositionDecoder
from jspec.models.llama import Layer, Llama, LlamaConfig
from jspec.models.load import Loaded, load
from jspec.models.neox import GPTNeoX, GPTNeoXConfig
from jspec.models.nnx import NNXModel, Seen, from_nnx
from jspec.models.rope import (
    LinearScaling,
    LongScaling,
    Rope,
    RopeFactors,
    RopeScaling,
    YarnScaling,
)
from jspec.models.shapes import shapes

__all__ = [
    "ChatTemplate",
    "Experts",
    "GPTNeoX",
    "GPTNeoXConfig",
    "Layer",
    "LearnedPositionConfig",
    "LearnedPositionDecoder",
    "LinearScaling",
    "Llama",
    "LlamaConfig",
    "Loaded",
    "LongScaling",
    "NNXModel",
    "Rope",
    "RopeFactors",
    "RopeScaling",
    "Seen",
    "YarnScaling",
    "bundled",
    "from_nnx",
    "heads",
    "load",
    "relaid",
    "restore",
    "save",
    "shapes",
    "sharding",
]
