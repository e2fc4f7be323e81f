"""Tree attention as a Pallas kernel: empty blocks are skipped, the past is read once."""

from jspec.models.block_attention.implementation import OF_LARGE_TREES, BlockAttention
from jspec.models.block_attention.kernel import AttentionWork, Triton

__all__ = ["OF_LARGE_TREES", "AttentionWork", "BlockAttention", "Triton"]
