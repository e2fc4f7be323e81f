"""How a tree is scored level by level, whatever scores it: a draft model, a head, or a table."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Frame, Output, PyTree, Tree, TreeKV


class LevelOutput(NamedTuple):
    """Nodes of one depth, scored."""

    logits: Float[Array, "B M V"]
    lineage: PyTree
    """What each node's children are scored with: arrays [B, M, ...], such as its ancestors."""
    nodes: PyTree
    """What stands at all places so far, such as keys and values."""


class Scorer(Protocol):
    """Scores the nodes of one round's tree. Each scored node has a place; the root's is 1."""

    @property
    def frame(self) -> Frame: ...

    def root(self) -> LevelOutput:
        """Scores the root."""
        ...

    def below(
        self,
        level: Int[Array, ""] | int,
        place: Int[Array, ""] | int,
        tokens: Int[Array, "B M"],
        lineage: PyTree,
        nodes: PyTree,
    ) -> LevelOutput:
        """Scores M nodes of one depth.

        Args:
            level: their depth.
            place: of the first of them, 2 or more; the others follow.
            tokens: their tokens.
            lineage: `Level.lineage` of each one's parent.
            nodes: `Level.nodes` of the level above.
        """
        ...


class Draft(NamedTuple):
    """What a method makes of what was scored."""

    tree: Tree
    places: Int[Array, "B N"]
    """Where each node was scored; 0 if it was not."""
    nodes: PyTree


def visible(above: Bool[Array, "B M C"]) -> Bool[Array, "B M C+M"]:
    """The mask of M nodes of one depth: each sees its ancestors' places, and itself."""
    batch, count, _ = above.shape
    own = jnp.broadcast_to(jnp.eye(count, dtype=bool), (batch, count, count))
    return jnp.concatenate([above, own], axis=-1)


def entered(
    above: Bool[Array, "B M C"], nodes: TreeKV, output: Output, slot: Int[Array, ""] | int
) -> tuple[Bool[Array, "B M C"], TreeKV]:
    """The nodes' ancestors with themselves, and all keys and values with theirs.

    Args:
        above: places of each one's ancestors.
        nodes: what was scored before.
        output: of the M nodes.
        slot: the first one's, among the C.
    """
    places = above.shape[-1]

    def put(held: Float[Array, "B H C D"], new: Float[Array, "B H M D"]):
        # All M fit, but where there is one level: a scan over none traces what never runs.
        return jax.lax.dynamic_update_slice_in_dim(held, new[:, :, :places], slot, axis=2)

    here = jnp.arange(places) == slot + jnp.arange(above.shape[1])[:, None]
    return above | here, jax.tree.map(put, nodes, TreeKV(output.keys, output.values))


def inherited(lineage: PyTree, parents: Int[Array, "B W"]) -> PyTree:
    """What each of W nodes has from its parent, one of the M above."""
    return jax.tree.map(lambda array: jax.vmap(lambda row, at: row[at])(array, parents), lineage)


def stacked(first: Array, below: Array) -> Array:
    """The first level's [B, M, ..] before what a scan stacked of the others, [L, B, M', ..]."""
    rows = jnp.moveaxis(below, 0, 1)
    return jnp.concatenate([first, rows.reshape(len(first), -1, *first.shape[2:])], axis=1)
