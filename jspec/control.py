"""What a call asks for beside tokens: the constant part, and what a round does with it.

Nothing of this is computed, or takes memory, unless it was asked for: a part that is None is not in
the program.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from jspec import history as histories
from jspec import logprobs as records
from jspec.base import Logprobs, State, Tree, Verdict
from jspec.errors import InputError
from jspec.history import Text
from jspec.processors import Applied, Processor


@struct.dataclass
class Control:
    """What was asked for, constant while a call runs."""

    processors: tuple[Applied, ...] = ()
    """Change the logits of every node, from left to right."""
    logprobs: records.Asked | None = struct.field(pytree_node=False, default=None)


@struct.dataclass
class Progress:
    """What a `Control` keeps from round to round."""

    text: Text | None = None
    """What processors read; None if there are none."""
    logprobs: Logprobs | None = None


def prepare(
    vocab_size: int,
    batch: int,
    *,
    processors: Sequence[Processor],
    logprobs: int | None,
    logprobs_mode: str,
) -> Control | None:
    """The checked control arguments of `decode`; None if nothing was asked for.

    Args:
        vocab_size: V.
        batch: B.
        processors: as in `decode`.
        logprobs: as in `decode`.
        logprobs_mode: as in `decode`.

    Raises:
        InputError: in one sentence, with the value, the bound and the fix.
    """
    control = Control(
        processors=_applied(processors, batch, vocab_size),
        logprobs=records.asked(logprobs, logprobs_mode, vocab_size),
    )
    return control if control.processors or control.logprobs else None


def begin(
    control: Control | None,
    prompt: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    size: int,
    vocab_size: int,
) -> Progress | None:
    """What is kept before the first round.

    Args:
        control: of the call.
        prompt: padded on the right.
        lengths: tokens of each row of it.
        size: of the output.
        vocab_size: V.
    """
    if control is None:
        return None
    asked = control.logprobs
    return Progress(
        text=histories.begin(prompt, lengths, size, vocab_size) if control.processors else None,
        logprobs=None if asked is None else records.empty(asked, len(prompt), size),
    )


def processed(state: State, tree: Tree, logits: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
    """The logits that decide, each node's under its own ancestors; the same ones if nothing was
    asked for.

    Args:
        state: before the round.
        tree: what is verified.
        logits: the target's.

    Raises:
        InputError: if a processor returns something else than logits.
    """
    control, progress = state.request.control, state.control
    if control is None or not control.processors:
        return logits
    lengths = state.cache.lengths + 1  # the root is not in the cache
    history = histories.of_nodes(progress.text, lengths, state.request.eos, tree)
    after = logits.astype(jnp.float32)
    for processor in control.processors:
        after = _checked(processor, after, processor(after, history))
    return after


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
    if progress.text is not None:
        text = histories.extend(progress.text, state.cache.lengths + 1, emitted, counts)
        progress = replace(progress, text=text)
    return progress


def logprobs_of(state: State) -> Logprobs | None:
    """What is recorded of the output buffer; None if nothing was asked for."""
    return None if state.control is None else state.control.logprobs


def _applied(processors: Any, batch: int, vocab_size: int) -> tuple[Applied, ...]:
    if isinstance(processors, Processor):
        processors = (processors,)
    for processor in processors:
        if not isinstance(processor, Processor):
            raise InputError(
                f"processors holds {processor!r:.80}; pass those that jspec.processors makes, such "
                "as jspec.processors.own(function)"
            )
    return tuple(processor.applied(batch, vocab_size) for processor in processors)


def _checked(processor: Applied, before: Array, after: Any) -> Array:
    """What a processor returned, if it is logits."""
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        name = getattr(processor.function, "__name__", "a processor")
        raise InputError(
            f"{name} returned {jnp.shape(after)} of {getattr(after, 'dtype', type(after))}; a "
            f"processor returns logits, {before.shape} of {before.dtype}"
        )
    return after
