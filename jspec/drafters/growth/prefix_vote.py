"""Continuations that were found somewhere vote for the nodes of a tree."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.base import NO_PARENT, Tree


def top_prefixes(
    root: Int[Array, " B"],
    tokens: Int[Array, "B C D"],
    weights: Float[Array, "B C D"],
    nodes: int,
    threshold: float = 0.0,
) -> Tree:
    """The best `nodes` nodes of the trie of C continuations, best first, below the root.

    A node is worth the sum of the weights of the continuations that run through it. The worth
    falls along every path, so the best nodes are a tree: the one that best-first search would
    grow. Takes C * C * D operations a row and no loop over nodes.

    Args:
        root: the last emitted tokens.
        tokens: continuations of the root; read where the weight is positive.
        weights: a continuation's share of the worth of its d-th token; falling along d, 0 behind
            its end, and summing up to 1 at most over C.
        nodes: the budget, without the root.
        threshold: nodes of no more worth are absent.
    """
    batch, count, depth = tokens.shape
    # shared[b, i, j]: how many tokens continuations i and j begin with alike.
    alike, shared = True, jnp.zeros((batch, count, count), jnp.int32)
    for level in range(depth):
        alike &= tokens[:, :, None, level] == tokens[:, None, :, level]
        shared += alike
    levels = jnp.arange(depth)
    together = shared[..., None] > levels  # [b, i, j, d]: one node at depth d + 1
    total = jnp.where(together, weights[:, None], 0).sum(2)
    # The first of the continuations through a node stands for it.
    lanes = jnp.arange(count)
    first = jnp.where(together, lanes[:, None], count).min(2)
    # The same sum may round in two ways; no node may look better than its parent.
    total = jax.lax.cummin(jnp.take_along_axis(total, first, axis=1), axis=2)
    value = jnp.where(first == lanes[:, None], total, 0)

    # Shallow before deep, so that a parent stands before a child of equal worth.
    def by_level(array):
        return array.swapaxes(1, 2).reshape(batch, depth * count)

    kept = min(nodes, depth * count)
    best, chosen = jax.lax.top_k(by_level(value), kept)
    valid = best > threshold
    above = by_level(jnp.pad(first, ((0, 0), (0, 0), (1, 0)))[:, :, :-1] + (levels - 1) * count)
    wanted = jnp.take_along_axis(above, chosen, axis=1)  # negative at the first level
    parents = (wanted[:, :, None] == chosen[:, None, :]).argmax(-1) + 1
    parents = jnp.where((wanted >= 0) & valid, parents, 0)
    drafted = jnp.where(valid, jnp.take_along_axis(by_level(tokens), chosen, axis=1), 0)

    def below(first, rest):
        """The root's entry, the drafted nodes', and those of the budget that no trie can fill."""
        rest = jnp.pad(rest, ((0, 0), (0, nodes - kept)))
        return jnp.concatenate([jnp.full((batch, 1), first, rest.dtype), rest], axis=1)

    return Tree(
        tokens=below(0, drafted.astype(jnp.int32)).at[:, 0].set(root),
        parents=below(NO_PARENT, parents.astype(jnp.int32)),
        valid=below(True, valid),
        depth=depth,
        width=min(nodes, count),
        value=below(1, best),
    )
