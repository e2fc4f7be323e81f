"""The width of a round: how many nodes of the drafter's tree are verified.

Shapes are static, so a round has one program for each width that it may have, and runs one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec import tree as trees
from jspec._xla import in_place
from jspec.round.packed import largest_together
from jspec.types import PyTree, State, Tree


def widths_of(tree: Tree) -> tuple[int, ...]:
    """The widths that a round with such a tree may have: all of its nodes, if none is chosen."""
    if tree.choice is None:
        return (tree.tokens.shape[1] - 1,)
    return tuple(sorted(set(tree.choice.widths)))


def sizes_of(tree: Tree) -> tuple[tuple[int, int], ...]:
    """The (width, tokens) of each round that there may be, the latter of all rows together."""
    widths = widths_of(tree) if tree.choice is None else tree.choice.widths
    tokens = None if tree.choice is None else tree.choice.tokens
    tokens = tokens or tuple(len(tree.tokens) * (1 + width) for width in widths)
    return tuple(zip(widths, tokens, strict=True))


def cut(tree: Tree, width: int, tokens: int, done: Bool[Array, " B"]) -> Tree:
    """The tree of the nodes of largest value, as it is verified.

    Args:
        tree: as it was drafted.
        width: most drafted nodes of a row.
        tokens: most nodes of all running rows together, the roots among them.
        done: rows that have ended.
    """
    batch, whole = len(tree.tokens), replace(tree, choice=None)
    part = whole if width >= tree.tokens.shape[1] - 1 else trees.best(whole, width)
    if tokens >= batch * (1 + width):
        return part
    assert part.value is not None, "a tree is cut by value"
    drafted = part.valid & ~jnp.isnan(part.value) & ~done[:, None]
    room = tokens - jnp.sum(~done, dtype=jnp.int32)
    kept = largest_together(part.value, drafted.at[:, 0].set(False), room)
    return replace(part, valid=kept.at[:, 0].set(True))


def kept_nodes(tree: Tree, width: int) -> Int[Array, "B n"]:
    """The ids of the nodes that `cut` keeps, rising."""
    batch, size = tree.tokens.shape
    if not width:
        return jnp.zeros((batch, 1), jnp.int32)
    if width >= size - 1:
        return jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (batch, size))
    return trees.best_nodes(tree, width)


def at_chosen_width(
    verify: Callable[[Tree, State, PyTree, int], State],
    sanitized: Callable[[Tree, State], Tree],
    tree: Tree,
    state: State,
    aux: PyTree,
) -> State:
    """The state after `verify` with the tree cut to the width of its choice.

    Args:
        verify: the rest of the round, of (cut, state, aux, tokens): the last are the most nodes
            that the trees of all rows have together.
        sanitized: marks malformed nodes as absent. In plain decoding there is nothing to ask.
        tree: as drafted.
        state: before the round.
        aux: what `draft` gave beside the tree.
    """
    if tree.choice is None:
        return verify(sanitized(tree, state), state, aux, tree.tokens.size)

    def sized(width: int, tokens: int) -> Callable[[State, PyTree], State]:
        def branch(state, given):
            tree, aux = given
            part = trees.root_only(state.root)
            if width:
                part = cut(sanitized(tree, state), width, tokens, state.done)
            return verify(part, state, aux, tokens)

        return branch

    sizes = sizes_of(tree)
    index = _with_room(tree.choice.index, [tokens for _, tokens in sizes], state.done)
    return in_place.switch(index, [sized(*size) for size in sizes], state, (tree, aux))


def _with_room(
    index: Int[Array, ""], tokens: Sequence[int], done: Bool[Array, " B"]
) -> Int[Array, ""]:
    """The chosen round, or the first that has room for the roots of all running rows."""
    if min(tokens) >= len(done):
        return index
    fits = jnp.array(tokens) >= jnp.sum(~done, dtype=jnp.int32)
    chosen = jnp.clip(index, 0, len(tokens) - 1)
    return jnp.where(fits[chosen], chosen, jnp.argmax(fits)).astype(jnp.int32)
