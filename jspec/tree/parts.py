"""Parts of a tree: its best nodes, and the places of nodes among those that are kept."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec._xla.manual_axes import vary
from jspec.arrays.top_k import largest
from jspec.tree import paths, q_rows_of
from jspec.types import NO_PARENT, Tree


def values(tree: Tree) -> Float[Array, "B N"]:
    """Returns the drafter's values; without any, half of what the siblings before a node leave.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> values(jspec.tree.branching([2, 1]).fill(jnp.array([[5, 6, 7, 8, 9]]))).tolist()
        [[1.0, 0.5, 0.25, 0.25, 0.125]]
    """
    if tree.value is not None:
        return tree.value
    nodes = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    sibling = (tree.parents[:, :, None] == tree.parents[:, None]) & tree.valid[:, None]
    rank = (sibling & (nodes[:, None] > nodes[None])[None]).sum(-1)
    probs = jnp.where((nodes > 0)[None], 0.5 ** (1 + rank.astype(jnp.float32)), 1.0)
    return path_probabilities(tree.parents, probs, tree.depth)


def best(tree: Tree, nodes: int) -> Tree:
    """Returns the tree's best `nodes` nodes and the root, in the old order.

    Since values fall along paths, and a tie goes to the earlier node, what is left is a tree. There
    are fewer where fewer are valid: the places left over are absent. Of a tree that was drawn, a
    part is lossless under the coupled rule alone.

    Args:
        tree: with values.
        nodes: how many are kept, the root not counted.

    Raises:
        InputError: if the tree has no values, or `nodes` is not a number of them.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> tree = jspec.tree.chain(3).fill(jnp.array([[5, 6, 7, 8]]))
        >>> best(tree.replace(value=jnp.array([[1.0, 0.9, 0.5, 0.1]])), 2).tokens.tolist()
        [[5, 6, 7]]
    """
    return take_nodes(tree, best_nodes(tree, nodes))


def best_nodes(tree: Tree, nodes: int) -> Int[Array, "B n"]:
    """Returns the ids of the nodes that `best` keeps, rising; the root's is the first.

    Raises:
        InputError: if the tree has no values, or `nodes` is not a number of them.
    """
    check_integer("nodes", nodes, 0, None)
    if tree.value is None:
        raise InputError(
            "the tree has no values, by which its best nodes are found; pass tree.replace(value="
            "[B, N] probabilities)"
        )
    count = min(nodes + 1, tree.tokens.shape[1])
    root = jnp.arange(tree.tokens.shape[1]) == 0
    # NaN, which sorting puts above all numbers, has no value; nor has what is below it.
    valid = jnp.where(jnp.isnan(tree.value), False, tree.valid)
    order = jnp.where(root, jnp.inf, jnp.where(valid, tree.value, -1.0))
    return jnp.sort(largest(order, count)[1], axis=-1).astype(jnp.int32)


def first(tree: Tree, nodes: int) -> Tree:
    """Returns the tree's first `nodes` nodes and the root."""
    count = min(nodes + 1, tree.tokens.shape[1])
    ids = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (len(tree.tokens), count))
    return replace(
        tree,
        tokens=tree.tokens[:, :count],
        parents=tree.parents[:, :count],
        valid=tree.valid[:, :count],
        q_row=q_rows_of(tree, ids),
        value=None if tree.value is None else tree.value[:, :count],
        depth=min(tree.depth, nodes),
        width=max(min(tree.width, nodes), 1),
    )


