"""Trees: masks, paths and depths from parents; parts, orders and templates are its modules."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import lazy_loader
from jaxtyping import Array, Bool, Int

from jspec.types import NO_PARENT, Tree

if TYPE_CHECKING:
    from jspec.tree.orders import breadth_first, depth_first, heavy_paths, reorder
    from jspec.tree.parts import (
        along,
        best,
        best_nodes,
        first,
        first_at,
        path_probabilities,
        places,
        take_nodes,
        values,
    )
    from jspec.tree.template import Template, best_paths, branching, chain, likeliest

# Imported on first use: decoding needs none of them.
_public, _, _ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "orders": ["breadth_first", "depth_first", "heavy_paths", "reorder"],
        "parts": [
            *("along", "best", "best_nodes", "first", "first_at", "path_probabilities"),
            *("places", "take_nodes", "values"),
        ],
        "template": ["Template", "best_paths", "branching", "chain", "likeliest"],
    },
)

_GONE = {"kept": "take_nodes", "reordered": "reorder"}


def __getattr__(name: str) -> Any:
    if name in _GONE:
        raise AttributeError(f"jspec.tree.{name} is gone; use jspec.tree.{_GONE[name]}")
    return _public(name)


__all__ = [
    "Template",
    "along",
    "ancestors",
    "best",
    "best_nodes",
    "best_paths",
    "branching",
    "breadth_first",
    "chain",
    "children",
    "depth_first",
    "depths",
    "first",
    "first_at",
    "heavy_paths",
    "likeliest",
    "path_probabilities",
    "paths",
    "places",
    "reorder",
    "root_only",
    "take_nodes",
    "values",
]


def ancestors(tree: Tree) -> Bool[Array, "B N N"]:
    """Returns the mask of tree attention: `[b, i, j]` is True for j at or above i.

    Args:
        tree: parents before children; deeper than `tree.depth` is not looked at.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> tree = jspec.tree.branching([2, 1]).fill(jnp.array([[5, 6, 7, 8, 9]]))
        >>> ancestors(tree)[0, 3].astype(int).tolist()
        [1, 1, 0, 1, 0]
    """
    nodes = jnp.arange(tree.parents.shape[-1], dtype=jnp.int32)
    path = paths(tree.parents, tree.depth)[..., None, :]
    return (path == jnp.expand_dims(nodes[:, None], tuple(range(path.ndim - 2)))).any(-1)


def paths(parents: Int[Array, "B N"], depth: int) -> Int[Array, "B N P"]:
    """Returns each node and its ancestors upwards; -1 above the root.

    Args:
        parents: of the nodes, -1 at the root.
        depth: most edges from the root to a node.

    Example:
        >>> import jax.numpy as jnp
        >>> paths(jnp.array([[-1, 0, 0, 1]]), 2)[0, 3].tolist()
        [3, 1, 0]
    """
    if depth < 2:
        return _paths_by_levels(parents, depth)
    return jax.lax.platform_dependent(
        parents,
        cuda=partial(_paths_by_leaps, depth=depth),
        default=partial(_paths_by_levels, depth=depth),
    )


def _paths_by_levels(parents: Int[Array, "B N"], depth: int) -> Int[Array, "B N P"]:
    nodes = jnp.arange(parents.shape[-1], dtype=jnp.int32)
    path = [jnp.broadcast_to(nodes, parents.shape), parents]
    for _ in range(depth - 1):
        # One level up, by a maximum and not by a gather: gathers would be fused with what reads the
        # mask, and done again by every layer of the model, the whole chain of them.
        here = path[-1][..., None] == nodes[None, None]
        path.append(jnp.where(here, parents[..., None, :], NO_PARENT).max(-1))
    return jnp.stack(path, -1)


def _paths_by_leaps(parents: Int[Array, "B N"], depth: int) -> Int[Array, "B N P"]:
    """Returns few steps for a GPU: from 1 level up to 4, to 16, to 64."""
    nodes = jnp.arange(parents.shape[-1], dtype=jnp.int32)
    paths = jnp.stack([jnp.broadcast_to(nodes, parents.shape), parents], -1)
    while (reach := paths.shape[-1] - 1) < depth:
        # What is above the last of a node's own, and again above the last of that.
        tails, parts = paths[..., 1:], [paths]
        for done in range(reach, min(4 * reach, depth), reach):
            last = parts[-1][..., -1:]
            more = tails[..., : depth - done]
            more = jnp.take_along_axis(more, jnp.maximum(last, 0), axis=1)
            parts.append(jnp.where(last < 0, NO_PARENT, more))
        # Gathers of gathers would be fused, and done again by all that reads them.
        paths = jax.lax.optimization_barrier(jnp.concatenate(parts, -1))
    return paths


def depths(tree: Tree) -> Int[Array, "B N"]:
    """Returns the number of edges between each node and the root.

    Example:
        >>> import jax.numpy as jnp, jspec
        >>> depths(jspec.tree.branching([2, 1]).fill(jnp.array([[5, 6, 7, 8, 9]]))).tolist()
        [[0, 1, 1, 2, 2]]
    """
    return ancestors(tree).sum(-1, dtype=jnp.int32) - 1


def q_rows_of(tree: Tree, nodes: Int[Array, "B n"]) -> Int[Array, "B n"] | None:
    """Returns `Tree.q_row` where these nodes are side by side."""
    if tree.q is None:
        return None
    return nodes if tree.q_row is None else jnp.take_along_axis(tree.q_row, nodes, axis=-1)


def children(
    parents: Int[Array, " N"], valid: Bool[Array, " N"], node: Int[Array, ""], width: int
) -> Int[Array, " K"]:
    """Returns node ids of `node`'s children, in order; N where there is none. K = width."""
    nodes = jnp.arange(parents.shape[0], dtype=jnp.int32)
    ids = jnp.where((parents == node) & valid, nodes, parents.shape[0])
    return jnp.sort(ids)[:width]


def root_only(root: Int[Array, " B"]) -> Tree:
    """Returns the tree of plain decoding: N = 1."""
    batch = root.shape[0]
    return Tree(
        tokens=root[:, None],
        parents=jnp.full((batch, 1), NO_PARENT, jnp.int32),
        valid=jnp.ones((batch, 1), bool),
        depth=0,
        width=1,
    )
