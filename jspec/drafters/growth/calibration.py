"""Acceptance probabilities of drafted nodes, learnt online by a multinomial logit.

All children that are proposed at one node compete: exactly one token comes next, and it is one of
them or none. With s_i the score of child i,

    P(child i is next) = exp(s_i) / (1 + sum over its siblings j of exp(s_j))

    s_i = b + sum over the drafters d that propose i of (z_d(i) + c_d(k_d(i)))

    b         `BASE_LOG_ODDS` and a learnt correction: the log odds of a token that nobody proposes
    z_d(i)    `prior`: by how much drafter d's own estimate of child i raises its log odds over b
    k_d(i)    `bucket`: the kind of proposal that it is, by depth and by estimate or rank
    c_d(k)    the learnt correction of the proposals of drafter d in bucket k

So a token that two drafters propose counts for more, and the siblings of a sure one count for less.
A correction is an average over a bucket of how much its proposals were over- or underrated. It
follows the gradient of the log-likelihood divided by that gradient's curvature (a diagonal Newton
step), summed over the last hundred rounds or so, as old rounds fade at a constant rate.

No constant below is critical. With each halved or doubled (1 - `_DECAY` is, logarithms move by 1,
numbers of buckets are halved), Token Recycling by probabilities and suffix, merged under a budget
of 16 nodes, emitted 1.1% fewer to 0.2% more tokens per round on the bundled jspec-800k (180
prompts of `benchmarks.prompts.LEARNING`, 48 tokens each, 2026-11-22). Without any learning they
emitted 4.0% fewer. Both have estimates: buckets by rank, for drafters that have none, were not
measured.
"""

from math import log
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.tree import along
from jspec.types import Feedback, PolicyFeedback, Tree

NUM_BUCKETS = 64
"""The number of kinds of proposals of each drafter: depth x rank, or depth x estimate."""
_NUM_RANKS, _NUM_DEPTHS_BY_RANK = 8, 8
"""The buckets of a drafter without estimates; lower ranks and deeper levels share the last."""
_NUM_BINS, _NUM_DEPTHS_BY_VALUE = 16, 4
"""The buckets of a drafter with estimates: bins of its log odds, and levels."""
BASE_LOG_ODDS = -4.0
"""The constant b at the start: 2% against "none of the proposed"."""
_MAX_LOG_ODDS = 4.0
"""The largest log odds that one drafter may give a token: 98%. Surer ones can still learn."""
_STEP_SIZE = 0.5
"""The share of a Newton step taken, since b and a bucket's correction mend the same error."""
_PRIOR_CURVATURE = 2.0
"""The curvature of a prior at zero: as much as eight children with even odds tell."""
_DECAY = 0.99
"""The share of the curvature that a round leaves: the last 100 rounds count."""
_MAX_CORRECTION = 12.0
"""The bound of a correction, far out of reach: it keeps a bucket of one outcome finite."""


