"""What drafters' offers are worth, learnt from what the target took: a multinomial logit.

All children that are offered at one place compete: exactly one token comes next, one of them or
none. A child's score is the sum of what each drafter that offers it says for it, so that what two
drafters agree on counts for more, and what a sure one leaves out for less:

    P(child i) = exp(s_i) / (1 + sum over siblings of exp(s_j)),    s_i = b + sum over d of t_d(i)

with t_d(i) the drafter's own claim, corrected by a number for the kind of offer that it is. The
corrections follow the gradient of the log-likelihood, each divided by its own curvature (diagonal
Newton steps) of the last hundreds of rounds: old rounds are forgotten at a constant rate.
"""

from math import log

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Tree

KINDS = 64
"""Kinds of offers that are told apart, of each drafter."""
_RANKS = 8
"""Siblings told apart where a drafter has no estimate; further ones are of the last kind."""
_LEVELS = (8, 4)
"""Depths told apart, where a drafter has no estimate and where it has one."""
_BINS = 16
"""Estimates told apart."""
UNSEEN = -4.0
"""b at the start: the log odds of a token against "none of the offered", if nobody says for it."""
_SURE = 4.0
"""Log odds that a drafter may claim at most."""
_STEP = 0.5
"""Of a Newton step: the terms of a score learn at the same time."""
_START = 2.0
"""Curvature that the start counts for: a few rounds."""
_MEMORY = 0.99
"""Share of the curvature that a round leaves."""
_FARTHEST = 12.0


@struct.dataclass
class AcceptanceModel:
    """Corrections of D drafters' claims, by kind; those of all rows together."""

    bias: Float[Array, " 1+DK"]
    """First that of every child, b - UNSEEN; then those of each drafter's kinds."""
    curvature: Float[Array, " 1+DK"]

    @staticmethod
    def init(drafters: int) -> "AcceptanceModel":
        """Claims are believed as they are."""
        size = 1 + drafters * KINDS
        return AcceptanceModel(jnp.zeros(size, jnp.float32), jnp.full(size, _START, jnp.float32))

    def scores(self, claims: Float[Array, "*S D"], kinds: Int[Array, "*S D"]) -> Float[Array, "*S"]:
        """s of each child; a kind of -1 is of a drafter that does not offer it."""
        offered = kinds >= 0
        said = claims + self.bias[_flat(kinds, offered)]
        return UNSEEN + self.bias[0] + jnp.where(offered, said, 0.0).sum(-1)

    def learn(
        self,
        kinds: Int[Array, "*S D"],
        chances: Float[Array, "*S"],
        tried: Bool[Array, "*S"],
        taken: Bool[Array, "*S"],
    ) -> "AcceptanceModel":
        """After a round.

        Args:
            kinds: of each child, as in `scores`.
            chances: what was thought of it.
            tried: whether what follows its parent is known.
            taken: whether it is that.
        """
        # A row whose logits are no numbers must not tell the others.
        tried = tried & jnp.isfinite(chances)
        slope = jnp.where(tried, taken - chances, 0.0)
        bend = jnp.where(tried, chances * (1 - chances), 0.0)
        offered = kinds >= 0
        # What is nobody's goes off the end.
        place = jnp.where(offered, _flat(kinds, offered), self.bias.shape[0])

        def spread(values):
            each = jnp.broadcast_to(values[..., None], place.shape)
            total = jnp.zeros_like(self.bias).at[place].add(each, mode="drop")
            return total.at[0].set(values.sum())

        curvature = _MEMORY * self.curvature + spread(bend)
        # The start never fades out of the divisor: a kind not met for long takes no leap.
        step = _STEP * spread(slope) / (curvature + _START)
        return AcceptanceModel(jnp.clip(self.bias + step, -_FARTHEST, _FARTHEST), curvature)


def _flat(kinds: Int[Array, "*S D"], offered: Bool[Array, "*S D"]) -> Int[Array, "*S D"]:
    drafters = jnp.arange(kinds.shape[-1])
    return 1 + drafters * KINDS + jnp.where(offered, kinds, 0)


def claimed(tree: Tree, depths: Int[Array, "B N"]) -> tuple[Float[Array, "B N"], Int[Array, "B N"]]:
    """(claims, kinds) of a drafter's own nodes: by its estimate, or by rank if it has none.

    Args:
        tree: its draft.
        depths: edges between each node and the root.
    """
    parents = jnp.maximum(tree.parents, 0)
    if tree.value is None:
        nodes = jnp.arange(tree.tokens.shape[1])
        alike = (tree.parents[:, :, None] == tree.parents[:, None, :]) & tree.valid[:, None, :]
        rank = jnp.minimum((alike & (nodes[:, None] > nodes)).sum(-1, dtype=jnp.int32), _RANKS - 1)
        level = jnp.clip(depths - 1, 0, _LEVELS[0] - 1)
        # Half for the first, less by the square of the rank: roughly what drafters have in common.
        odd = log(2) - 2 * jnp.log1p(rank.astype(jnp.float32))
        return odd - UNSEEN, level * _RANKS + rank
    # An estimate that is no number says nothing for a node, and nothing against its siblings.
    value = jnp.where(jnp.isfinite(tree.value), tree.value, 0.0)
    above = jnp.take_along_axis(value, parents, axis=1)
    chance = jnp.clip(value / jnp.maximum(above, 1e-9), 1e-3, 1.0)
    nodes = jnp.where(tree.valid, parents, tree.tokens.shape[1])
    nodes = nodes.at[:, 0].set(tree.tokens.shape[1])  # the root is nobody's child
    total = jax.vmap(lambda node, c: jnp.zeros_like(c).at[node].add(c, mode="drop"))(nodes, chance)
    odd = odds(chance, 1 - jnp.take_along_axis(total, parents, axis=1))
    level = jnp.clip(depths - 1, 0, _LEVELS[1] - 1)
    spot = jnp.clip((odd + _SURE) / (2 * _SURE) * _BINS, 0, _BINS - 1).astype(jnp.int32)
    return odd - UNSEEN, level * _BINS + spot


def odds(chance: Array, none: Array) -> Array:
    """Log odds of each child against "none of the offered", bounded from above."""
    return jnp.minimum(jnp.log(jnp.maximum(chance, 1e-3) / jnp.maximum(none, 0.02)), _SURE)
