"""Orders of a tree's nodes."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec.tree import ancestors, depths, q_rows_of
from jspec.types import NO_PARENT, Tree


def breadth_first(tree: Tree) -> Int[Array, "B N"]:
    """Returns node ids level by level, siblings as they were, absent nodes last.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> tree = jspec.tree.branching([2, 1]).fill(jnp.array([[5, 6, 7, 8, 9]]))
        >>> along_paths = reorder(tree, depth_first(tree))
        >>> breadth_first(along_paths).tolist()
        [[0, 1, 3, 2, 4]]
    """
    # Within a level, depth first is the order of the parents.
    order = depth_first(tree)
    level = jnp.where(tree.valid, depths(tree), tree.tokens.shape[1])
    place = jnp.argsort(jnp.take_along_axis(level, order, axis=-1), axis=-1, stable=True)
    return jnp.take_along_axis(order, place, axis=-1)


def depth_first(tree: Tree) -> Int[Array, "B N"]:
    """Returns node ids in depth-first order, siblings as they were, absent nodes last.

    Each node is then near its ancestors, which leaves fewer blocks of the attention mask with
    anything in them (DySpec, Xiong et al. 2024, appendix C): of use to kernels that skip the others
    (`jspec.models.block_attention`).

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> depth_first(jspec.tree.branching([2, 1]).fill(jnp.array([[5, 6, 7, 8, 9]]))).tolist()
        [[0, 1, 3, 2, 4]]
    """
    nodes = jnp.arange(tree.tokens.shape[1])
    return _along_paths(tree, lambda size: (nodes[:, None] > nodes[None])[None])


def heavy_paths(tree: Tree) -> Int[Array, "B N"]:
    """Returns node ids in depth-first order, of siblings the one with most nodes below it first.

    The heavy paths of Sleator and Tarjan (1981), by which DySpec's appendix C comes near the fewest
    blocks of the attention mask. Absent nodes are last. Since siblings change places by what was
    drawn below them, a drawn tree in this order is lossless under the coupled rule alone.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> tree = Tree(
        ...     tokens=jnp.array([[5, 6, 7, 8]]), parents=jnp.array([[-1, 0, 0, 2]]),
        ...     valid=jnp.ones((1, 4), bool), depth=2, width=2,
        ... )
        >>> heavy_paths(tree).tolist()
        [[0, 2, 3, 1]]
    """
    nodes = jnp.arange(tree.tokens.shape[1])

    def earlier(size):
        row, column = size[:, :, None], size[:, None, :]
        return (column > row) | ((column == row) & (nodes[:, None] > nodes[None])[None])

    return _along_paths(tree, earlier)


def _along_paths(
    tree: Tree, earlier: Callable[[Int[Array, "B N"]], Bool[Array, "*B N N"]]
) -> Int[Array, "B N"]:
    """Returns a depth-first order; `earlier` orders siblings by subtree size."""
    mask = ancestors(tree)
    size = (mask & tree.valid[..., None]).sum(-2)  # of each node's subtree
    alike = (tree.parents[..., None] == tree.parents[:, None, :]) & tree.valid[:, None, :]
    before = jnp.where(alike & earlier(size), size[:, None, :], 0).sum(-1)
    # A node comes after its ancestors, and after all that hangs from their earlier siblings.
    place = jnp.where(mask, before[:, None, :] + 1, 0).sum(-1) - 1
    return jnp.argsort(jnp.where(tree.valid, place, tree.tokens.shape[1]), axis=-1, stable=True)


def reorder(tree: Tree, order: Int[Array, "B N"]) -> Tree:
    """Returns the tree with node `order[b, i]` at place i; parents must stay before their
    children, and siblings of a drawn tree in the order in which they were drawn.

    The distributions of `Tree.q` stay where they are, and `q_row` says whose they are now.
    """

    def pick(array):
        return jnp.take_along_axis(array, order, axis=-1)

    place = jnp.argsort(order, axis=-1).astype(jnp.int32)
    above = pick(tree.parents)
    parents = jnp.take_along_axis(place, jnp.maximum(above, 0), axis=-1)
    return replace(
        tree,
        tokens=pick(tree.tokens),
        parents=jnp.where(above == NO_PARENT, NO_PARENT, parents),
        valid=pick(tree.valid),
        q_row=q_rows_of(tree, order),
        value=None if tree.value is None else pick(tree.value),
        nested=False,
    )
