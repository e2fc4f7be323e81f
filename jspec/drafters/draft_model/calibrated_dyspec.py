"""DySpec with acceptance rates that it learns instead of the draft's own probabilities."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from jspec.base import Feedback
from jspec.drafters.draft_model.best_first import GrowthLog
from jspec.drafters.draft_model.dyspec import DySpec, left
from jspec.drafters.growth.best_first import NodeValues, ValueFn
from jspec.verify.proposals import Candidates

_RANKS = 4
"""Draws at a node that are told apart; the last stands for all further ones."""
_BUCKETS = 16
"""Half octaves of probability that are told apart."""
_PRIOR = 4.0
"""Attempts that the start counts for."""
_MEMORY = 0.98
"""Share of what is known that a round leaves."""


@struct.dataclass
class RateTable:
    """Attempts and acceptances by (rank, probability): R ranks, Q buckets."""

    tried: Float[Array, "B R Q"]
    taken: Float[Array, "B R Q"]

    def __call__(self, probability: Float[Array, "B M K"]) -> Float[Array, "B M K"]:
        """The rate at the probability of each of a node's draws, in order."""
        cell = _cell(probability)
        flat = (self.taken / self.tried).reshape(len(self.tried), -1)
        return jax.vmap(lambda rates, cell: rates[cell])(flat, cell)

    def count(
        self,
        probability: Float[Array, "B P K"],
        tried: Bool[Array, "B P K"],
        taken: Bool[Array, "B P K"],
    ) -> "RateTable":
        """These rates, with what a round's attempts came to."""
        cell = _cell(probability).reshape(len(tried), -1)

        def add(known, new):
            fresh = jax.vmap(
                lambda cell, new: jnp.zeros(_RANKS * _BUCKETS, jnp.float32).at[cell].add(new)
            )
            return _MEMORY * known + fresh(cell, new.reshape(cell.shape)).reshape(known.shape)

        # What is forgotten is replaced by the start, so that no cell runs empty.
        start = self.init(len(tried))

        def fade(known, first):
            return known + (1 - _MEMORY) * first

        return RateTable(
            tried=fade(add(self.tried, tried.astype(jnp.float32)), start.tried),
            taken=fade(add(self.taken, taken.astype(jnp.float32)), start.taken),
        )

    @staticmethod
    def init(batch: int) -> "RateTable":
        """The published estimate: a token is accepted with the draft's probability of it."""
        centre = 2.0 ** (-(jnp.arange(_BUCKETS, dtype=jnp.float32) + 0.5) / 2)
        tried = jnp.full((batch, _RANKS, _BUCKETS), _PRIOR, jnp.float32)
        return RateTable(tried=tried, taken=tried * centre)


@struct.dataclass
class AcceptanceRates:
    """What is expected of a slot before its token is drawn, and of the token once it is."""

    slots: RateTable
    tokens: RateTable


@dataclass(frozen=True)
class CalibratedDySpec(DySpec):
    """DySpec whose slots are worth what such slots have been, by rank and by the residual
    distribution.

    The paper takes the draft's probability of a token for the chance that it is accepted, which is
    too little for a draft that agrees with its target: min(1, p/q) is near 1 however small q. Here
    a slot's rate is looked up by the largest probability that is left to draw, which is known
    before the draw and keeps the rejection exact; the drawn token's rate, by its own probability
    among what was left, weighs what comes after it: later siblings and its own children. The
    rates are counted from the walk, row by row, and start from the paper's estimate. They remember
    the draws that they were counted from: with a hot start, give each call a key of its own.
    """

    def remember(self, batch: int, earlier: AcceptanceRates | None) -> AcceptanceRates:
        """What earlier rows learnt is worth the same to each new row: their mean."""
        if earlier is None:
            return AcceptanceRates(slots=RateTable.init(batch), tokens=RateTable.init(batch))
        return jax.tree.map(
            lambda known: jnp.broadcast_to(known.mean(0), (batch, *known.shape[1:])), earlier
        )

    def value_fn(self, memory: AcceptanceRates) -> ValueFn:
        def expected(drawn: Candidates, value: Float[Array, "B M"]) -> NodeValues:
            slot, token = _residual(drawn)
            taken = memory.tokens(token)
            refused = jnp.cumprod(1 - taken, axis=-1)
            reached = value[..., None] * jnp.concatenate(
                [jnp.ones_like(refused[..., :1]), refused[..., :-1]], axis=-1
            )
            return NodeValues(reached * memory.slots(slot), reached * taken, notes=(slot, token))

        return expected

    def learn(self, memory: GrowthLog, feedback: Feedback) -> AcceptanceRates:
        tree, verdict = feedback.tree, feedback.verdict
        offers, scored = memory.visited(feedback)
        lanes = jnp.arange(verdict.path.shape[1])
        walked = (lanes < verdict.counts[:, None]) & scored & ~feedback.done[:, None]
        # How many of the node's draws are in the tree, and which of them the verifier took.
        hangs = (tree.parents[:, None, :] == verdict.path[..., None]) & tree.valid[:, None, :]
        offered = hangs.sum(-1)[..., None]
        ranks = jnp.arange(offers.tokens.shape[-1])
        went = (lanes < verdict.counts[:, None] - 1)[..., None]
        taken = (offers.tokens == feedback.emitted[..., None]) & went & (ranks < offered)
        tried = jnp.where(went, ranks <= taken.argmax(-1)[..., None], ranks < offered)
        tried = tried & walked[..., None]
        taken = taken & tried
        slot, token = offers.notes
        return AcceptanceRates(
            slots=memory.memory.slots.count(slot, tried, taken),
            tokens=memory.memory.tokens.count(token, tried, taken),
        )


def _residual(drawn: Candidates) -> tuple[Float[Array, "B M K"], Float[Array, "B M K"]]:
    """Largest probability among what was left before each draw, and that of the drawn token."""
    # The two likeliest tell the likeliest that is left, but where both are gone: then it is the
    # second at most, and so it is taken for.
    first = drawn.probs.max(-1, keepdims=True)
    second = jnp.where(drawn.probs == first, 0.0, drawn.probs).max(-1, keepdims=True)
    hit = drawn.chances == first
    gone = jnp.cumsum(hit, axis=-1) > hit
    remaining = left(drawn.chances)

    def share(chance):
        return chance / jnp.where(remaining > 0, remaining, 1.0)

    return share(jnp.where(gone, second, first)), share(drawn.chances)


def _cell(probability: Float[Array, "*S K"]) -> Array:
    """Flat index of (rank, bucket)."""
    bucket = jnp.clip(jnp.floor(-2 * jnp.log2(probability)), 0, _BUCKETS - 1).astype(jnp.int32)
    rank = jnp.minimum(jnp.arange(probability.shape[-1]), _RANKS - 1)
    return rank * _BUCKETS + bucket
