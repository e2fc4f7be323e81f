"""The scoring of a tree level by level, by a draft model, a head or a table.

W: nodes of one level that are scored together.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.types import Frame, Output, PyTree, Tree


class LevelOutput(NamedTuple):
    """The result of scoring the nodes of one level."""

    logits: Float[Array, "B W V"]
    inherited: PyTree
    """Arrays [B, W, ...] that nodes pass to their children, such as ancestor masks."""
    kv: PyTree
    """The tentative record of all nodes scored so far, or other data of the scorer."""


class Scorer(Protocol):
    """Scores the nodes of one round's tree."""

    @property
    def frame(self) -> Frame: ...

    def root(self) -> LevelOutput:
        """Scores the root."""
        ...

    def below(
        self,
        level: Int[Array, ""] | int,
        kv_index: Int[Array, ""] | int,
        tokens: Int[Array, "B W"],
        inherited: PyTree,
        kv: PyTree,
    ) -> LevelOutput:
        """Scores W nodes of one depth."""
        ...


class TokenScorer(ABC):
    """A `Scorer` to whom a node is its level and its token: nothing is inherited or kept."""

    frame: Frame

    @abstractmethod
    def after(
        self, level: Int[Array, ""] | int, tokens: Int[Array, "B W"]
    ) -> Float[Array, "B W V"]:
        """Returns the scores of what follows W tokens of one level."""

    def root(self) -> LevelOutput:
        """Scores the root."""
        return LevelOutput(self.after(0, self.frame.root[:, None]), inherited=(), kv=())

    def below(
        self,
        level: Int[Array, ""] | int,
        kv_index: Int[Array, ""] | int,
        tokens: Int[Array, "B W"],
        inherited: PyTree,
        kv: PyTree,
    ) -> LevelOutput:
        """Scores W nodes of one depth; of each its token is all that is needed."""
        del kv_index, inherited, kv
        return LevelOutput(self.after(level, tokens), inherited=(), kv=())


class Draft(NamedTuple):
    """A drafted tree, with the keys and values of its scored nodes."""

    tree: Tree
    kv_index: Int[Array, "B N"]
    """The index in `kv` of each node's keys and values; 0 if it was not scored."""
    kv: PyTree


def attention_mask(ancestors: Bool[Array, "B W M"]) -> Bool[Array, "B W M+W"]:
    """Returns the mask of W nodes of one depth: each attends to its ancestors, and to itself."""
    batch, width, _ = ancestors.shape
    identity = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch, width, width))
    return jnp.concatenate([ancestors, identity], axis=-1)


def append_kv(
    ancestors: Bool[Array, "B W M"], kv: Any, output: Output, kv_index: Int[Array, ""] | int
) -> tuple[Bool[Array, "B W M"], Any]:
    """Writes the tentative record of W scored nodes after the levels above."""
    size = ancestors.shape[-1]
    slots = jnp.arange(size)[None] == kv_index + jnp.arange(ancestors.shape[1])[:, None]
    return ancestors | slots[None], kv.put(output.tentative, kv_index)


def inherit(inherited: PyTree, parents: Int[Array, "B W"]) -> PyTree:
    """Returns the arrays that each of W children inherits from its parent."""
    return jax.tree.map(
        lambda array: jax.vmap(lambda row, index: row[index])(array, parents), inherited
    )


def concat_levels(first: Array, below: Array) -> Array:
    """Joins the first level, [B, W, ...], and what a scan stacked of L more, [L, B, W', ...]."""
    rows = jnp.moveaxis(below, 0, 1)
    return jnp.concatenate([first, rows.reshape(len(first), -1, *first.shape[2:])], axis=1)
