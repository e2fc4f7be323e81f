"""The width of a round: the number of the drafter's nodes that are verified.

Shapes are static, so a round has one program for each width that it may have, and runs one of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num

from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec._xla import mesh_axes
from jspec.protocols import WidthPolicy
from jspec.round.packed import largest_together
from jspec.types import Frame, PyTree, State, Tree, WidthChoice


def widths_of(policy: WidthPolicy, tree: Tree) -> tuple[int, ...]:
    """Returns the possible widths with such a tree; all of its nodes by default."""
    return policy.widths or (tree.tokens.shape[1] - 1,)


def sizes_of(policy: WidthPolicy, root: Num[Array, " B"]) -> tuple[tuple[int, int], ...]:
    """Returns the (width, tokens of all rows) of each possible round.

    Args:
        policy: with widths.
        root: the last tokens of the rows, of which only the number is read, and whether they lie on
            several devices: there each row has its own width, as if `token_budget` was 1.

    Example:
        >>> import jspec
        >>> policy = jspec.Adaptive((0, 3, 7), token_budget=0.25)
        >>> sizes_of(policy, jnp.zeros(1)), sizes_of(policy, jnp.zeros(8))
        (((0, 1), (3, 4), (7, 8)), ((0, 2), (0, 8), (3, 8), (7, 16)))
    """
    batch = len(root)
    # 0.07 of 100 rows are 7, and 7.000000000000001 in floats.
    part = max(ceil(round(policy.token_budget * batch, 6)), 1)
    rows = batch if mesh_axes.rows_are_split(root) else part
    narrowest = policy.widths[0]
    # Whatever is drafted, there is a round in which all rows have room.
    sizes = {(narrowest, batch * (1 + narrowest))}
    return tuple(sorted(sizes | {(width, rows * (1 + width)) for width in policy.widths}))


def cut(tree: Tree, width: int, tokens: int, done: Bool[Array, " B"]) -> Tree:
    """Returns the tree of the nodes of largest value, as it is verified."""
    part = tree if width >= tree.tokens.shape[1] - 1 else trees.best(tree, width)
    if tokens >= len(tree.tokens) * (1 + width):
        return part
    assert part.value is not None, "a tree is cut by value"
    drafted = part.valid & ~jnp.isnan(part.value) & ~done[:, None]
    room = tokens - jnp.sum(~done, dtype=jnp.int32)
    kept = largest_together(part.value, drafted.at[:, 0].set(False), room)
    return replace(part, valid=kept.at[:, 0].set(True))


def kept_nodes(tree: Tree, width: int) -> Int[Array, "B n"]:
    """Returns the ids of the nodes that `cut` keeps, rising."""
    batch, size = tree.tokens.shape
    if not width:
        return jnp.zeros((batch, 1), jnp.int32)
    if width >= size - 1:
        return jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (batch, size))
    return trees.best_nodes(tree, width)


def chosen(
    policy: WidthPolicy, params: PyTree, state: PyTree, tree: Tree, frame: Frame
) -> tuple[Tree, WidthChoice | None]:
    """Returns the tree with the policy's values, and its choice or None."""
    if not policy.widths:
        return tree, None
    name, (batch, size) = type(policy).__name__, tree.tokens.shape
    if policy.widths[-1] >= size:
        raise InputError(
            f"{name} has widths {policy.widths} and the drafter drafts {size - 1} nodes; give "
            f"widths of at most {size - 1}"
        )
    choice = policy.choose(params, state, tree, frame)
    _check_choice(name, choice, (batch, size), len(sizes_of(policy, frame.root)))
    choice = replace(choice, index=jnp.asarray(choice.index, jnp.int32))
    return replace(tree, value=choice.values), choice


def _check_choice(name: str, choice: WidthChoice, nodes: tuple[int, int], rounds: int) -> None:
    """Raises InputError unless this is one of so many rounds, with a value for each node."""
    if not isinstance(choice, WidthChoice):
        raise InputError(
            f"{name}.choose returned a {type(choice).__name__}; it must return a jspec.WidthChoice"
        )
    index, values = choice.index, choice.values
    if isinstance(index, int) and not 0 <= index < rounds:
        raise InputError(
            f"{name}.choose returned index {index} and there are {rounds} rounds to choose from; "
            f"give 0 .. {rounds - 1}"
        )
    for field, value, shape, kind in (
        ("index", index, (), jnp.integer),
        ("values", values, nodes, jnp.floating),
    ):
        if jnp.shape(value) != shape or not jnp.issubdtype(jnp.result_type(value), kind):
            raise InputError(
                f"{name}.choose returned {field} of shape {jnp.shape(value)} and dtype "
                f"{jnp.result_type(value)}; it must be of shape {shape} and {kind.__name__}"
            )


def check_same_trees(tree: Tree, policy: WidthPolicy, state: State) -> None:
    """Raises InputError if the state's statistics are of trees of another depth or width."""
    if (depth := state.stats.acceptance_histogram.shape[1] - 1) != tree.depth:
        raise InputError(
            f"the state was made for trees of depth {depth} and this drafter's have {tree.depth}; "
            "step with the drafter that prefill was given"
        )
    # A part of the widths will do: its rounds have their places in the statistics.
    if not set(widths_of(policy, tree)) <= set(widths := state.stats.widths):
        raise InputError(
            f"the state was made for rounds of {widths} drafted nodes and these have "
            f"{widths_of(policy, tree)}; step with the drafter and the policy that prefill was "
            "given"
        )


def check_rest(policy: WidthPolicy, asked: bool | Bool[Array, ""]) -> None:
    """Raises InputError if the drafter is not asked in rounds that have no width for that."""
    if asked is not True and 0 not in policy.widths:
        raise InputError(
            f"{type(policy).__name__}.should_draft is not always True and its widths "
            f"{policy.widths} have no 0, which rounds without a draft are; put 0 first, or return "
            "True"
        )


def with_room(
    index: Int[Array, ""], tokens: Sequence[int], done: Bool[Array, " B"]
) -> Int[Array, ""]:
    """Returns the chosen round, or the first that has room for the roots of all running rows."""
    if min(tokens) >= len(done):
        return index
    fits = jnp.array(tokens) >= jnp.sum(~done, dtype=jnp.int32)
    chosen = jnp.clip(index, 0, len(tokens) - 1)
    return jnp.where(fits[chosen], chosen, jnp.argmax(fits)).astype(jnp.int32)
