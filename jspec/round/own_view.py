"""A round as a drafter sees it that drafted a part of what was verified, or more than that."""

from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import _struct as struct
from jspec import tree as trees
from jspec.types import Feedback, Output, Tree


@struct.dataclass
class MemberDraft:
    """The tree of one drafter, and the place of its nodes in the tree that was verified."""

    tree: Tree
    number: Int[Array, "B N"]
    """The number of each node in that tree; past its last node if the node was left out."""


def of_part(tree: Tree, indices: Int[Array, "B n"]) -> MemberDraft:
    """Returns the tree, and its nodes' places among some of them."""
    nodes = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    same = indices[:, None, :] == nodes[None, :, None]
    place = jnp.where(same.any(-1), same.argmax(-1), indices.shape[1])
    return MemberDraft(tree, place.astype(jnp.int32))


def own_view(draft: MemberDraft, feedback: Feedback, others: bool = True) -> Feedback:
    """Returns the round as one member sees it, in its own node numbers.

    What the member does not read of it is never computed.
    """
    size = feedback.tree.tokens.shape[1]
    places = jnp.minimum(draft.number, size - 1)
    verified = jnp.take_along_axis(feedback.tree.valid, places, axis=1) & (draft.number < size)
    valid = draft.tree.valid & verified

    def nodes(array, axis):
        index = places.reshape(
            places.shape[0], *(1,) * (axis - 1), -1, *(1,) * (array.ndim - axis - 1)
        )
        return jnp.take_along_axis(array, index, axis=axis)

    output = feedback.output
    # The number of each joint node in the member's tree; -1 where it has none.
    numbers = trees.first_at(jnp.where(valid, draft.number, size), size)
    numbers = jnp.where(numbers < draft.number.shape[1], numbers, -1)
    path = feedback.verdict.path
    ids = jnp.take_along_axis(numbers, jnp.maximum(path, 0), axis=1)
    steps = jnp.arange(path.shape[1])[None]
    path = jnp.where(
        steps < feedback.verdict.path_lengths[:, None], jnp.where(path < 0, -1, ids), 0
    )
    # A tree that lost its deepest nodes has shorter paths than its drafter's.
    missing = ((0, 0), (0, max(draft.tree.depth + 1 - path.shape[1], 0)))
    return replace(
        feedback,
        tree=replace(draft.tree, valid=valid),
        output=Output(
            logits=nodes(output.logits, 1),
            hidden=None if output.hidden is None else nodes(output.hidden, 1),
        ),
        verdict=replace(feedback.verdict, path=jnp.pad(path, missing)),
        emitted=jnp.pad(feedback.emitted, missing),
        merged=feedback.scored,
        processed=None,  # of the joint tree
        others=others or feedback.others,
    )
