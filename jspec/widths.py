"""The width of a round: how many nodes of the drafter's tree are verified.

Shapes are static, so a round has one program for each width that it may have, and runs one of them.
"""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec import in_place
from jspec import tree as trees
from jspec.base import PyTree, State, Tree


def widths_of(tree: Tree) -> tuple[int, ...]:
    """The widths that a round with such a tree may have: all of its nodes, if none is chosen."""
    return (tree.tokens.shape[1] - 1,) if tree.choice is None else tree.choice.widths


def cut(tree: Tree, width: int) -> Tree:
    """The tree of the `width` nodes of largest value, as it is verified."""
    whole = replace(tree, choice=None)
    return whole if width >= tree.tokens.shape[1] - 1 else trees.best(whole, width)


def kept_nodes(tree: Tree, width: int) -> Int[Array, "B n"]:
    """The ids of the nodes that `cut` keeps, rising."""
    batch, size = tree.tokens.shape
    if not width:
        return jnp.zeros((batch, 1), jnp.int32)
    if width >= size - 1:
        return jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (batch, size))
    return trees.best_nodes(tree, width)


def at_chosen_width(
    verify: Callable[[Tree, State, PyTree], State],
    admitted: Callable[[Tree, State], Tree],
    tree: Tree,
    state: State,
    drafting: PyTree,
) -> State:
    """The state after `verify(cut, state, drafting)` with the tree cut to the width of its choice.

    Args:
        verify: the rest of the round.
        admitted: takes for absent what is no tree. In plain decoding there is nothing to ask.
        tree: as drafted.
        state: before the round.
        drafting: what `draft` left for `update`.
    """
    if tree.choice is None:
        return verify(admitted(tree, state), state, drafting)
    # Most of what the drafter remembers it drafts without touching: that is held once, as part of
    # the state, so that `update` can write into it.
    leaves, structure = jax.tree.flatten(drafting)
    held = jax.tree.leaves(state.drafter_state)
    place = {id(leaf): number for number, leaf in enumerate(held)}
    places = [place.get(id(leaf)) for leaf in leaves]
    drafted = [leaf for leaf, at in zip(leaves, places, strict=True) if at is None]

    def narrowed(width: int) -> Callable[[State, PyTree], State]:
        def branch(state, given):
            tree, drafted = given
            held, rest = jax.tree.leaves(state.drafter_state), iter(drafted)
            drafting = [next(rest) if at is None else held[at] for at in places]
            part = cut(admitted(tree, state), width) if width else trees.root_only(state.root)
            return verify(part, state, jax.tree.unflatten(structure, drafting))

        return branch

    branches = [narrowed(width) for width in tree.choice.widths]
    return in_place.switch(tree.choice.index, branches, state, (tree, drafted))
