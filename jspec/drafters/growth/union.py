"""The union of two trees at their common root."""

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec._validate.errors import InputError
from jspec.tree import values
from jspec.types import NO_PARENT, Tree


def union(a: Tree, b: Tree) -> tuple[Tree, Int[Array, "B N"]]:
    """Returns trees a and b joined at their root; b's nodes that a has are absent."""
    check_deterministic(a)
    check_deterministic(b)
    size = a.tokens.shape[1]
    nodes = jnp.arange(b.tokens.shape[1], dtype=jnp.int32)
    is_root = nodes == 0
    # same[b, j]: the node of a with the path of b's node j, or -1. Settled one level a pass.
    same = jnp.where(is_root, 0, NO_PARENT)[None] + jnp.zeros_like(b.parents)
    twin = (a.tokens[:, None, :] == b.tokens[:, :, None]) & a.valid[:, None, :]
    for _ in range(b.depth):
        above = jnp.take_along_axis(same, jnp.maximum(b.parents, 0), axis=1)
        match = twin & (a.parents[:, None, :] == above[:, :, None]) & (above >= 0)[:, :, None]
        # The root is the root, also where a child of it holds the root's own token.
        has_twin = match.any(-1) & ~is_root[None]
        same = jnp.where(has_twin, match.argmax(-1).astype(jnp.int32), same)
    # A child of a shared node hangs from a's copy of it; b's own nodes follow a's.
    number = jnp.where(same >= 0, same, size - 1 + nodes)
    parents = jnp.take_along_axis(number, jnp.maximum(b.parents, 0), axis=1)
    parents = jnp.concatenate([a.parents, parents[:, 1:]], axis=1)
    # A path of both has the larger of its values, so that values still fall along paths.
    ours, theirs = values(a), values(b)
    shared = (same[:, None] == jnp.arange(size)[None, :, None]) & b.valid[:, None]
    ours = jnp.maximum(ours, jnp.where(shared, theirs[:, None], 0.0).max(-1))
    tree = Tree(
        tokens=jnp.concatenate([a.tokens, b.tokens[:, 1:]], axis=1),
        parents=parents,
        valid=jnp.concatenate([a.valid, (b.valid & (same < 0))[:, 1:]], axis=1),
        depth=max(a.depth, b.depth),
        width=a.width + b.width,
        value=jnp.concatenate([ours, theirs[:, 1:]], axis=1),
    )
    return tree, number


def check_deterministic(tree: Tree) -> None:
    """Raises InputError if the tree was sampled from a distribution that it reports."""
    if tree.q is not None:
        raise InputError(
            "a drafter inside another gave a tree with a sampled distribution q; take one without, "
            "or draft this one in its coupled mode"
        )
