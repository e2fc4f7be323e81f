"""What a call asks for beside tokens: the constant part, and what a round does with it.

Nothing of this is computed, or takes memory, unless it was asked for: a part that is None is not in
the program.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from jspec import logprobs as records
from jspec.base import Logprobs, State, Verdict


@struct.dataclass
class Control:
    """What was asked for, constant while a call runs."""

    logprobs: records.Asked | None = struct.field(pytree_node=False, default=None)


@struct.dataclass
class Progress:
    """What a `Control` keeps from round to round."""

    logprobs: Logprobs | None = None


def prepare(vocab_size: int, batch: int, *, logprobs_asked: Any, mode: Any) -> Control | None:
    """The checked control arguments of `decode`; None if there are none.

    Args:
        vocab_size: V.
        batch: B.
        logprobs_asked: `logprobs` of `decode`.
        mode: its `logprobs_mode`.

    Raises:
        InputError: in one sentence, with the value, the bound and the fix.
    """
    del batch
    wanted = records.asked(logprobs_asked, mode, vocab_size)
    return None if wanted is None else Control(logprobs=wanted)


def begin(control: Control | None, batch: int, size: int) -> Progress | None:
    """What is kept before the first round.

    Args:
        control: of the call.
        batch: B.
        size: of the output.
    """
    if control is None:
        return None
    asked = control.logprobs
    return Progress(logprobs=None if asked is None else records.empty(asked, batch, size))


def advance(
    state: State,
    logits: Float[Array, "B N V"],
    processed: Float[Array, "B N V"],
    verdict: Verdict,
    emitted: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> Progress | None:
    """What is kept after a round.

    Args:
        state: before the round.
        logits: the target's.
        processed: what tokens were drawn from.
        verdict: of the round.
        emitted: its tokens.
        counts: how many they are.
    """
    control, progress = state.request.control, state.control
    if control is None:
        return None
    if (asked := control.logprobs) is not None:
        raw = asked.mode == records.RAW
        path = verdict.path[..., None]
        at = jnp.take_along_axis(logits if raw else processed, path, axis=1)
        scores = records.scores(at, None if raw else state.request.sampling)
        recorded = records.record(progress.logprobs, state.lengths, scores, emitted, counts)
        progress = replace(progress, logprobs=recorded)
    return progress


def logprobs_of(state: State) -> Logprobs | None:
    """What is recorded of the output buffer; None if nothing was asked for."""
    return None if state.control is None else state.control.logprobs
