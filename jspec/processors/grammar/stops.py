"""Stop strings, found in the loop, so that a row ends with the token that completes one.

A machine that reads bytes (Aho and Corasick 1975) knows how much of a stop string the text ends
with; its token automaton says so after every token, wherever tokens begin and end.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from jspec._validate.errors import InputError
from jspec.processors.grammar import automaton
from jspec.processors.grammar.automaton import (
    Automata,
    Bounds,
    Room,
    TokenAutomaton,
    per_row,
    read_tokens,
    stack,
)
from jspec.processors.grammar.spelling import token_bytes

_LONGEST = 4096


@dataclass(frozen=True, eq=False)
class StopStrings:
    """Texts that end a row. Made by `stop_strings`."""

    strings: tuple[str, ...]
    automaton: TokenAutomaton
    held: Int[np.ndarray, " states"]
    """The last bytes of the text that are of a stop string, or may become one."""
    complete: Bool[np.ndarray, " states"]
    """Whether they are one; there may be bytes behind it, of the same token."""
    sizes: Int[np.ndarray, " V"]
    """The bytes of each token."""


def stop_strings(
    strings: str | Sequence[str], tokenizer: Any, *, max_states: int = 20_000
) -> StopStrings:
    """Texts that end a row as soon as its output has one of them, for `stop` of `decode`.

    The one that is complete first ends the row, and of several the longest. The output is cut
    before it: tokens of which all is part of the stop string, or behind it, are no longer there.
    Of a token that begins before it the text has to be cut, by `Result.stop_bytes`. The prompt is
    not searched.

    Args:
        strings: one or several.
        tokenizer: see `jspec.grammar.token_bytes`.
        max_states: the most states of the automaton.

    Raises:
        InputError: if a string is empty or longer than 4,096 bytes, they are too large, or the
            tokenizer is of another kind.

    Example:
        >>> made = stop_strings(["bc"], [b"a", b"b", b"c", b"ab"])
        >>> made.automaton.table.shape
        (3, 3)
    """
    listed = [strings] if isinstance(strings, str) else list(strings)
    for string in listed:
        if not isinstance(string, str) or not 0 < len(string.encode()) <= _LONGEST:
            raise InputError(f"a stop string is {string!r:.80}; pass text of 1 .. {_LONGEST} bytes")
    if not listed:
        raise InputError("there are no stop strings; pass at least one, or leave stop=None")
    tokens = token_bytes(tokenizer)
    longest = max((len(text or b"") for text in tokens), default=0)
    step, held, complete = _machine([string.encode() for string in listed], longest, max_states)
    bounds = Bounds(states=max_states)
    made = read_tokens(step, tokens, "the stop strings", bounds, last=complete)
    return StopStrings(
        strings=tuple(listed),
        automaton=made,
        held=held[made.origins],
        complete=complete[made.origins],
        sizes=np.array([len(text or b"") for text in tokens], np.int32),
    )


def _machine(
    strings: Sequence[bytes], longest_token: int, max_states: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Next state by state and byte, with the bytes held in a state and whether a string is whole.

    State 0 is the first. A complete string leads to states that count the bytes behind its begin.

    Raises InputError as soon as the strings have more beginnings than there may be states.
    """
    children: list[dict[int, int]] = [{}]
    depth, ends = [0], [0]
    for string in strings:
        state = 0
        for byte in string:
            if byte not in children[state]:
                children[state][byte] = len(children)
                children.append({})
                depth.append(depth[state] + 1)
                ends.append(0)
                # What is whole is none of these states.
                if len(children) - len(strings) > max_states:
                    raise InputError(
                        f"the automaton of the stop strings has more than {max_states} states; "
                        "make them shorter, or raise max_states"
                    )
            state = children[state][byte]
        ends[state] = len(string)
    size = len(children)
    counted = max(map(len, strings)) + longest_token
    # States `size + n` have n + 1 bytes from the begin of a complete string on.
    step = np.zeros((size + counted, 256), np.int32)
    fallback = [0] * size
    queue = deque([0])
    while queue:  # breadth first: what a state falls back to is known before it
        state = queue.popleft()
        step[state] = step[fallback[state]] if state else 0
        for byte, child in children[state].items():
            if state:
                fallback[child] = int(step[fallback[state], byte])
            # The longest string that ends here: its own, or else what its fallback ends with.
            ends[child] = ends[child] or ends[fallback[child]]
            step[state, byte] = child
            queue.append(child)
    whole = np.array(ends)
    step[:size] = np.where(whole[step[:size]] > 0, size + whole[step[:size]] - 1, step[:size])
    step[size:] = np.minimum(np.arange(counted) + 1, counted - 1)[:, None] + size
    held = np.concatenate([depth, np.arange(counted) + 1])
    return step, held.astype(np.int32), np.arange(size + counted) >= size


@struct.dataclass
class Stops:
    """The stop strings of all rows, constant while a call runs."""

    automata: Automata
    held: Int[Array, " states"]
    complete: Bool[Array, " states"]
    sizes: Int[Array, "automata V"]


