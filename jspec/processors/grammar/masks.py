"""Grammars in the loop: a node's state is one look-up, its mask one row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec._validate.errors import InputError
from jspec._validate.row_arguments import concrete_values
from jspec._xla.manual_axes import vary
from jspec.processors.grammar import automaton
from jspec.processors.grammar.automaton import (
    Automata,
    AutomatonRows,
    Capacity,
    Tables,
    TokenAutomaton,
    stack,
)
from jspec.protocols import LogitsProcessor, StepInfo, TreeInfo
from jspec.types import Tree

END = -2
"""The entry of `Grammar.forced` that stands for an end token."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A set of texts, as an automaton that reads tokens: one of the `processors` of a call.

    `regex`, `json_schema` and `choices` make one; a call reuses it, and so can many.

    It masks what the processors before it left; end tokens are allowed where the text is whole.
    """

    what: str
    """The words for it."""
    automaton: TokenAutomaton
    accepting: Bool[np.ndarray, " states"]
    """True if the text is whole: an end token is allowed."""
    forced: Int[np.ndarray, " states"]
    """The drafted token: the longest that the grammar forces; -2: an end token, -1: none."""
    sizes = None

    def __repr__(self) -> str:
        states, classes = self.automaton.table.shape
        return f"Grammar of {self.what}: {states} states, {classes} classes of tokens"

    def init(self, batch: int, vocab_size: int, end_tokens: Any) -> "Grammars":
        """Returns the grammar of all rows. Raises InputError if a row has no end token."""
        return self.prepare([self] * batch, vocab_size, end_tokens)

    @staticmethod
    def prepare(
        rows: "Sequence[Grammar | None]",
        vocab_size: int,
        end_tokens: Any,
        capacity: "Capacity | None" = None,
    ) -> "Grammars":
        """Returns the grammars of rows.

        Args:
            rows: one for each row, or None.
            vocab_size: V.
            end_tokens: [B, X], of all kinds.
            capacity: for the grammar of a single row that may come to others, whether it has one.

        Raises:
            InputError: if a row with a grammar has no end token, or there is no room for it.
        """
        ends = concrete_values(end_tokens)
        if ends is not None:
            endless = (ends < 0).all(-1) & np.array([row is not None for row in rows])
            if endless.any():
                raise InputError(
                    f"row {int(endless.argmax())} has a grammar and no end token, so that it could "
                    "not end; pass the model's end token, eos=.. of jspec.Request or Stopping"
                )
        return Grammars(*stack(rows, vocab_size, {"accepting": True, "forced": -1}, capacity))


@struct.dataclass
class Grammars(LogitsProcessor):
    """The grammars of all rows, and the states of their texts."""

    rows: AutomatonRows
    shared: Tables | None = None

    is_single = True

    @property
    def automata(self) -> Automata:
        return Automata.of(self.rows, self.shared)

    def active_rows(self) -> Bool[Array, " B"]:
        """Returns the rows that have a grammar, by their states."""
        return self.rows.states != automaton.FREE

    def process(self, logits: Float[Array, "B N V"], info: TreeInfo) -> Float[Array, "B N V"]:
        """Returns the logits with -inf for what is not allowed."""
        states, _ = of_nodes(self.automata, self.rows.states, info.tree, info.end_tokens)
        return mask_logits(self.automata, states, logits, info.end_tokens)

    def grammar(self, end_tokens: Int[Array, "B X"]) -> "GrammarState":
        return GrammarState(self.automata, self.rows.states, end_tokens)

    def advance(self, info: StepInfo) -> Self:
        """Advances by the round's tokens."""
        automata, emitted, counts = self.automata, info.emitted, info.counts

        def advance(place, states):
            return jnp.where(place < counts, step(automata, states, emitted[:, place]), states)

        start = vary(self.rows.states, automata, emitted, counts)
        states = jax.lax.fori_loop(0, emitted.shape[1], advance, start)
        return replace(self, rows=replace(self.rows, states=states))


@struct.dataclass
class GrammarState:
    """The grammar's state of each row, as far as drafters may know it."""

    automata: Automata
    states: Int[Array, " B"]
    end_tokens: Int[Array, "B X"]

    def forced(self, states: Int[Array, " B"]) -> Int[Array, " B"]:
        """Returns the token that the grammar forces in a state of each row; -1 if there is none."""
        token = self.automata.value("forced", states)
        return jnp.where(token == END, self.end_tokens.max(-1), token)

    def step(self, states: Int[Array, " B"], tokens: Int[Array, " B"]) -> Int[Array, " B"]:
        """Returns the states after one token each."""
        return step(self.automata, states, tokens)

    def allows(self, tree: Tree) -> Bool[Array, "B N"]:
        """Returns the nodes of a tree that the grammar allows, with all above them."""
        _, allowed = of_nodes(self.automata, self.states, tree, self.end_tokens)
        return allowed


def step(
    automata: Automata, states: Int[Array, "B *S"], tokens: Int[Array, "B *S"]
) -> Int[Array, "B *S"]:
    """Returns the states after one token each. Behind what is not allowed, and behind an end
    token, anything is: nothing is ever emitted there.
    """
    return jnp.maximum(automata.step(states, tokens), 0)


def of_nodes(
    automata: Automata, states: Int[Array, " B"], tree: Tree, end_tokens: Int[Array, "B X"]
) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """Returns the states of a tree's nodes, and True where the grammar allows them."""
    root = jnp.arange(tree.tokens.shape[1]) == 0
    above = jnp.maximum(tree.parents, 0)
    ends = (tree.tokens[..., None] == end_tokens[:, None]).any(-1)

    # A loop: XLA copies unrolled look-ups of look-ups into each other, ever more with the depth.
    def descend(_, carry):
        node_states, allowed = carry
        before = jnp.take_along_axis(node_states, above, axis=1)
        after = automata.step(before, tree.tokens)
        fits = jnp.where(ends, automata.value("accepting", before), after >= 0)
        node_states = jnp.where(root, states[:, None], jnp.maximum(after, 0))
        return node_states, root[None] | (fits & jnp.take_along_axis(allowed, above, axis=1))

    node_states = jnp.broadcast_to(states[:, None], tree.tokens.shape)
    start = vary((node_states, jnp.ones(node_states.shape, bool)), automata, tree, end_tokens)
    return jax.lax.fori_loop(0, tree.depth, descend, start)


def mask_logits(
    automata: Automata,
    states: Int[Array, "B N"],
    logits: Float[Array, "B N V"],
    end_tokens: Int[Array, "B X"],
) -> Float[Array, "B N V"]:
    """Returns the logits with -inf for forbidden tokens."""
    output = jnp.where(automata.leads(states), logits, -jnp.inf)
    size = logits.shape[-1]
    place = jnp.where(end_tokens < 0, size, end_tokens)

    def write(output, logits, accepting, place):
        ends = logits[:, jnp.minimum(place, size - 1)]
        return output.at[:, place].set(jnp.where(accepting[:, None], ends, -jnp.inf), mode="drop")

    # Over rows, not indexed by them: a sharded batch then writes without communication.
    return jax.vmap(write)(output, logits, automata.value("accepting", states), place)
