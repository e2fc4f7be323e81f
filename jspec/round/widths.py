"""The width of a round: the number of the drafter's nodes that are verified.

Shapes are static, so a round has one program for each width that it may have, and runs one of them.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from jspec import tree as trees
from jspec._validate.errors import InputError
from jspec.protocols import CausalLM, WidthPolicy
from jspec.round.forward import num_tokens_of
from jspec.types import Frame, PyTree, State, Tree, WidthChoice


def widths_of(policy: WidthPolicy, tree: Tree) -> tuple[int, ...]:
    """Returns the possible widths with such a tree; all of its nodes by default."""
    return policy.widths or (tree.tokens.shape[1] - 1,)


def cut(tree: Tree, width: int) -> Tree:
    """Returns the tree of the nodes of largest value, or of the first, as it is verified."""
    if width >= tree.tokens.shape[1] - 1:
        return tree
    if tree.value is None or tree.nested:
        return trees.first(tree, width)
    return trees.best(tree, width)


def node_indices(tree: Tree, width: int) -> Int[Array, "B n"]:
    """Returns the ids of the nodes that `cut` keeps, rising."""
    batch, size = tree.tokens.shape
    if not width:
        return jnp.zeros((batch, 1), jnp.int32)
    if width >= size - 1 or tree.value is None or tree.nested:
        first = jnp.arange(min(width + 1, size), dtype=jnp.int32)
        return jnp.broadcast_to(first, (batch, len(first)))
    return trees.best_nodes(tree, width)


def choose_width(
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
    _check_choice(name, choice, (batch, size), len(policy.widths))
    choice = replace(choice, index=jnp.asarray(choice.index, jnp.int32))
    if choice.values is None:
        return tree, choice
    return replace(tree, value=choice.values, nested=False), choice


def _check_choice(name: str, choice: WidthChoice, nodes: tuple[int, int], widths: int) -> None:
    """Raises InputError unless this is one of so many widths, with a value for each node."""
    if not isinstance(choice, WidthChoice):
        raise InputError(
            f"{name}.choose returned a {type(choice).__name__}; it must return a jspec.WidthChoice"
        )
    index, values = choice.index, choice.values
    if isinstance(index, int) and not 0 <= index < widths:
        raise InputError(
            f"{name}.choose returned index {index} and there are {widths} widths to choose from; "
            f"give 0 .. {widths - 1}"
        )
    fields: list[tuple[str, Any, tuple[int, ...], Any]] = [("index", index, (), jnp.integer)]
    if values is not None:
        fields.append(("values", values, nodes, jnp.floating))
    for field, value, shape, kind in fields:
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


def check_round(model: CausalLM, policy: WidthPolicy, tree: Tree) -> None:
    """Raises InputError if rounds of such trees have no room in the model's one shape."""
    impl: Any = getattr(model, "attention_impl", None)
    if num_tokens_of(model) == 1:
        return
    width = widths_of(policy, tree)[-1]
    depth = min(tree.depth, width)
    if width >= impl.num_tokens:
        raise InputError(
            f"a round has {width + 1} tokens and {impl} fewer; draft at most "
            f"{impl.num_tokens - 1}, or give it (or --batch-invariant) {width + 1}"
        )
    if depth > getattr(impl, "depth", width):
        raise InputError(
            f"trees have depth {depth} and {impl} orders fewer positions; pass depth={depth}, or "
            "draft less"
        )


def check_rest(policy: WidthPolicy, should_draft: bool | Bool[Array, ""]) -> None:
    """Raises InputError if the drafter is not asked in rounds that have no width for that."""
    if should_draft is not True and 0 not in policy.widths:
        raise InputError(
            f"{type(policy).__name__}.should_draft is not always True and its widths "
            f"{policy.widths} have no 0, which rounds without a draft are; put 0 first, or return "
            "True"
        )