@struct.dataclass
class StopProgress:
    """What stop strings keep from round to round."""

    states: Int[Array, " B"]
    pending: Int[Array, " B"]
    """The last tokens of the output that may yet turn out to be of a stop string."""
    stop_bytes: Int[Array, " B"]
    """The bytes at the end of the output that are of the stop string that ended the row."""
    dropped: Int[Array, " B"]
    """The tokens that were emitted and are not in the output: all of them is of the stop string, or
    behind it. The cache has them."""
    begins: Int[Array, " B"]
    """The token before the output."""


def prepare(stop: Any, batch: int, vocab_size: int, room: Room | None = None) -> Stops | None:
    """The checked argument `stop` of `decode`: a `StopStrings`, or one or None for each row.

    Args:
        stop: what was given.
        batch: B.
        vocab_size: V.
        room: for those of a single row that may come to others, whether it has any or not.

    Raises:
        InputError: if it is something else, or there is no room for it.
    """
    rows = per_row("stop", stop, batch, StopStrings)
    if rows is None:
        if room is None:
            return None
        rows = [None] * batch
    automata, values = stack(rows, vocab_size, {"held": 0, "complete": False}, room)
    sizes: Any = np.zeros(automata.classes.shape, np.int32)
    for row, one in zip(automata.which, rows, strict=True):
        if one is not None:
            sizes[row, : len(one.sizes)] = one.sizes[:vocab_size]
    return Stops(automata, values["held"], values["complete"], sizes)


def spread(stops: Stops, batch: int) -> Stops:
    """Room for the stop strings of so many rows; see `automaton.spread`."""
    automata, (held, complete) = automaton.spread(
        stops.automata, (stops.held, stops.complete), batch
    )
    return Stops(automata, held, complete, jnp.zeros_like(automata.classes))


def put(stops: Stops, row: Int[Array, ""], one: Stops) -> Stops:
    """The stop strings with those of a single row in the place of a row's; see `automaton.put`."""
    values, its_values = ((part.held, part.complete) for part in (stops, one))
    automata, (held, complete) = automaton.put(
        stops.automata, values, row, one.automata, its_values
    )
    sizes = jax.lax.dynamic_update_slice_in_dim(stops.sizes, one.sizes, row, axis=0)
    return Stops(automata, held, complete, sizes)


def begin(stops: Stops, root: Int[Array, " B"]) -> StopProgress:
    """What is kept before the first round, which begins with this token of each row."""
    zeros = jnp.zeros_like(jnp.asarray(stops.automata.starts))
    return StopProgress(
        states=zeros + stops.automata.starts,
        pending=zeros,
        stop_bytes=zeros,
        dropped=zeros,
        begins=root,
    )


def follow(stops: Stops, states: Int[Array, " B"], tokens: Int[Array, "B P"]) -> Int[Array, "B P"]:
    """The states after each of the tokens."""
    found = []
    for place in range(tokens.shape[1]):
        after = stops.automata.step(states, tokens[:, place])
        # A token without text changes nothing.
        states = jnp.where(after < 0, states, after)
        found.append(states)
    return jnp.stack(found, axis=1)


def advance(
    stops: Stops,
    known: StopProgress,
    tokens: Int[Array, "B P"],
    counts: Int[Array, " B"],
    out: Int[Array, "B T"],
    lengths: Int[Array, " B"],
    done: Bool[Array, " B"],
) -> tuple[StopProgress, Int[Array, " B"]]:
    """What is kept after a round, and the tokens of each row that remain.

    Args:
        stops: of the call.
        known: before the round.
        tokens: of the round.
        counts: how many they are; 0 in rows that had ended.
        out: the output with them.
        lengths: its tokens.
        done: rows that have ended, in this round or before.
    """
    passed = jnp.concatenate([known.states[:, None], follow(stops, known.states, tokens)], axis=1)
    states = jnp.take_along_axis(passed, counts[:, None], axis=1)[:, 0]
    held = stops.held[states][:, None]
    complete = stops.complete[states] & (counts > 0)
    place = jnp.arange(out.shape[1], dtype=jnp.int32)
    there = place < lengths[:, None]
    sizes = jnp.where(there, stops.sizes[stops.automata.which[:, None], out], 0)
    # The bytes from the begin, and from the end, of each token to the end of the text.
    begins = jnp.cumsum(sizes[:, ::-1], axis=1)[:, ::-1]
    ends = begins - sizes
    touched = there & (ends < held)
    inside = touched & (begins <= held)

    def from_the_end(tokens: Bool[Array, "B T"]) -> Int[Array, " B"]:
        return jnp.where(tokens, lengths[:, None] - place, 0).max(-1)

    dropped = jnp.where(complete, from_the_end(inside), 0)
    beyond = held[:, 0] - jnp.where(inside, sizes, 0).sum(-1)
    after = StopProgress(
        states=states,
        pending=jnp.where(done, 0, from_the_end(touched)),
        stop_bytes=jnp.where(complete, beyond, known.stop_bytes).astype(jnp.int32),
        dropped=jnp.where(complete, dropped, known.dropped),
        begins=known.begins,
    )
    return after, lengths - dropped
