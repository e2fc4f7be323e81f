"""Trees of as many nodes in every level below the root: chains side by side, and beams.

W: nodes of a level. L: levels below the first.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.drafters.growth.scorer import Draft, concat_levels
from jspec.types import NO_PARENT, PyTree, Tree


class Level(NamedTuple):
    """The nodes of one level, or of L levels behind a leading axis, as a scan stacks them."""

    tokens: Int[Array, "*L B W"]
    parents: Int[Array, "*L B W"]
    """The parent of each node, by its place in the level above."""
    valid: Bool[Array, "*L B W"]
    q: Float[Array, "*L B Q V"] | None
    """The distributions at the nodes of the level above; None for deterministic proposals."""


def join_levels(root: Int[Array, " B"], first: Level, below: Level, kv: PyTree) -> Draft:
    """Returns the tree of the root, the first level and L more."""
    num_below, batch, width = below.tokens.shape
    above = 1 + jnp.arange(num_below, dtype=jnp.int32)[:, None, None] * width
    top = root[:, None]
    ids = jnp.arange(1 + width * (1 + num_below), dtype=jnp.int32)
    q_row = jnp.where(ids <= width * num_below, ids, 0)  # the last level is not scored
    q_row = jnp.broadcast_to(q_row, (batch, len(ids)))
    parents = concat_levels(jnp.zeros_like(first.parents), above + below.parents)
    tree = Tree(
        tokens=jnp.concatenate([top, concat_levels(first.tokens, below.tokens)], axis=1),
        parents=jnp.concatenate([jnp.full_like(top, NO_PARENT), parents], axis=1),
        valid=jnp.concatenate(
            [jnp.ones_like(top, bool), concat_levels(first.valid, below.valid)], axis=1
        ),
        q=jax.tree.map(concat_levels, first.q, below.q),
        q_row=None if first.q is None else q_row,
        depth=1 + num_below,
        width=width,
    )
    return Draft(tree=tree, kv_index=q_row + 1, kv=kv)
