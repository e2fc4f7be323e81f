"""Writing in place in XLA: a switch whose branches do, and arrays without other owners."""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec._xla.manual_axes import vary
from jspec.types import PyTree

SWITCH = "switch_in_place"
"""The name of a switch in a program that is compiled for a GPU."""


def switch(
    index: Int[Array, ""],
    branches: Sequence[Callable[[PyTree, PyTree], PyTree]],
    state: PyTree,
    operands: PyTree,
    platform: str,
) -> PyTree:
    """Returns the state after `branches[index](state, operands)`, changed in place.

    On a CPU or a TPU, what the branches of `lax.switch` change they copy first, here the whole
    cache in every round. The carry of a loop is changed in place, so there every branch is the body
    of a loop that runs once or not at all. On a GPU the branches of a switch change what they get
    in place, and the host waits for nothing; for each of the loops it would.
    """
    if len(branches) == 1:
        return branches[0](state, operands)
    # A round in which no branch ran would be repeated for ever.
    nearest = jnp.clip(index.astype(jnp.int32), 0, len(branches) - 1)
    state, operands, pending = vary((state, operands, nearest), (state, operands))
    if platform == "gpu":
        alike = [partial(_varying, branch) for branch in branches]
        with jax.named_scope(SWITCH):
            return jax.lax.switch(pending, alike, state, operands)
    for number, branch in enumerate(branches):

        def once(carry, branch=branch):
            state, operands, pending = carry
            # XLA may move what depends on no changing part of a carry out of the loop, where it
            # would be computed whichever branch runs. `pending` changes.
            read, pending = jax.lax.optimization_barrier((operands, pending))
            return branch(state, read), operands, pending - len(branches)

        def is_next(carry, number=number):
            return carry[2] == number

        state, operands, pending = jax.lax.while_loop(is_next, once, (state, operands, pending))
    return state


def _varying(branch: Callable[[PyTree, PyTree], PyTree], state: PyTree, operands: PyTree) -> PyTree:
    """Returns what a branch gives, which varies over devices as that of any other branch."""
    return vary(branch(state, operands), state, operands)


def unshare(state: PyTree) -> PyTree:
    """Returns the same with an array of its own for every leaf: none may be donated twice."""
    seen: set[int] = set()

    def copy_repeat(leaf):
        is_repeat = id(leaf) in seen
        seen.add(id(leaf))
        return jnp.copy(leaf) if is_repeat and isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(copy_repeat, state)
