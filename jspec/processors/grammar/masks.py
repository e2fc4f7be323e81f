"""Grammars in the loop: the state of a node is one look-up from its parent's, its mask one row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec._validate.errors import InputError
from jspec._validate.row_arguments import known_values
from jspec.processors.grammar import automaton
from jspec.processors.grammar.automaton import Automata, Room, per_row, stack
from jspec.processors.grammar.compile import END, Grammar
from jspec.types import Tree


@struct.dataclass
class Grammars:
    """The grammars of all rows, constant while a call runs."""

    automata: Automata
    accepting: Bool[Array, " states"]
    forced: Int[Array, " states"]

    def step(self, states: Int[Array, "B *S"], tokens: Int[Array, "B *S"]) -> Int[Array, "B *S"]:
        """The states after one token each. Behind what is not allowed, and behind an end token,
        anything is: nothing is ever emitted there.
        """
        return jnp.maximum(self.automata.step(states, tokens), 0)


@struct.dataclass
class Standing:
    """Where the text of each row stands in its grammar: what a drafter may know of it."""

    grammars: Grammars
    states: Int[Array, " B"]
    end_tokens: Int[Array, "B X"]

    def forced(self, states: Int[Array, " B"]) -> Int[Array, " B"]:
        """The token that the grammar forces in a state of each row; -1 if there is none."""
        token = self.grammars.forced[states]
        return jnp.where(token == END, self.end_tokens.max(-1), token)

    def allows(self, tree: Tree) -> Bool[Array, "B N"]:
        """The nodes of a tree that the grammar allows, with all above them."""
        _, allowed = of_nodes(self.grammars, self.states, tree, self.end_tokens)
        return allowed


def prepare(
    grammar: Any, batch: int, vocab_size: int, end_tokens: Any, room: Room | None = None
) -> Grammars | None:
    """The checked argument `grammar` of `decode`: a `Grammar`, or one or None for each row.

    Args:
        grammar: what was given.
        batch: B.
        vocab_size: V.
        end_tokens: [B, X], of all kinds.
        room: for the grammar of a single row that may come to others, whether it has one or not.

    Raises:
        InputError: if it is something else, a row with a grammar has no end token, or there is no
            room for it.
    """
    rows = per_row("grammar", grammar, batch, Grammar)
    if rows is None:
        if room is None:
            return None
        rows = [None] * batch
    known = known_values(end_tokens)
    if known is not None:
        endless = (known < 0).all(-1) & np.array([row is not None for row in rows])
        if endless.any():
            raise InputError(
                f"row {int(endless.argmax())} has a grammar and no end token, so that it could not "
                "end; pass eos=, the model's end token"
            )
    automata, values = stack(rows, vocab_size, {"accepting": True, "forced": -1}, room)
    return Grammars(automata, values["accepting"], values["forced"])


def begin(grammars: Grammars) -> Int[Array, " B"]:
    """The states of the rows before their first token."""
    return jnp.asarray(grammars.automata.starts)


def have_one(states: Int[Array, " B"]) -> Bool[Array, " B"]:
    """The rows that have a grammar, by their states."""
    return states != automaton.FREE


def spread(grammars: Grammars, batch: int) -> Grammars:
    """Room for the grammars of so many rows; see `automaton.spread`."""
    values = grammars.accepting, grammars.forced
    automata, (accepting, forced) = automaton.spread(grammars.automata, values, batch)
    return Grammars(automata, accepting, forced)


def put(grammars: Grammars, row: Int[Array, ""], one: Grammars) -> Grammars:
    """The grammars with that of a single row in the place of a row's; see `automaton.put`."""
    values, its_values = ((part.accepting, part.forced) for part in (grammars, one))
    automata, (accepting, forced) = automaton.put(
        grammars.automata, values, row, one.automata, its_values
    )
    return Grammars(automata, accepting, forced)


def advance(
    grammars: Grammars,
    states: Int[Array, " B"],
    tokens: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> Int[Array, " B"]:
    """The states after the first `counts` tokens."""
    for place in range(tokens.shape[1]):
        after = grammars.step(states, tokens[:, place])
        states = jnp.where(place < counts, after, states)
    return states


def of_nodes(
    grammars: Grammars, states: Int[Array, " B"], tree: Tree, end_tokens: Int[Array, "B X"]
) -> tuple[Int[Array, "B N"], Bool[Array, "B N"]]:
    """The states of a tree's nodes, and which of them the grammar allows with all above them.

    Args:
        grammars: of the call.
        states: of the roots.
        tree: an admitted one.
        end_tokens: of the rows.
    """
    root = jnp.arange(tree.tokens.shape[1]) == 0
    above = jnp.maximum(tree.parents, 0)
    ends = (tree.tokens[..., None] == end_tokens[:, None]).any(-1)
    at = jnp.broadcast_to(states[:, None], tree.tokens.shape)
    allowed = jnp.ones(tree.tokens.shape, bool)
    for _ in range(tree.depth):
        before = jnp.take_along_axis(at, above, axis=1)
        after = grammars.automata.step(before, tree.tokens)
        fits = jnp.where(ends, grammars.accepting[before], after >= 0)
        at = jnp.where(root, states[:, None], jnp.maximum(after, 0))
        allowed = root | (fits & jnp.take_along_axis(allowed, above, axis=1))
    return at, allowed


def masked(
    grammars: Grammars,
    states: Int[Array, "B N"],
    logits: Float[Array, "B N V"],
    end_tokens: Int[Array, "B X"],
) -> Float[Array, "B N V"]:
    """The logits with -inf for what is not allowed. End tokens are allowed in accepting states."""
    kept = jnp.where(grammars.automata.leads(states), logits, -jnp.inf)
    size = logits.shape[-1]
    place = jnp.where(end_tokens < 0, size, end_tokens)

    def write(kept, logits, states, place):
        ends = logits[:, jnp.minimum(place, size - 1)]
        fits = grammars.accepting[states][:, None]
        return kept.at[:, place].set(jnp.where(fits, ends, -jnp.inf), mode="drop")

    # Over rows, not indexed by them: a sharded batch then writes without communication.
    return jax.vmap(write)(kept, logits, states, place)
