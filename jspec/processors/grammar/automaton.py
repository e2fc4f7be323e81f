"""Token automata: byte automata applied to tokens, as small tables.

Most tokens of a large vocabulary do the same in every state, such as all that no string may hold.
They are one *class*, and a table has a column for each class instead of one for each token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import jax
import numpy as np
from jaxtyping import Array, Bool, Int

from jspec import _struct as struct
from jspec._validate.arguments import check_integer
from jspec._validate.errors import InputError
from jspec.protocols import LogitsProcessor

NONE = -1
"""The entry of a table where a token leads nowhere."""
FREE = 0
"""The state of rows without an automaton, in stacked tables: every token leads back to it."""
_MEGABYTE = 2**20


@dataclass(frozen=True)
class Bounds:
    """The most that a token automaton may take; beyond, it is refused before it is built."""

    states: int = 20_000
    megabytes: int = 256


@dataclass(frozen=True)
class Capacity:
    """The room for a row's grammar, or for its stop strings, in a `jspec.Engine`: of a
    `jspec.Room`. Static.

    Args:
        states: most states.
        classes: most classes of tokens: those that no state tells apart are one.

    Raises:
        InputError: if there is room for nothing.

    Example:
        >>> Capacity(states=512, classes=256).megabytes
        0.5
    """

    states: int
    classes: int

    def __post_init__(self):
        check_integer("states", self.states, 1, None)
        check_integer("classes", self.classes, 1, None)

    @property
    def megabytes(self) -> float:
        """The memory of the table, for each row."""
        return self.states * self.classes * 4 / _MEGABYTE


@dataclass(frozen=True)
class ByRow:
    """Automata of rows, of which each row has its own, or None."""

    kind: Any
    rows: Sequence[Any]
    capacity: Capacity | None = None

    def init(self, batch: int, vocab_size: int, end_tokens: Any) -> LogitsProcessor:
        """Returns the member for B rows."""
        del batch
        return self.kind.prepare(self.rows, vocab_size, end_tokens, self.capacity)


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """A token automaton on the host. State 0 is the first."""

    table: Int[np.ndarray, "states classes"]
    """The next state after a token of each class; -1 where there is none."""
    classes: Int[np.ndarray, " V"]
    """The class of each token."""
    origins: Int[np.ndarray, " states"]
    """The state of the byte machine that each state is."""

    @property
    def megabytes(self) -> float:
        """The memory of the table."""
        return self.table.nbytes / _MEGABYTE


def read_tokens(
    step: Int[np.ndarray, "bytes_states 256"],
    tokens: Sequence[bytes | None],
    what: str,
    bounds: Bounds,
    last: Bool[np.ndarray, " bytes_states"] | None = None,
    starts: Sequence[int] = (0,),
    twins: Mapping[int, int] | None = None,
) -> TokenAutomaton:
    """Makes the token automaton of a machine that reads bytes."""
    reader, over = _Reader(step, tokens), np.zeros(len(step), bool) if last is None else last
    queue, known_twins = list(starts), twins or {}
    reached = set(queue)
    marks = np.zeros(len(tokens), np.uint64)
    for state in queue:  # grows while it is read
        if over[state]:
            continue
        places, ends = reader.read(state, reader.all)
        for end in (*np.unique(ends).tolist(), state):
            for target in (end, known_twins.get(end, end)):
                if target not in reached:
                    reached.add(target)
                    queue.append(target)
        if len(queue) > bounds.states:
            raise InputError(
                f"the automaton of {what} has more than {bounds.states} states; make it smaller, "
                "such as by shorter bounds of repetition, or raise max_states"
            )
        # Tokens of equal sums have equal columns, but for one chance in 2^64 for each pair.
        marks[reader.tokens[places]] += _mix(
            (np.uint64(state) << np.uint64(32)) + ends.astype(np.uint64)
        )
    _, first, classes = np.unique(marks, return_index=True, return_inverse=True)
    size = len(queue) * len(first) * 4 / _MEGABYTE
    if size > bounds.megabytes:
        raise InputError(
            f"the automaton of {what} has {len(queue)} states and {len(first)} classes of tokens, "
            f"{size:.0f} MB, and at most {bounds.megabytes} are allowed; make it smaller, or raise "
            "max_megabytes"
        )
    table = np.full((len(queue), len(first)), NONE, np.int32)
    numbers = np.full(len(step), NONE, np.int32)
    numbers[queue] = np.arange(len(queue))
    members = reader.places_of(first)
    for row, state in enumerate(queue):
        if over[state]:
            continue
        places, ends = reader.read(state, members)
        table[row, classes[reader.tokens[places]]] = numbers[ends]
    return TokenAutomaton(table, classes.astype(np.int32), np.array(queue, np.int32))


class _Reader:
    """Reads all tokens at once, byte by byte; those that have died are left behind."""

    def __init__(self, step: np.ndarray, tokens: Sequence[bytes | None]):
        self._step = np.asarray(step)
        spelled = [number for number, text in enumerate(tokens) if text]
        self.tokens = np.array(spelled, np.int64)
        """The tokens that have bytes; a place is an index of these."""
        self._lengths = np.array([len(tokens[number] or b"") for number in spelled], np.int64)
        self._bytes = np.zeros((len(spelled), max(self._lengths, default=1)), np.uint8)
        for place, number in enumerate(spelled):
            text = tokens[number] or b""
            self._bytes[place, : len(text)] = np.frombuffer(text, np.uint8)
        self.all = np.arange(len(spelled))

    def places_of(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the places of tokens that have bytes."""
        return np.flatnonzero(np.isin(self.tokens, tokens))

    def read(self, state: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the places whose tokens can be read to their end, and the states there."""
        states = np.full(len(places), state)
        done_places, done_states = [], []
        for column in range(self._bytes.shape[1]):
            states = self._step[states, self._bytes[places, column]]
            alive = states >= 0
            places, states = places[alive], states[alive]
            ended = self._lengths[places] == column + 1
            done_places.append(places[ended])
            done_states.append(states[ended])
            places, states = places[~ended], states[~ended]
            if not len(places):
                break
        if not done_places:
            return places, states
        return np.concatenate(done_places), np.concatenate(done_states)


def _mix(values: np.ndarray) -> np.ndarray:
    """Scatters 64-bit numbers (SplitMix64; Steele et al. 2014)."""
    mixed = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


@struct.dataclass
class Tables:
    """Token automata one behind the other. State 0 is for rows without one, and every token
    leads back to it. Where each row has a table of its own, table and values have B in front.
    """

    table: Int[Array, "*own states classes"]
    classes: Int[Array, "automata V"]
    values: dict[str, Any]
    """Of each state, [states]."""
    sizes: Int[Array, "automata V"] | None
    """The bytes of each token; None: nobody asks."""


@struct.dataclass
class AutomatonRows:
    """Per-row data of token automata."""

    states: Int[Array, " B"]
    which: Int[Array, " B"] | None = None
    """The automaton of each row, where rows may share; None: each has its own."""
    tables: Tables | None = None
    """The tables of rows that come and go; None: they are shared."""


@struct.dataclass
class Automata:
    """Token automata of all rows."""

    tables: Tables
    which: Int[Array, " B"] | None

    @staticmethod
    def of(rows: AutomatonRows, shared: Tables | None) -> "Automata":
        """Returns the result for the two parts of a member."""
        tables = rows.tables if shared is None else shared
        assert tables is not None, "they are shared, or of the rows"
        return Automata(tables, rows.which)

    def step(self, states: Int[Array, "B *S"], tokens: Int[Array, "B *S"]) -> Int[Array, "B *S"]:
        """Returns the states after one token each; -1 where it leads nowhere."""
        return self._at(self.tables.table, states, self._of_tokens(self.tables.classes, tokens))

    def value(self, name: str, states: Int[Array, "B *S"]) -> Array:
        """Returns a value of the states."""
        return self._at(self.tables.values[name], states)

    def sizes(self, tokens: Int[Array, "B *S"]) -> Int[Array, "B *S"]:
        """Returns the bytes of tokens."""
        assert self.tables.sizes is not None, "they were asked for"
        return self._of_tokens(self.tables.sizes, tokens)

    def leads(self, states: Int[Array, "B N"]) -> Bool[Array, "B N V"]:
        """Returns which tokens lead somewhere."""
        somewhere, classes = self._at(self.tables.table, states) >= 0, self.tables.classes
        classes = classes if self.which is None else classes[self.which]
        return jax.vmap(lambda row, column: row[:, column])(somewhere, classes)

    def _at(self, leaf: Array, *places: Array) -> Array:
        if self.which is None:  # over rows, not indexed by them: their tables may be on devices
            return jax.vmap(lambda table, *index: table[index])(leaf, *places)
        return leaf[places]

    def _of_tokens(self, leaf: Array, tokens: Int[Array, "B *S"]) -> Array:
        if self.which is None:
            return jax.vmap(lambda table, index: table[index])(leaf, tokens)
        return leaf[self.which.reshape(-1, *[1] * (tokens.ndim - 1)), tokens]


class HasAutomaton(Protocol):
    """An input of `stack`: an automaton, and values of its states."""

    @property
    def automaton(self) -> TokenAutomaton: ...
    @property
    def sizes(self) -> Int[np.ndarray, " V"] | None: ...


def stack(
    rows: Sequence[HasAutomaton | None],
    vocab_size: int,
    free: Mapping[str, int | bool],
    capacity: Capacity | None = None,
    sized: bool = False,
) -> tuple[AutomatonRows, Tables | None]:
    """Returns the automata of rows as the two parts of a member: of the rows, and shared."""
    if capacity is None:
        return _stack(rows, vocab_size, free, None, sized)
    if all(row is None for row in rows):
        parts = _make_unused(len(rows), vocab_size, tuple(free.items()), capacity, sized)
    else:
        parts = _stack(rows, vocab_size, free, capacity, sized)
    of_rows, tables = parts
    # The table of a row goes where the row goes.
    values = {name: leaf[None] for name, leaf in tables.values.items()}
    row_tables = replace(tables, table=tables.table[None], values=values)
    return AutomatonRows(of_rows.states, None, row_tables), None


@lru_cache(maxsize=16)
def _make_unused(
    count: int,
    vocab_size: int,
    free: tuple[tuple[str, int | bool], ...],
    capacity: Capacity,
    sized: bool,
) -> tuple[AutomatonRows, Tables]:
    """Returns the automata of rows without any, made once: most requests have none."""
    parts = _stack([None] * count, vocab_size, dict(free), capacity, sized)
    for leaf in jax.tree.leaves(parts):
        leaf.setflags(write=False)
    return parts


def _stack(
    rows: Sequence[HasAutomaton | None],
    vocab_size: int,
    free: Mapping[str, int | bool],
    capacity: Capacity | None,
    sized: bool,
) -> tuple[AutomatonRows, Tables]:
    """Stacks automata like `stack`, with tables that are shared."""
    distinct = list({id(member): member for member in rows if member is not None}.values())
    parts = [member.automaton for member in distinct]
    ends = np.cumsum([1, *(len(part.table) for part in parts)])
    offsets = dict(zip(map(id, distinct), ends[:-1].tolist(), strict=True))
    most_classes = max((part.table.shape[1] for part in parts), default=0)
    if capacity is None:
        num_states, num_classes = _round_up(int(ends[-1])), _round_up(most_classes + 1)
    else:
        _check_capacity(capacity, int(ends[-1]) - 1, most_classes)
        num_states, num_classes = capacity.states + 1, capacity.classes + 1
    table = np.full((num_states, num_classes), NONE, np.int32)
    table[FREE] = FREE
    # The last column is that of tokens that no automaton knows.
    classes = np.full((max(len(parts), 1), vocab_size), num_classes - 1, np.int32)
    values = {name: np.full(len(table), value) for name, value in free.items()}
    for number, (member, part) in enumerate(zip(distinct, parts, strict=True)):
        if 2 * len(part.classes) < vocab_size:  # what pads a vocabulary never doubles it
            raise InputError(
                f"a grammar or stop strings were made of {len(part.classes)} tokens and the model "
                f"has {vocab_size}; make them of the model's own tokenizer"
            )
        states = slice(offsets[id(member)], offsets[id(member)] + len(part.table))
        block = np.where(part.table >= 0, part.table + states.start, NONE)
        table[states, : block.shape[1]] = block
        classes[number, : len(part.classes)] = part.classes[:vocab_size]
        for name in free:
            values[name][states] = getattr(member, name)
    sizes: Any = None
    if sized:
        sizes = np.zeros(classes.shape, np.int32)
        for number, member in enumerate(distinct):
            assert member.sizes is not None, "they were asked for"
            sizes[number, : len(member.sizes)] = member.sizes[:vocab_size]
    place = {id(member): number for number, member in enumerate(distinct)}
    which: Any = np.array([place.get(id(row), 0) for row in rows], np.int32)
    starts: Any = np.array([offsets.get(id(row), FREE) for row in rows], np.int32)
    # Host arrays, which the program takes as they are.
    arrays: dict[str, Any] = dict(table=table, classes=classes, values=values, sizes=sizes)
    return AutomatonRows(starts, which), Tables(**arrays)


def _check_capacity(capacity: Capacity, num_states: int, num_classes: int) -> None:
    for what, need, limit in (
        ("states", num_states, capacity.states),
        ("classes", num_classes, capacity.classes),
    ):
        if need > limit:
            raise InputError(
                f"the automaton has {need} {what} and a row has room for {limit}; make it smaller, "
                f"or use {type(capacity).__name__}({what}={need})"
            )


def _round_up(count: int) -> int:
    """Returns the next of sizes that grow by 32, and later by a quarter or less."""
    part = max(32, 1 << max(0, (count - 1).bit_length() - 3))
    return -(-count // part) * part
