"""Texts that are cut back to what was returned, before something goes on from them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import known_values
from jspec._xla.explicit_axes import automatic
from jspec.processors import control as controls
from jspec.processors import history as histories
from jspec.processors.history import Text
from jspec.protocols import CausalLM
from jspec.types import State


def text_as_returned(model: CausalLM, state: State) -> State:
    """The state with rows that end where their output does: what a stop string cut off is gone from
    the model's memory, too, and from what processors read. The drafter's memory follows when it
    next reads.

    Raises:
        InputError: if something was cut off, and the model's memory cannot be cut back.
    """
    if controls.stop_of(state) is None:
        return state
    bare = replace(state, memory=(), drafter_state=(), request=replace(state.request, control=None))
    root, committed, text = _ends_of(bare)
    cut = getattr(model, "until", None)
    if cut is None and (
        (same := known_values(committed == state.positions)) is None or not same.all()
    ):
        raise InputError(
            f"a stop string has cut a row's text and {type(model).__name__} has no method until to "
            "cut its memory; pass the whole text as one prompt"
        )
    return replace(
        state,
        memory=state.memory if cut is None else cut(state.memory, committed),
        positions=committed,
        root=root,
        control=replace(state.control, text=text, stop=None),
    )


def _ends(state: State) -> tuple[Int[Array, " B"], Int[Array, " B"], Text | None]:
    """Where the texts of rows end as they were returned, without what a stop string cut off.

    Args:
        state: with stop strings.

    Returns:
        The last token of each row, the committed tokens before it, and what processors read.
    """
    progress = state.control
    stop, text = progress.stop, progress.text
    place = jnp.maximum(state.lengths - 1, 0)[:, None]
    written = jnp.take_along_axis(state.out, place, axis=1)[:, 0]
    last = jnp.where(state.lengths > 0, written, stop.begins)
    committed = state.positions - stop.dropped
    if text is not None:
        text = histories.cut(text, committed + 1, stop.dropped)
    return jnp.where(stop.dropped > 0, last, state.root), committed, text


_ends_of = jax.jit(automatic(_ends))
