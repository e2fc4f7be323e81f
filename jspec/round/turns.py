"""Rounds of several kinds: each kind in a loop of its own, which runs while it has its turn.

Where all kinds share the body of one loop, each difference between them is a condition, for which
the host of a GPU waits, and arrays that stand for what a kind has not. In a loop of its own a
back-off is plain decoding, and waits for nothing but whether there is another one. On other devices
conditions cost nothing, and the program is smaller with one body.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Bool

from jspec._xla import backend
from jspec.protocols import Drafter

TURN = "turn_of_rounds_"
"""The name of a kind's loop in a compiled program, before its number."""


def repeated(
    going: Callable[[Any], Bool[Array, ""]],
    round_of: Callable[[Drafter, Any], Any],
    carry: Any,
    drafter: Drafter,
) -> Any:
    """What is left after the rounds of a drafter, which are run while they go on.

    Args:
        going: whether there is another round, by what is carried.
        round_of: runs a round of a drafter.
        carry: a pair, of which the state is the first.
        drafter: one that has `turns` is taken for several: pairs of a drafter and of a function of
            the memory that says whether it has its turn, a back-off's first. One of them always
            has, and together they draft as the one does.
    """
    turns = getattr(drafter, "turns", ()) if backend.platform() == "gpu" else ()
    if not turns:
        return jax.lax.while_loop(going, lambda carry: round_of(drafter, carry), carry)

    def each_in_turn(carry: Any) -> Any:
        for number, (kind, has_turn) in enumerate(turns):

            def on(carry: Any, has_turn=has_turn) -> Bool[Array, ""]:
                return going(carry) & has_turn(carry[0].drafter_state)

            run = partial(round_of, kind)
            with jax.named_scope(f"{TURN}{number}"):
                carry = jax.lax.while_loop(on, run, carry)
        return carry

    return jax.lax.while_loop(going, each_in_turn, carry)