def take_nodes(tree: Tree, chosen: Int[Array, "B n"]) -> Tree:
    """Returns the tree of n of its nodes, by rising ids that include parents."""
    num_drafted = chosen.shape[1] - 1

    def pick(array):
        return jnp.take_along_axis(array, chosen, axis=-1)

    # A node's place is the number of chosen ones before it, and so is a parent's.
    place = places(chosen, pick(tree.parents))
    present = tree.valid if tree.value is None else tree.valid & ~jnp.isnan(tree.value)
    valid = pick(present).at[:, 0].set(True)
    return replace(
        tree,
        tokens=pick(tree.tokens),
        parents=jnp.where(valid, place, 0).at[:, 0].set(NO_PARENT),
        valid=valid,
        q_row=q_rows_of(tree, chosen),
        value=None if tree.value is None else jnp.where(valid, pick(tree.value), 0.0),
        depth=min(tree.depth, num_drafted),
        width=max(min(tree.width, num_drafted), 1),
    )


def places(chosen: Int[Array, "B n"], nodes: Int[Array, "B N"]) -> Int[Array, "B N"]:
    """Returns the number of chosen ids before each node: its place, if it is chosen."""

    def compare(chosen, nodes):
        # A search by halves is a loop, which a GPU's host launches step by step.
        return (chosen[:, None, :] < nodes[..., None]).sum(-1, dtype=jnp.int32)

    def search(chosen, nodes):
        return jax.vmap(jnp.searchsorted)(chosen, nodes).astype(jnp.int32)

    return jax.lax.platform_dependent(chosen, nodes, cpu=search, default=compare)


def first_at(places: Int[Array, "B N"], size: int) -> Int[Array, "B M"]:
    """Returns the first of the N entries that has each of M places; N where none has.

    Args:
        places: of the entries; `size` or more for none.
        size: M.

    Example:
        >>> import jax.numpy as jnp
        >>> first_at(jnp.array([[2, 0, 2]]), 4).tolist()
        [[1, 3, 0, 3]]
    """
    entries = jnp.arange(places.shape[1], dtype=jnp.int32)
    absent = places.shape[1]

    def scatter(places):
        none = jnp.full(size, absent, jnp.int32)
        return jax.vmap(lambda index: none.at[index].min(entries, mode="drop"))(places)

    def compare(places):
        hits = places[:, :, None] == jnp.arange(size)[None, None]
        return jnp.where(hits, entries[:, None], absent).min(1).astype(jnp.int32)

    return jax.lax.platform_dependent(places, cpu=scatter, default=compare)


def along(
    parents: Int[Array, "B N"], values: Array, join: Callable[[Array, Array], Array], depth: int
) -> Array:
    """Returns each node's value joined with all above it; the root's is neutral.

    Args:
        parents: of the nodes, -1 at the root.
        values: [B, N].
        join: of a node's value and what is joined of those above it, such as their minimum.
        depth: most edges from the root to a node.
    """
    return jax.lax.platform_dependent(
        parents,
        values,
        cpu=partial(_by_levels, join=join, depth=depth),
        default=partial(_by_paths, join=join, depth=depth),
    )


def path_probabilities(parents: Int[Array, "B N"], probs: Array, depth: int) -> Array:
    """Returns each node's probability times all those above it.

    Args:
        parents: of the nodes, -1 at the root.
        probs: [B, N], of each node given its parent; 1 at the root.
        depth: most edges from the root to a node.
    """
    return along(parents, probs, jnp.multiply, depth)


def _by_levels(parents: Array, values: Array, join: Callable, depth: int) -> Array:
    above = jnp.maximum(parents, 0)

    def lower(_, total):
        return join(values, jnp.take_along_axis(total, above, axis=1))

    # Passes beyond a node's depth change nothing, since the root's value is neutral.
    return jax.lax.fori_loop(0, depth, lower, vary(values, parents))


def _by_paths(parents: Array, values: Array, join: Callable, depth: int) -> Array:
    """Returns the same values in the same order, without a loop on the host."""
    # Above the root is the root again, whose value is neutral.
    above = jnp.maximum(paths(parents, depth), 0)
    path_values = jnp.take_along_axis(values[:, None], above, axis=2)
    total = path_values[..., -1]
    for level in reversed(range(path_values.shape[-1] - 1)):
        total = join(path_values[..., level], total)
    return total
