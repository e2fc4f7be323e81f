"""Whether a state was made for a drafter: its memory and its statistics have the shapes of that."""

import jax

from jspec._validate.errors import InputError
from jspec.protocols import Drafter
from jspec.round.widths import widths_of
from jspec.tree.sanitize import check_state
from jspec.types import State, Tree


def check_same_memory(drafter: Drafter, state: State) -> None:
    """Raises InputError if the state holds the memory of another drafter."""
    batch, capacity = len(state.root), state.capacity
    empty = jax.eval_shape(lambda: drafter.init(batch, capacity, None))
    name = type(drafter).__name__
    try:
        check_state("The state", "prefill", state.drafter_state, f"{name}.init", empty)
    except InputError as error:
        raise InputError(
            f"the state holds the memory of another drafter than this {name}, or of one of other "
            "sizes; pass the drafter that prefill was given"
        ) from error


def check_same_trees(tree: Tree, state: State) -> None:
    """Raises InputError if the state's statistics are of trees of another depth or width."""
    if (depth := state.stats.histogram.shape[1] - 1) != tree.depth:
        raise InputError(
            f"the state was made for trees of depth {depth} and this drafter's have {tree.depth}; "
            "step with the drafter that prefill was given"
        )
    # A part of the widths will do: its rounds have their places in the statistics.
    if not set(widths_of(tree)) <= set(widths := state.stats.widths):
        raise InputError(
            f"the state was made for rounds of {widths} drafted nodes and this drafter's have "
            f"{widths_of(tree)}; step with the drafter that prefill was given"
        )
