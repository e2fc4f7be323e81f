"""The processors of a call: prepared, applied, and advanced.

A member is a `jspec.protocols.LogitsProcessor`: penalties, a grammar, stop strings or
log-probabilities, none of which is known here. A state carries a tuple of members, and what a call
does not ask for is not in the program.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import integers
from jspec._xla.manual_axes import vary
from jspec.protocols import LogitsProcessor, StepInfo, TreeInfo
from jspec.types import PyTree, State, Stopping, Tree


def several(processors: Any) -> tuple[Any, ...]:
    """Returns the entries of `processors=`, which is one or a list of them."""
    listed = processors if isinstance(processors, list | tuple) else [processors]
    if not all(hasattr(entry, "init") for entry in listed):
        raise InputError(
            f"processors is {processors!r:.80}; pass what jspec.processors and jspec.grammar "
            "make, or a list of these; rows that differ have a jspec.Request each"
        )
    return tuple(listed)


def list_processors(processors: Any, stopping: Stopping) -> tuple[Any, ...]:
    """Returns a call's processors between the fewest tokens and the stop strings, or None."""
    first = None
    if stopping.min_tokens is not None:
        # On first use: decoding needs nothing of it.
        from jspec.processors.logits import min_tokens

        first = min_tokens(stopping.min_tokens)
    if stopping.stop is not None and not hasattr(stopping.stop, "init"):
        raise InputError(
            f"stop is {stopping.stop!r:.80}; pass jspec.stop_strings(texts, tokenizer), since this "
            "call knows no tokenizer; rows that differ have a jspec.Request each"
        )
    return (first, *several(processors), stopping.stop)


def prepare(
    entries: Sequence[Any],
    batch: int,
    vocab_size: int,
    end_tokens: Int[Array, "B X"],
    min_tokens: ArrayLike | None = None,
) -> tuple[LogitsProcessor, ...]:
    """Returns the members of a call, from left to right."""
    members: list[LogitsProcessor] = []
    for entry in entries:
        if entry is None:
            continue
        member = entry.init(batch, vocab_size, end_tokens)
        before = members[-1] if members else None
        both = None if before is None else before.fuse(member)
        if both is not None:
            members[-1] = both
            continue
        if member.is_single and any(type(other) is type(member) for other in members):
            raise InputError(
                f"processors has two entries like {entry!r:.60}; pass one, such as one grammar or "
                "all stop strings together"
            )
        members.append(member)
    if min_tokens is None:
        return tuple(members)
    min_counts = integers(min_tokens, batch, "min_tokens", 0, 2**31 - 1, "0 switches it off")
    return tuple(member.with_min_tokens(min_counts) for member in members)


def process(state: State, tree: Tree, logits: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
    """Returns the logits that decide, each node's under its ancestors; the same if nothing asks."""
    members = [member for member in state.processors if member.process is not None]
    if not members:
        return logits
    # The root is not committed.
    info = TreeInfo(tree, state.positions + 1, state.controls.end_tokens)

    def after(logits: Float[Array, "B N V"]) -> Float[Array, "B N V"]:
        for member in members:
            logits = member.process(logits, info)
        return logits

    wide = logits.astype(jnp.float32)
    changed = jnp.zeros_like(state.done)
    for member in members:
        active = member.active_rows()
        if active is None:
            return after(wide)
        changed |= active
    # Passes over all logits of all nodes, so they wait until some row asks for one.
    like = tree, state
    return jax.lax.cond(
        (changed & ~state.done).any(),
        lambda logits: vary(after(logits), *like),
        lambda logits: vary(logits, *like),
        wide,
    )


def grammar(state: State) -> PyTree:
    """Returns `Frame.grammar`; None if every token is allowed."""
    make = state.first("grammar")
    return None if make is None else make(state.controls.end_tokens)


def ends(state: State, tokens: Int[Array, "B P"]) -> tuple[Bool[Array, "B P"], Bool[Array, "B P"]]:
    """Returns which of a round's tokens are end tokens, and which end a row otherwise."""

    def are(listed: Int[Array, "B X"]) -> Bool[Array, "B P"]:
        return (tokens[:, :, None] == listed[:, None, :]).any(-1)

    stopped = jnp.zeros(tokens.shape, bool)
    if (stop_token_ids := state.controls.stop_token_ids) is not None:
        stopped |= are(stop_token_ids)
    for member in state.processors:
        if member.ends is not None:
            stopped |= member.ends(tokens)
    return are(state.controls.eos), stopped


def advance(
    before: State,
    after: State,
    logits: Float[Array, "B N V"],
    processed: Float[Array, "B N V"],
    path: Int[Array, "B P"],
    emitted: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> State:
    """Returns the state after a round with its members."""
    if not before.processors:
        return after
    info = StepInfo(
        emitted=emitted, counts=counts, path=path, logits=logits, processed=processed,
        sampling=before.controls.sampling, text_lengths=before.positions + 1,
        begins=before.lengths, had_ended=before.done,
        tokens=after.tokens, ends=after.lengths, done=after.done,
    )  # fmt: skip
    return replace(after, processors=tuple(member.advance(info) for member in before.processors))


def with_text(state: State) -> State:
    """Returns the state with no members but those that keep the text for a later call."""
    members = tuple(member for member in state.processors if member.text is not None)
    return replace(state, processors=members)
