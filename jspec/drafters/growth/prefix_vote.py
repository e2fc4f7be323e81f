"""Continuations that were found somewhere vote for the nodes of a tree.

C: continuations of the root. D: tokens of each.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.arrays.top_k import largest
from jspec.types import NO_PARENT, Tree


def top_prefixes(
    root: Int[Array, " B"],
    tokens: Int[Array, "B C D"],
    weights: Float[Array, "B C D"],
    num_speculative_tokens: int,
    threshold: float = 0.0,
) -> Tree:
    """Makes a tree of the continuations' prefixes that most of them share.

    A prefix is a node of the continuations' trie. Its value is the sum of the weights of the
    continuations that begin with it, and falls along every path; so the best nodes are a tree, the
    one that best-first search would grow. It takes C * C * D operations per row and no loop over
    nodes.
    """
    batch, count, depth = tokens.shape
    # num_shared[b, i, j]: how many tokens continuations i and j begin with alike.
    alike, num_shared = True, jnp.zeros((batch, count, count), jnp.int32)
    for level in range(depth):
        alike &= tokens[:, :, None, level] == tokens[:, None, :, level]
        num_shared += alike.astype(jnp.int32)
    levels = jnp.arange(depth, dtype=jnp.int32)[None, None]
    same_node = num_shared[..., None] > levels[None]  # [b, i, j, d]: one node
    total = jnp.where(same_node, weights[:, None], 0.0).sum(2)
    # The first of the continuations through a node stands for it.
    index = jnp.arange(count, dtype=jnp.int32)[None, :, None]
    first = jnp.where(same_node, index[:, None], count).min(2)
    # The same sum may round in two ways; no node may look better than its parent.
    total = jax.lax.cummin(jnp.take_along_axis(total, first, axis=1), axis=2)
    value = jnp.where(first == index, total, 0.0)

    # Shallow before deep, so that a parent comes before a child of equal value.
    def by_level(array: Array) -> Array:
        return array.swapaxes(1, 2).reshape(batch, depth * count)

    num_kept = min(num_speculative_tokens, depth * count)
    best, indices = largest(by_level(value), num_kept)
    valid = best > threshold
    above = by_level(jnp.pad(first, ((0, 0), (0, 0), (1, 0)))[:, :, :-1] + (levels - 1) * count)
    parent = jnp.take_along_axis(above, indices, axis=1)  # the parent; negative at the first level
    parents = (parent[:, :, None] == indices[:, None, :]).argmax(-1).astype(jnp.int32) + 1
    parents = jnp.where((parent >= 0) & valid, parents, 0)
    drafted = jnp.where(valid, jnp.take_along_axis(by_level(tokens), indices, axis=1), 0)

    def with_root(entry: int | bool, drafted: Array) -> Array:
        """Returns the entries of root and drafted nodes, and empty ones up to the budget."""
        drafted = jnp.pad(drafted, ((0, 0), (0, num_speculative_tokens - num_kept)))
        return jnp.concatenate([jnp.full((batch, 1), entry, drafted.dtype), drafted], axis=1)

    return Tree(
        tokens=with_root(0, drafted.astype(jnp.int32)).at[:, 0].set(root),
        parents=with_root(NO_PARENT, parents),
        valid=with_root(True, valid),
        depth=depth,
        width=min(num_speculative_tokens, count),
        value=with_root(1, best),
    )
