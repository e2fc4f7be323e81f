"""Flax architectures, checkpoints and the small models that the project trained."""

from jspec.models import heads, lora, sharding
from jspec.models.activations import ClampedGate
from jspec.models.batch_invariant import BatchInvariant
from jspec.models.chat_template import ChatTemplate
from jspec.models.checkpoint import relaid, restore, save
from jspec.models.experts import ExpertGroups, Experts
from jspec.models.function import FunctionModel, LayerCaches, Seen, from_nnx
from jspec.models.hub import bundled
from jspec.models.hybrid import Hybrid
from jspec.models.latent import LatentAttention
from jspec.models.learned_positions import LearnedPositionConfig, LearnedPositionDecoder
from jspec.models.llama import Layer, Llama, LlamaConfig
from jspec.models.load import Loaded, load, open_checkpoint
from jspec.models.mixers import DeltaNet, Mamba2
from jspec.models.neox import GPTNeoX, GPTNeoXConfig
from jspec.models.rope import (
    LinearScaling,
    LongScaling,
    ProportionalScaling,
    Rope,
    RopeFactors,
    RopeScaling,
    YarnScaling,
)
from jspec.models.shapes import shapes

__all__ = [
    "BatchInvariant",
    "ChatTemplate",
    "ClampedGate",
    "DeltaNet",
    "ExpertGroups",
    "Experts",
    "FunctionModel",
    "GPTNeoX",
    "GPTNeoXConfig",
    "Hybrid",
    "LatentAttention",
    "Layer",
    "LayerCaches",
    "LearnedPositionConfig",
    "LearnedPositionDecoder",
    "LinearScaling",
    "Llama",
    "LlamaConfig",
    "Loaded",
    "LongScaling",
    "Mamba2",
    "ProportionalScaling",
    "Rope",
    "RopeFactors",
    "RopeScaling",
    "Seen",
    "YarnScaling",
    "bundled",
    "from_nnx",
    "heads",
    "load",
    "lora",
    "open_checkpoint",
    "relaid",
    "restore",
    "save",
    "shapes",
    "sharding",
]