@struct.dataclass
class AcceptanceModel:
    """The corrections of all drafters, learnt from all rows together.

    Axis `corrections`: for b, then `NUM_BUCKETS` for each drafter.
    """

    bias: Float[Array, " corrections"]
    """The correction of b, then the corrections c_d(k)."""
    curvature: Float[Array, " corrections"]
    """The fading sum of P (1 - P) over the children that each correction was in."""

    @staticmethod
    def init(num_drafters: int) -> "AcceptanceModel":
        """Returns a model that believes the drafters' own estimates."""
        size = 1 + num_drafters * NUM_BUCKETS
        return AcceptanceModel(
            jnp.zeros(size, jnp.float32), jnp.full(size, _PRIOR_CURVATURE, jnp.float32)
        )

    def scores(
        self, prior: Float[Array, "*S drafters"], bucket: Int[Array, "*S drafters"]
    ) -> Float[Array, "*S"]:
        """Returns the score s of each child."""
        proposed = bucket >= 0
        said = prior + self.bias[_index(bucket, proposed)]
        return BASE_LOG_ODDS + self.bias[0] + jnp.where(proposed, said, 0.0).sum(-1)

    def learn(
        self,
        bucket: Int[Array, "*S drafters"],
        probs: Float[Array, "*S"],
        known: Bool[Array, "*S"],
        taken: Bool[Array, "*S"],
    ) -> "AcceptanceModel":
        """Returns the model after a round."""
        # A row whose logits are not numbers must not teach the others.
        known = known & jnp.isfinite(probs)
        gradient = jnp.where(known, taken.astype(jnp.float32) - probs, 0.0)
        curvature = jnp.where(known, probs * (1 - probs), 0.0)
        proposed = bucket >= 0
        # An index off the end: what no drafter proposes corrects nothing.
        index = jnp.where(proposed, _index(bucket, proposed), self.bias.shape[0])

        def total(values):
            each = jnp.broadcast_to(values[..., None], index.shape)
            summed = jnp.zeros_like(self.bias).at[index].add(each, mode="drop")
            return summed.at[0].set(values.sum())

        faded = self.after_nothing().curvature + total(curvature)
        # The prior's share never fades from the divisor: a bucket not met for long takes no leap.
        step = _STEP_SIZE * total(gradient) / (faded + _PRIOR_CURVATURE)
        bias = jnp.clip(self.bias + step, -_MAX_CORRECTION, _MAX_CORRECTION)
        return AcceptanceModel(bias, faded)

    def after_nothing(self) -> "AcceptanceModel":
        """Returns the model after a round without information, as `learn` would give it."""
        return AcceptanceModel(self.bias, _DECAY * self.curvature)


def _index(
    bucket: Int[Array, "*S drafters"], proposed: Bool[Array, "*S drafters"]
) -> Int[Array, "*S drafters"]:
    """Returns the index of each drafter's correction; arbitrary without a proposal."""
    drafter = jnp.arange(bucket.shape[-1], dtype=jnp.int32)
    drafter = jnp.broadcast_to(drafter, bucket.shape)
    return 1 + drafter * NUM_BUCKETS + jnp.where(proposed, bucket, 0)


def features(
    tree: Tree, depths: Int[Array, "B N"]
) -> tuple[Float[Array, "B N"], Int[Array, "B N"]]:
    """Returns the (prior, bucket) of each node of one drafter's tree, for `AcceptanceModel`.

    They come from the drafter's estimates (`Tree.value`), or from the order of siblings if it has
    none. Entries of the root and of absent nodes mean nothing.
    """
    return _from_ranks(tree, depths) if tree.value is None else _from_values(tree, depths)


def _from_ranks(
    tree: Tree, depths: Int[Array, "B N"]
) -> tuple[Float[Array, "B N"], Int[Array, "B N"]]:
    nodes = jnp.arange(tree.tokens.shape[1], dtype=jnp.int32)
    siblings = (tree.parents[:, :, None] == tree.parents[:, None, :]) & tree.valid[:, None, :]
    earlier = siblings & (nodes[:, None] > nodes[None])[None]
    rank = jnp.minimum(earlier.sum(-1, dtype=jnp.int32), _NUM_RANKS - 1)
    level = jnp.clip(depths - 1, 0, _NUM_DEPTHS_BY_RANK - 1)
    # The first child has odds of 2, and the odds fall with the square of the rank. The start alone
    # depends on it: ranks have buckets of their own, so that what is wrong is soon corrected.
    prior = log(2) - 2 * jnp.log1p(rank.astype(jnp.float32)) - BASE_LOG_ODDS
    return prior, level * _NUM_RANKS + rank


