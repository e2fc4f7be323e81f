"""Tree attention as a Pallas kernel: empty blocks are skipped, the past is read once."""

from jspec.models.block_attention.choice import fastest
from jspec.models.block_attention.implementation import BlockAttention, ByQueries
from jspec.models.block_attention.launches import Launch, Mosaic, Triton

__all__ = ["BlockAttention", "ByQueries", "Launch", "Mosaic", "Triton", "fastest"]
