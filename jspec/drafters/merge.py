"""The union of point-mass trees at one root: what one method misses another may find."""

from dataclasses import dataclass
from functools import reduce

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec.base import NO_PARENT, Drafter, Feedback, Output, PyTree, Round, Tree
from jspec.drafters.members import Members, check_no_law
from jspec.drafters.mixture import Mixture
from jspec.tree import along


@dataclass(frozen=True)
class Merge(Members):
    """Drafts the trees of its drafters together, equal paths once. Make it with `merge`.

    Params and state are tuples. A drafter's nodes follow those of the drafters before it.
    """

    def start(self, batch: int, slots: int, earlier: PyTree | None) -> tuple[PyTree, ...]:
        return self.started(batch, slots, earlier)

    def init(
        self,
        params: PyTree,
        state: tuple[PyTree, ...],
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> tuple[PyTree, ...]:
        return self.prepared(params, state, prompt, lengths, output)

    def draft(
        self, params: PyTree, state: tuple[PyTree, ...], round: Round
    ) -> tuple[Tree, tuple[PyTree, ...]]:
        drafts, kept = self.drafted(params, state, round)
        return reduce(union, drafts), kept

    def update(
        self, params: PyTree, state: tuple[PyTree, ...], feedback: Feedback
    ) -> tuple[PyTree, ...]:
        return self.taught(params, state, feedback)


def merge(*drafters: Drafter, nodes: int | None = None) -> Merge | Mixture:
    """A drafter that proposes what any of its drafters would. None may report a law (`Tree.q`).

    Args:
        drafters: two or more.
        nodes: drafted nodes in all, which go to the drafters by what the target has been taking of
            theirs, see `jspec.drafters.mixture`; None: each drafter's tree is there as a whole.

    Raises:
        ValueError: if there are fewer than two drafters, or nodes is out of range.
    """
    return Merge(drafters) if nodes is None else Mixture(drafters, nodes)


def union(a: Tree, b: Tree) -> Tree:
    """Trees a and b at their common root, N = Na + Nb - 1; a node of b that a has is absent.

    Raises:
        ValueError: if a tree was sampled. Its siblings would no longer be draws from its law.
    """
    check_no_law(a)
    check_no_law(b)
    size = a.tokens.shape[1]
    nodes = jnp.arange(b.tokens.shape[1])
    # same[b, j]: the node of a with the path of b's node j, or -1. Settled one level a pass.
    same = jnp.where(nodes == 0, 0, NO_PARENT) + jnp.zeros_like(b.parents)
    twin = (a.tokens[:, None, :] == b.tokens[:, :, None]) & a.valid[:, None, :]
    for _ in range(b.depth):
        above = jnp.take_along_axis(same, jnp.maximum(b.parents, 0), axis=1)
        match = twin & (a.parents[:, None, :] == above[:, :, None]) & (above >= 0)[:, :, None]
        same = jnp.where(match.any(-1), match.argmax(-1), same)
    # A child of a shared node hangs from a's copy of it; b's own nodes follow a's.
    number = jnp.where(same >= 0, same, size - 1 + nodes)
    parents = jnp.take_along_axis(number, jnp.maximum(b.parents, 0), axis=1)
    parents = jnp.concatenate([a.parents, parents[:, 1:].astype(jnp.int32)], axis=1)
    depth, worth = max(a.depth, b.depth), None
    if a.worth is not None and b.worth is not None:
        # A path of both is worth what a says, and what hangs from it no more.
        worth = jnp.concatenate([a.worth, b.worth[:, 1:]], axis=1)
        worth = along(parents, worth, jnp.minimum, depth)
    return Tree(
        tokens=jnp.concatenate([a.tokens, b.tokens[:, 1:]], axis=1),
        parents=parents,
        valid=jnp.concatenate([a.valid, (b.valid & (same < 0))[:, 1:]], axis=1),
        depth=depth,
        width=a.width + b.width,
        verifier=a.verifier or b.verifier,
        worth=worth,
        joint=True,
    )
