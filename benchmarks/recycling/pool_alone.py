"""Lookahead (Fu et al. 2024) as its authors verify it: the window's own nodes are not accepted."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

import jspec
from jspec.types import Frame, PyTree, Tree, Verdict
from jspec.verify.schemes import COUPLED


class OfThePool:
    """Accepts nodes of value 1 alone: those that `PoolAlone` found in the pool."""

    def verdict(self, tree: Tree, logits: Float[Array, "B N V"], frame: Frame) -> Verdict:
        """The coupled rule's, as if the other nodes were not there."""
        assert tree.value is not None
        mine = replace(tree, valid=tree.valid & (tree.value == 1))
        return COUPLED.verifier.verdict(mine, logits, frame)


@dataclass(frozen=True)
class PoolAlone(jspec.Lookahead):
    """Drafts Lookahead's tree; nodes that are the window's alone are scored and not accepted."""

    @property
    def verifier(self) -> OfThePool:
        """The rule of this drafter."""
        return OfThePool()

    def draft(self, params: PyTree, state: PyTree, frame: Frame) -> tuple[Tree, None]:
        """The tree, whose values are 1 where an n-gram of the pool passes, and else 0."""
        tree, aux = super().draft(params, state, frame)
        owner = jnp.arange(len(frame.root), dtype=jnp.int32) % state.pool.shape[0]
        passes = self.passes(tree, state.pool[owner, frame.root])
        return replace(tree, value=passes.astype(jnp.float32)), aux

    def passes(self, tree: Tree, grams: Array) -> Bool[Array, "B N"]:
        """True at the root and where one of the n-grams [B, G, levels] goes through."""
        rows = jnp.arange(len(tree.tokens))[:, None]
        above = jnp.maximum(tree.parents, 0)
        at_root = (tree.parents < 0)[..., None]
        there = (grams[:, :, 0] >= 0)[:, None]
        # The n-grams, [B, N, G], that go through each node of the levels so far.
        on, found = at_root & there, tree.parents < 0
        for level in range(self.levels):
            same = tree.tokens[..., None] == grams[:, None, :, level]
            on = on[rows, above] & same & ~at_root
            found |= on.any(-1)
        return found
