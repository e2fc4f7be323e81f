"""Stop strings, found in the loop, so that a row ends with the token that completes one.

A machine that reads bytes (Aho and Corasick 1975) knows how much of a stop string the text ends
with; its token automaton says so after every token, wherever tokens begin and end.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.kinds import to_utf8
from jspec._validate.row_arguments import library_of
from jspec._xla.manual_axes import vary
from jspec.processors.grammar.automaton import (
    FREE,
    Automata,
    AutomatonRows,
    Bounds,
    Capacity,
    Tables,
    TokenAutomaton,
    read_tokens,
    stack,
)
from jspec.processors.grammar.spelling import token_bytes
from jspec.protocols import LogitsProcessor, StepInfo

_LONGEST = 4096


@dataclass(frozen=True, eq=False)
class StopStrings:
    """Texts that end a row: `Stopping.stop` of a call. Made by `stop_strings`."""

    strings: tuple[str, ...]
    automaton: TokenAutomaton
    held: Int[np.ndarray, " states"]
    """The last bytes read that are of a stop string, or may become one."""
    complete: Bool[np.ndarray, " states"]
    """True if they are one; there may be bytes behind it, of the same token."""
    sizes: Int[np.ndarray, " V"]
    """The bytes of each token; below 0 of one that is read as its name, and has no text."""
    searching: Int[np.ndarray, " states"]
    """The way from a state that ends no row to the one that has read as much and does."""

    def init(self, batch: int, vocab_size: int, end_tokens: Any) -> "Stops":
        """Returns the stop strings of all rows."""
        return self.prepare([self] * batch, vocab_size, end_tokens)

    @staticmethod
    def prepare(
        rows: "Sequence[StopStrings | None]",
        vocab_size: int,
        end_tokens: Any = None,
        capacity: "Capacity | None" = None,
    ) -> "Stops":
        """Returns the stop strings of rows."""
        del end_tokens
        free = {"held": 0, "complete": False, "searching": 0}
        of_rows, tables = stack(rows, vocab_size, free, capacity, sized=True)
        zeros: Any = np.zeros(len(rows), np.int32)
        return Stops(StopRows(of_rows, zeros, zeros), tables)


def stop_strings(
    strings: str | Sequence[str], tokenizer: Any, *, max_states: int = 20_000
) -> StopStrings:
    """Returns texts that end a row as soon as its output has one of them, for `Stopping.stop`.

    The one that is complete first ends the row, and of several the longest. The output keeps its
    tokens, as in vLLM and SGLang; the text ends before it, by `Result.stop_bytes`. The prompt is
    not searched. With `Stopping.min_tokens` a string that is complete earlier is passed over.

    A special token has no text, and a string may go on across it. Where a string contains its name,
    such as "<|im_end|>", the token is that name.

    Args:
        strings: one or several.
        tokenizer: see `jspec.grammar.token_bytes`.
        max_states: the most states of the automaton.

    Raises:
        InputError: for a string empty or over 4,096 bytes, too large a set, or an unfit tokenizer.

    Example:
        >>> made = stop_strings(["bc"], [b"a", b"b", b"c", b"ab"])
        >>> made.strings, int(made.held.max())
        (('bc',), 2)
    """
    listed = [strings] if isinstance(strings, str) else list(strings or ())
    for string in listed:
        if not isinstance(string, str) or not 0 < len(to_utf8("stop", string)) <= _LONGEST:
            raise InputError(f"a stop string is {string!r:.80}; pass text of 1 .. {_LONGEST} bytes")
    if not listed:
        raise InputError("there are no stop strings; pass at least one, or leave them out")
    tokens, patterns = token_bytes(tokenizer), [string.encode() for string in listed]
    for number, name in tokens.names.items():
        if any(name in string for string in patterns):
            tokens[number] = name
    sizes = np.array([len(text or b"") for text in tokens], np.int32)
    sizes[list(tokens.names)] *= -1
    longest = int(np.abs(sizes).max(initial=0))
    step, lengths, complete, waits = _machine(patterns, longest, max_states)
    automaton = read_tokens(
        step,
        tokens,
        "the stop strings",
        # Those that end no row come to the others.
        Bounds(states=2 * max_states),
        last=complete,
        starts=(0, waits),
        twins={waits + state: state for state in range(len(step) - waits)},
    )
    place = {origin: place for place, origin in enumerate(automaton.origins.tolist())}
    return StopStrings(
        strings=tuple(listed),
        automaton=automaton,
        held=lengths[automaton.origins],
        complete=complete[automaton.origins],
        sizes=sizes,
        searching=np.array(
            [
                place[origin - waits] - index if origin >= waits else 0
                for index, origin in enumerate(automaton.origins.tolist())
            ],
            np.int32,
        ),
    )


def _machine(
    strings: Sequence[bytes], longest_token: int, max_states: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Returns the next state by state and byte, the bytes held in a state, whether a string is
    whole in it, and the first of the states that wait.

    State 0 is the first. A complete string leads to states that count the bytes behind its begin.
    The states that wait are the last ones: the strings' states once more, in which a complete
    string is ordinary text.
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
                # A complete string is in none of these states.
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
    end_lengths, waits = np.array(ends), size + counted
    waiting = step[:size] + waits
    step[:size] = np.where(
        end_lengths[step[:size]] > 0, size + end_lengths[step[:size]] - 1, step[:size]
    )
    step[size:] = np.minimum(np.arange(counted) + 1, counted - 1)[:, None] + size
    # What may become part of a string: of one that is whole and leads on to no other, less.
    for state in sorted(range(1, size), key=lambda state: depth[state]):
        if not children[state]:
            depth[state] = depth[fallback[state]]
    lengths = np.concatenate([depth, np.arange(counted) + 1, depth])
    complete = (np.arange(len(lengths)) >= size) & (np.arange(len(lengths)) < waits)
    return np.concatenate([step, waiting]), lengths.astype(np.int32), complete, waits


@struct.dataclass
class StopRows:
    """Per-row state of stop strings."""

    automaton: AutomatonRows
    stop_bytes: Int[Array, " B"]
    """The bytes at the end of the text that are of the stop string that ended the row; while it
    runs, those that may become one."""
    waits: Int[Array, " B"]
    """The tokens that come before one that may end the row."""


@struct.dataclass
class Stops(LogitsProcessor):
    """The stop strings of all rows."""

    rows: StopRows
    shared: Tables | None = None

    is_single = True

    @property
    def automata(self) -> Automata:
        return Automata.of(self.rows.automaton, self.shared)

    @property
    def stop_bytes(self) -> Int[Array, " B"]:
        return self.rows.stop_bytes

    def with_min_tokens(self, min_tokens: Int[Array, " B"]) -> Self:
        states, arrays = self.rows.automaton.states, library_of(min_tokens)
        # An automaton's second state is the first of those that wait.
        waits = arrays.where(states != FREE, min_tokens, 0)
        automaton = replace(self.rows.automaton, states=states + (waits > 0))
        return replace(self, rows=replace(self.rows, automaton=automaton, waits=waits))

    def follow(self, tokens: Int[Array, "B P"]) -> Int[Array, "B P"]:
        """Returns the states after each of the tokens."""

        def advance(states, entry):
            place, token = entry
            after = self.automata.step(states, token)
            # A token without text changes nothing.
            states = jnp.where(after < 0, states, after)
            over = self.rows.waits <= place + 1
            states += jnp.where(over, self.automata.value("searching", states), 0)
            return states, states

        start = vary(self.rows.automaton.states, self, tokens)
        places = jnp.arange(tokens.shape[1], dtype=jnp.int32)
        return jax.lax.scan(advance, start, (places, tokens.T))[1].T

    def ends(self, tokens: Int[Array, "B P"]) -> Bool[Array, "B P"]:
        """Returns the tokens behind which a stop string is complete."""
        return self.automata.value("complete", self.follow(tokens))

    def advance(self, info: StepInfo) -> Self:
        """Advances by the round's tokens."""
        start = self.rows.automaton.states[:, None]
        passed = jnp.concatenate([start, self.follow(info.emitted)], axis=1)
        states = jnp.take_along_axis(passed, info.counts[:, None], axis=1)[:, 0]
        mask = jnp.arange(info.tokens.shape[1]) < info.ends[:, None]
        sizes = jnp.where(mask, self.automata.sizes(info.tokens), 0)
        read = jnp.abs(sizes)
        # The bytes behind each token, and those of it that are of the string. A name is no text.
        behind = jnp.cumsum(read[:, ::-1], axis=1)[:, ::-1] - read
        length = self.automata.value("held", states)[:, None]
        inside = jnp.where(sizes > 0, jnp.clip(length - behind, 0, read), 0).sum(-1)
        over = info.done & ~self.automata.value("complete", states)
        rows = StopRows(
            automaton=replace(self.rows.automaton, states=states),
            # A row may also end without a token: what it held back is text then.
            stop_bytes=jnp.where(
                over, 0, jnp.where(info.counts > 0, inside, self.stop_bytes)
            ).astype(jnp.int32),
            waits=jnp.maximum(self.rows.waits - info.counts, 0),
        )
        return replace(self, rows=rows)
