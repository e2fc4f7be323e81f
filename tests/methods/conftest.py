"""A block head for the bundled model, since none is bundled."""

import jax
import jax.numpy as jnp
import pytest

from jspec.models import heads, load
from jspec.models.heads.block import BlockConfig, BlockHead
from jspec.models.heads.registry import shapes


@pytest.fixture(scope="session")
def block_head(tmp_path_factory):
    """The folder of a head for jspec-7m that drafts 6 tokens; all its weights are 0."""
    folder = tmp_path_factory.mktemp("block") / "head"
    shape = dict(taps=(2, 4, 6), block_size=6, markov_rank=4, confidence_width=260)
    head = BlockHead(BlockConfig(4096, 256, 688, 1, 4, 2, 64, 1024, **shape))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes(head))
    heads.save(folder, head, zeros, load("jspec-7m"))
    return str(folder)
