"""Texts that are cut back to what was returned, before something goes on from them."""

from dataclasses import replace

import jax
from jaxtyping import Array, Int

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import known_values
from jspec._xla.explicit_axes import automatic
from jspec.protocols import CausalLM
from jspec.round import processing
from jspec.types import State


def text_as_returned(model: CausalLM, state: State) -> State:
    """The state with rows that end where their output does: what a stop string cut off is gone from
    the model's memory, too, and from what processors read. The drafter's memory follows when it
    next reads.

    Raises:
        InputError: if something was cut off, and the model's memory cannot be cut back.
    """
    if processing.first(state, "dropped") is None:
        return state
    text, committed = _ends_of(replace(state, memory=(), drafter_state=()))
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
        root=text.root,
        processors=text.processors,
    )


def _ends(state: State) -> tuple[State, Int[Array, " B"]]:
    """The state with the roots of texts as they were returned and the processors that keep them,
    and the committed tokens before the roots.
    """
    (member,) = (one for one in state.processors if one.dropped is not None)
    root = member.root_as_returned(state.out, state.lengths, state.root)
    committed = state.positions - member.dropped
    kept = processing.with_text(state).processors
    rewound = tuple(one.rewound(committed + 1, member.dropped) for one in kept)
    return replace(state, root=root, processors=rewound), committed


_ends_of = jax.jit(automatic(_ends))
