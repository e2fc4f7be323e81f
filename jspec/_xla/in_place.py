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
    given: PyTree,
    platform: str,
) -> PyTree:
    """Returns the state after `branches[index](state, given)`, changed in place.

    On a CPU or a TPU, what the branches of `lax.switch` change they copy first, here the whole
    cache in every round. The carry of a loop is changed in place, so there every branch is the body
    of a loop that runs once or not at all. On a GPU the branches of a switch change what they get
    in place, and the host waits for nothing; for each of the loops it would.

    Example:
        >>> import jax.numpy as jnp
        >>> add, double = lambda x, y: x + y, lambda x, y: 2 * x
        >>> int(switch(jnp.int32(1), [add, double], jnp.int32(5), jnp.int32(3), "cpu"))
        10
    """
    if len(branches) == 1:
        return branches[0](state, given)
    # A round in which no branch ran would be repeated for ever.
    nearest = jnp.clip(index.astype(jnp.int32), 0, len(branches) - 1)
    state, given, left = vary((state, given, nearest), (state, given))
    if platform == "gpu":
        alike = [partial(_varying, branch) for branch in branches]
        with jax.named_scope(SWITCH):
            return jax.lax.switch(left, alike, state, given)
    for number, branch in enumerate(branches):

        def once(carry, branch=branch):
            state, given, left = carry
            # XLA may move what depends on no changing part of a carry out of the loop, where it
            # would be computed whichever branch runs. `left` changes.
            read, left = jax.lax.optimization_barrier((given, left))
            return branch(state, read), given, left - len(branches)

        def chosen(carry, number=number):
            return carry[2] == number

        state, given, left = jax.lax.while_loop(chosen, once, (state, given, left))
    return state


def _varying(branch: Callable[[PyTree, PyTree], PyTree], state: PyTree, given: PyTree) -> PyTree:
    """Returns what a branch gives, which varies over devices as that of any other branch."""
    return vary(branch(state, given), state, given)


def owned(state: PyTree) -> PyTree:
    """Returns the same with an array of its own for every leaf: none may be donated twice."""
    seen: set[int] = set()

    def own(leaf):
        known = id(leaf) in seen
        seen.add(id(leaf))
        return jnp.copy(leaf) if known and isinstance(leaf, jax.Array) else leaf

    return jax.tree.map(own, state)
