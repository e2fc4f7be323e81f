"""The union of two point-mass trees at one root: what one method misses the other may find."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec.base import NO_PARENT, Drafter, Feedback, Output, PyTree, Round, Tree


@dataclass(frozen=True)
class Merge:
    """Drafts the trees of two drafters together, equal paths once. Make it with `merge`.

    Params and state are pairs. The first drafter's nodes keep their numbers, the second's follow.
    """

    first: Drafter
    second: Drafter

    def start(
        self, batch: int, slots: int, earlier: tuple[PyTree, PyTree] | None
    ) -> tuple[PyTree, PyTree]:
        if earlier is not None and not (isinstance(earlier, tuple) and len(earlier) == 2):
            raise ValueError(
                f"drafter_state is a {type(earlier).__name__} and merge keeps a pair of states; "
                "pass the state of a call with the same drafter"
            )
        ours, theirs = _pair(earlier)
        return self.first.start(batch, slots, ours), self.second.start(batch, slots, theirs)

    def init(
        self,
        params: tuple[PyTree, PyTree] | None,
        state: tuple[PyTree, PyTree],
        prompt: Int[Array, "B T"],
        lengths: Int[Array, " B"],
        output: Output,
    ) -> tuple[PyTree, PyTree]:
        ours, theirs = _pair(params)
        return (
            self.first.init(ours, state[0], prompt, lengths, output),
            self.second.init(theirs, state[1], prompt, lengths, output),
        )

    def draft(
        self, params: tuple[PyTree, PyTree] | None, state: tuple[PyTree, PyTree], round: Round
    ) -> tuple[Tree, tuple[PyTree, PyTree]]:
        ours, theirs = _pair(params)
        tree, kept = self.first.draft(ours, state[0], round)
        other, other_kept = self.second.draft(theirs, state[1], round)
        return union(tree, other), (kept, other_kept)

    def update(
        self,
        params: tuple[PyTree, PyTree] | None,
        state: tuple[PyTree, PyTree],
        feedback: Feedback,
    ) -> tuple[PyTree, PyTree]:
        ours, theirs = _pair(params)
        return (
            self.first.update(ours, state[0], feedback),
            self.second.update(theirs, state[1], feedback),
        )


def merge(first: Drafter, second: Drafter) -> Merge:
    """A drafter that proposes what either would. Both must report no law (`Tree.q` is None)."""
    return Merge(first, second)


def _pair(both: tuple[PyTree, PyTree] | None) -> tuple[PyTree, PyTree]:
    return (None, None) if both is None else both


def union(a: Tree, b: Tree) -> Tree:
    """Trees a and b at their common root, N = Na + Nb - 1; a node of b that a has is absent.

    Raises:
        ValueError: if a tree was sampled. Its siblings would no longer be draws from its law.
    """
    if a.q is not None or b.q is not None:
        raise ValueError(
            "merge got a tree with a sampled law q; merge drafters without one, or draft this "
            "one in its coupled mode"
        )
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
    return Tree(
        tokens=jnp.concatenate([a.tokens, b.tokens[:, 1:]], axis=1),
        parents=jnp.concatenate([a.parents, parents[:, 1:].astype(jnp.int32)], axis=1),
        valid=jnp.concatenate([a.valid, (b.valid & (same < 0))[:, 1:]], axis=1),
        depth=max(a.depth, b.depth),
        width=a.width + b.width,
        verifier=a.verifier or b.verifier,
    )
