"""The pool of a tree that grows level by level: its possible nodes, and the best.

W: the beam, nodes scored per level, each with as many children. C: nodes of the pool. Q: nodes that
were scored, the root included.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import _struct as struct
from jspec.arrays.top_k import largest
from jspec.drafters.growth.scorer import Draft
from jspec.types import NO_PARENT, PyTree, Tree


@dataclass(frozen=True)
class TreeLimits:
    """The bounds of a growth, from which the places of nodes in its pool follow."""

    num_speculative_tokens: int
    max_depth: int
    beam: int
    threshold: float
    min_gain: float

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes below the root that such a growth draws, C - 1."""
        return self.beam + (self.max_depth - 1) * self.beam**2

    @property
    def num_scored(self) -> int:
        """The number of scored nodes Q, the root included."""
        return 1 + (self.max_depth - 1) * self.beam

    def first_child(self, level: Int[Array, ""] | int) -> Int[Array, ""] | int:
        """Returns the first place in the pool of the children of `level`, 1 or more."""
        return 1 + self.beam + (level - 1) * self.beam**2

    def first_kv_index(self, level: Int[Array, ""] | int) -> Int[Array, ""] | int:
        """Returns the first index of the scored nodes of `level` among keys and values."""
        return 2 + (level - 1) * self.beam


class DrawnChildren(NamedTuple):
    """Children of all scored nodes; row i for the node with `kv_index` i + 1."""

    tokens: Int[Array, "B Q K"]
    notes: tuple[Float[Array, "B Q K"], ...]


@struct.dataclass
class Pool:
    """The nodes that the tree could have: the root, then level by level, siblings as drawn."""

    tokens: Int[Array, "B C"]
    parents: Int[Array, "B C"]
    slots: Float[Array, "B C"]
    """The `NodeValues.slot` of each node; infinite at the root, 0 where there is no node."""
    kv_index: Int[Array, "B C"]
    """The index of each scored node's keys and values; 0 for the others."""
    notes: tuple[Float[Array, "B C"], ...]

    def add(
        self,
        start: Int[Array, ""] | int,
        parents: Int[Array, "B W"],
        tokens: Int[Array, "B W K"],
        slots: Float[Array, "B W K"],
        notes: tuple[Float[Array, "B W K"], ...],
    ) -> "Pool":
        """Returns the pool with the K children of each of W nodes, from place `start` on."""
        return replace(
            self,
            tokens=put(self.tokens, flat(tokens), start),
            parents=put(self.parents, jnp.repeat(parents, tokens.shape[-1], axis=1), start),
            slots=put(self.slots, flat(slots), start),
            notes=tuple(
                put(old, flat(new), start) for old, new in zip(self.notes, notes, strict=True)
            ),
        )

    def best(self, limits: TreeLimits, kv: PyTree, q: Float[Array, "B Q V"] | None) -> Draft:
        """Returns the tree of the best slots, in the pool's order, which is breadth first."""
        num_nodes, size = limits.num_speculative_tokens, self.slots.shape[1]
        best, ids = largest(self.slots, num_nodes + 1)
        # Slots that are not above the threshold go to the end, behind all that are taken.
        ids = jnp.sort(jnp.where(best > limits.threshold, ids, size), axis=1)
        valid = ids < size

        def pick(array: Array) -> Array:
            return jnp.take_along_axis(array, ids, axis=1, mode="clip")

        # A node's id in the tree is the number of nodes taken before it. Its parent has one too:
        # values fall along paths, and a tie goes to the earlier node.
        mark = jax.vmap(lambda row, ids: row.at[ids].set(True, mode="drop"))
        is_best = mark(jnp.zeros(self.slots.shape, bool), ids)
        new_ids = jnp.cumsum(is_best, axis=1, dtype=jnp.int32) - 1
        parents = jnp.take_along_axis(new_ids, jnp.maximum(pick(self.parents), 0), axis=1)
        kv_index = jnp.where(valid, pick(self.kv_index), 0)
        tree = Tree(
            tokens=jnp.where(valid, pick(self.tokens), 0),
            parents=jnp.where(valid, parents, 0).at[:, 0].set(NO_PARENT),
            valid=valid,
            q=q,
            q_row=None if q is None else jnp.maximum(kv_index - 1, 0),
            depth=min(limits.max_depth, num_nodes),
            width=min(limits.beam, num_nodes),
            value=jnp.where(valid, jnp.minimum(pick(self.slots), 1.0), 0.0),
        )
        return Draft(tree=tree, kv_index=kv_index, kv=kv)

    def children(self, beam: int) -> DrawnChildren:
        """Returns the nodes below the root, grouped by their parents."""

        def rows(array: Array) -> Array:
            return array[:, 1:].reshape(len(array), -1, beam)

        return DrawnChildren(tokens=rows(self.tokens), notes=tuple(map(rows, self.notes)))


def empty_pool(root: Int[Array, " B"], size: int, notes: tuple[Array, ...]) -> Pool:
    """Returns a pool of `size` places with the root alone; `notes` are its notes' kinds."""
    batch = len(root)
    zeros = jnp.zeros((batch, size), jnp.int32)
    return Pool(
        tokens=zeros.at[:, 0].set(root),
        parents=zeros.at[:, 0].set(NO_PARENT),
        slots=jnp.zeros((batch, size), jnp.float32).at[:, 0].set(jnp.inf),
        kv_index=zeros.at[:, 0].set(1),
        notes=tuple(jnp.zeros((batch, size), note.dtype) for note in notes),
    )


def flat(array: Array) -> Array:
    """Returns the array [B, W, K] as [B, W K], in the order of the pool."""
    return array.reshape(len(array), -1)


def put(array: Array, new: Array, start: Int[Array, ""] | int) -> Array:
    """Returns the array with `new` from place `start` of its second axis on."""
    return jax.lax.dynamic_update_slice_in_dim(array, new.astype(array.dtype), start, axis=1)