def _from_values(
    tree: Tree, depths: Int[Array, "B N"]
) -> tuple[Float[Array, "B N"], Int[Array, "B N"]]:
    assert tree.value is not None
    parents = jnp.maximum(tree.parents, 0)
    # An estimate that is not a number says nothing for a node, and nothing against its siblings.
    value = jnp.where(jnp.isfinite(tree.value), tree.value, 0.0)
    above = jnp.take_along_axis(value, parents, axis=1)
    prob = jnp.clip(value / jnp.maximum(above, 1e-9), 1e-3, 1.0)
    found = _log_odds(prob, 1 - _of_siblings(tree.parents, tree.valid, prob))
    level = jnp.clip(depths - 1, 0, _NUM_DEPTHS_BY_VALUE - 1)
    place = (found + _MAX_LOG_ODDS) / (2 * _MAX_LOG_ODDS) * _NUM_BINS
    place = jnp.clip(place, 0, _NUM_BINS - 1).astype(jnp.int32)
    return found - BASE_LOG_ODDS, level * _NUM_BINS + place


def _log_odds(prob: Float[Array, "*S k"], none: Array) -> Float[Array, "*S k"]:
    """Returns each child's log odds against "none of the proposed", bounded."""
    ratio = jnp.maximum(prob, 1e-3) / jnp.maximum(none, 0.02)
    return jnp.minimum(jnp.log(ratio), _MAX_LOG_ODDS)


def among_siblings(
    parents: Int[Array, "B N"], valid: Bool[Array, "B N"], scores: Float[Array, "B N"]
) -> Float[Array, "B N"]:
    """Returns the logit's probabilities, of each node among its siblings; 1 at the root."""
    # All exponents less the largest, among them 0 for "none of them".
    top = jnp.maximum(jnp.where(valid, scores, 0.0).max(-1, keepdims=True), 0.0)
    weight = jnp.where(valid, jnp.exp(scores - top), 0.0)
    total = jnp.exp(-top) + _of_siblings(parents, valid, weight)
    probs = weight / jnp.where(total > 0, total, 1.0)
    root = jnp.arange(parents.shape[1]) == 0
    return jnp.where(root, 1.0, jnp.where(valid, probs, 0.0))


def _of_siblings(
    parents: Int[Array, "B N"], valid: Bool[Array, "B N"], values: Float[Array, "B N"]
) -> Float[Array, "B N"]:
    """Returns the sum of the values of each node and its siblings, of those that are valid.

    The root is nobody's child, and its sum means nothing.
    """
    nodes = jnp.arange(parents.shape[1], dtype=jnp.int32)
    child = valid & (nodes > 0)[None]

    def at_parents(parents, child, values):
        parent = jnp.where(child, parents, parents.shape[1])
        total = jax.vmap(lambda at, p: jnp.zeros_like(p).at[at].add(p, mode="drop"))(parent, values)
        return jnp.take_along_axis(total, jnp.maximum(parents, 0), axis=1)

    def compared(parents, child, values):
        # On a GPU a sum at places is a kernel, a copy, and a kernel that reads the sums again.
        alike = (parents[:, :, None] == parents[:, None, :]) & child[:, None, :]
        return jnp.where(alike, values[:, None, :], 0.0).sum(-1)

    return jax.lax.platform_dependent(*(parents, child, values), cpu=at_parents, default=compared)


def outcomes(
    nodes: Any, depths: Int[Array, "B N"], feedback: Feedback | PolicyFeedback
) -> tuple[Bool[Array, "B N"], Bool[Array, "B N"]]:
    """Returns the pair (tried, taken) of offered nodes, verified or not.

    The emitted tokens tell of every offered path how far it would have been taken. A node was tried
    if its parent was taken and the token after that is known.
    """
    lane = jnp.maximum(depths - 1, 0)
    known = nodes.valid & (depths <= feedback.counts[:, None])
    emitted = jnp.take_along_axis(feedback.emitted, lane, axis=1, mode="clip")
    root = (jnp.arange(depths.shape[1]) == 0)[None]
    right = root | (known & (nodes.tokens == emitted))
    taken = along(nodes.parents, right, jnp.logical_and, feedback.emitted.shape[1])
    above = jnp.take_along_axis(taken, jnp.maximum(nodes.parents, 0), axis=1)
    return known & above & ~root, taken
