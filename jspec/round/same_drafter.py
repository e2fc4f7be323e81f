"""Checks that a state was made for a drafter and a policy, by the shapes of its parts."""

import jax

from jspec._validate.errors import InputError
from jspec.protocols import Drafting, WidthPolicy
from jspec.round.widths import widths_of
from jspec.tree.sanitize import check_state
from jspec.types import State, Tree


def check_same_memory(drafting: Drafting, state: State) -> None:
    """Raises InputError if the state holds the memory of another drafter, or of another policy.

    A policy without a memory passes on any other's.
    """
    batch, capacity = len(state.root), state.capacity
    for what, part, known in (
        ("drafter", drafting.drafter, state.drafter_state),
        ("policy", drafting.policy, state.policy_state),
    ):
        empty = jax.eval_shape(lambda part=part: part.init(batch, capacity, None))
        if what == "policy" and not jax.tree.leaves(empty):
            continue
        name = type(part).__name__
        try:
            check_state("The state", "prefill", known, f"{name}.init", empty)
        except InputError as error:
            raise InputError(
                f"the state holds the memory of another {what} than this {name}, or of one of "
                f"other sizes; pass the {what} that prefill was given"
            ) from error


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
