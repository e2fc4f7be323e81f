"""Tree attention as a Pallas kernel: empty blocks are skipped, the past is read once."""

from jspec.models.block_attention.choice import fastest
from jspec.models.block_attention.hopper import Hopper
from jspec.models.block_attention.implementation import BlockAttention, ByQueries
from jspec.models.block_attention.kernel import AttentionWork, Launch
from jspec.models.block_attention.mosaic import Mosaic
from jspec.models.block_attention.triton import Triton

__all__ = [
    "AttentionWork",
    "BlockAttention",
    "ByQueries",
    "Hopper",
    "Launch",
    "Mosaic",
    "Triton",
    "fastest",
]
