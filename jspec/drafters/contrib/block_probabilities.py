"""Acceptance probabilities of a block's tokens, from scores, noise and online fits.

D: tokens of a block. K: candidates of a depth. M: tokens that candidates are to follow.

At each depth d the head gives one distribution q_d of the token there, and the position's noise G
is known. A candidate x, after the token y before it, competes with the others and with "none of
them":

    s(x) = a_d (log q_d(x) + W[y, x] + T G(x)) + b_d T G(x) s(none) = a_d log(q_d of all other
    tokens) + c_d - e_d confidence(y)

and its probability is the softmax of these. W is the head's Markov map and 0 without one, T the
target's temperature. With b = 0 candidates are ranked as the coupled rule would rank them if q were
p, with b = -a as DFlash's and JetSpec's are, by the head alone. How sharp a head's distributions
are depends on the head and its depth, so a follows the emitted tokens quickly. The ratio of noise
and head decides which candidates come first, and what a text alone teaches of it is uncertain: b
follows slowly.

On 24 held-out texts of SmolLM2's block head, each with weights of its own, this drafted 1.71 tokens
per round at temperature 1 and 1.95 in greedy decoding. Weights for the head and for the noise, both
2 at first and learnt alike, drafted 1.63 and 1.91 (15 nodes, 2026-11-23). The sharper head of
jspec-7m, for which these had been chosen: 2.41 and 2.15, with them 2.36 and 2.16 (7 nodes).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.types import Frame, PyTree, Sampling
from jspec.verify import proposals

_FIRST = (1.0, 0.0, 0.0, 0.25)
"""The first weights a, b, c, e."""
_RANGE = ((0.25, -8.0, -8.0, 0.0), (8.0, 8.0, 8.0, 4.0))
_PRIOR = (10.0, 1000.0, 10.0, 10.0)
"""The curvature of the first weights: b hardly moves for some hundred tokens."""
_MEMORY = 0.99
"""The share of the curvature that remains after a token."""
_STEP_SIZE, _MAX_STEP = 0.5, 0.5
"""The share of a Newton step that is taken, and the largest step."""
_RATIOS = (0.25, 4.0)
"""The range of a / (a + b) by which candidates are chosen."""
_LEAST = 1e-9
"""The least mass of all tokens that are not candidates."""
_LOWEST = -30.0
"""The log probability below which all tokens are alike."""
_BARRED = -1e5
"""The noise below which a token is one that the target's filters take away."""


@struct.dataclass
class ProbabilityWeights:
    """The weights a, b, c, e of each depth, learnt row by row."""

    values: Float[Array, "B D 4"]
    curvature: Float[Array, "B D 4"]
    """Curvature of the log-likelihood so far, forgotten slowly."""

    @staticmethod
    def init(batch: int, depth: int) -> "ProbabilityWeights":
        first, prior = (jnp.array(values, jnp.float32) for values in (_FIRST, _PRIOR))
        shape = batch, depth, 4
        return ProbabilityWeights(jnp.broadcast_to(first, shape), jnp.broadcast_to(prior, shape))

    @property
    def ratio(self) -> Float[Array, "B D"]:
        """a / (a + b): how much the head counts alongside the noise."""
        head, noise = self.values[..., 0], self.values[..., :2].sum(-1)
        return jnp.clip(head / jnp.maximum(noise, 1e-3), *_RATIOS)


@struct.dataclass
class BlockDistributions:
    """The distributions of a round's D tokens, cut to the K candidates of each depth."""

    hidden: Float[Array, "B D E"]
    tokens: Int[Array, "B D K"]
    """The candidates, those first that head and noise rank first."""
    there: Bool[Array, "B D K"]
    """False for tokens that the target's filters rule out."""
    log_q: Float[Array, "B D K"]
    """Their log probability, whatever token is before."""
    noise: Float[Array, "B D K"]
    """T G of the position that they are for; 0 in greedy decoding."""
    log_rest: Float[Array, "B D"]
    """The log probability of all other tokens together."""


def block_distributions(
    head: Any,
    params: PyTree,
    hidden: Float[Array, "B D E"],
    ratio: Float[Array, "B D"],
    frame: Frame,
    size: int,
) -> BlockDistributions:
    """Returns the K candidates of each depth, by log q * ratio + T G."""
    logits = head.score(params, hidden).astype(jnp.float32)
    weighed = logits * ratio[..., None]
    ids = head.scored(params)
    is_subset = head.num_scored < head.vocab_size
    among = proposals.ScoredTokens(ids, head.vocab_size) if is_subset else None

    def draw_at(level_logits: Float[Array, "B d"], level: Int[Array, ""]) -> tuple[Array, Array]:
        drawn = proposals.coupled(level_logits[:, None], Sampling(), frame, level, size, among)
        return drawn.tokens[:, 0], drawn.scores[:, 0]

    places, scores = jax.vmap(draw_at, (1, 0), 1)(weighed, jnp.arange(hidden.shape[1]))

    def at_places(values: Float[Array, "B D d"]) -> Float[Array, "B D K"]:
        return jnp.take_along_axis(jax.nn.log_softmax(values, axis=-1), places, axis=-1)

    log_q = at_places(logits)
    noise = scores - at_places(weighed)
    # What a filter takes away has a score far below all others.
    valid = noise > _BARRED
    mass = jnp.where(valid, jnp.exp(log_q), 0.0).sum(-1)
    return BlockDistributions(
        hidden=hidden,
        tokens=ids[places],
        there=valid,
        log_q=jnp.where(valid, jnp.maximum(log_q, _LOWEST), _LOWEST),
        noise=jnp.where(valid, noise, 0.0),
        log_rest=jnp.log(jnp.maximum(1 - mass, _LEAST)),
    )


class CandidateProbabilities(NamedTuple):
    """Probabilities of candidates after M tokens, as a logit over four features."""

    features: Float[Array, "B M K+1 4"]
    """Of each candidate, and of "none of them" behind the last."""
    log_shares: Float[Array, "B M K+1"]


def probabilities(
    head: Any,
    params: PyTree,
    distributions: BlockDistributions,
    weights: Float[Array, "B M 4"],
    before: Int[Array, "B M"],
) -> CandidateProbabilities:
    """Returns the probabilities of M distributions' candidates, given the token `before`."""
    log_q = distributions.log_q + head.transition(params, before, distributions.tokens)
    doubt = -head.confidence(params, distributions.hidden, before)
    zero, none = jnp.zeros_like(log_q), jnp.zeros_like(distributions.log_rest)
    candidates = jnp.stack([log_q + distributions.noise, distributions.noise, zero, zero], axis=-1)
    rest = jnp.stack([distributions.log_rest, none, none + 1, doubt], axis=-1)
    features = jnp.concatenate([candidates, rest[:, :, None]], axis=2)
    scores = jnp.einsum("bmkf,bmf->bmk", features, weights)
    valid = jnp.pad(distributions.there, ((0, 0), (0, 0), (0, 1)), constant_values=True)
    return CandidateProbabilities(
        features, jax.nn.log_softmax(jnp.where(valid, scores, -jnp.inf), axis=-1)
    )


def learn(
    head: Any,
    params: PyTree,
    distributions: BlockDistributions,
    weights: ProbabilityWeights,
    before: Int[Array, "B P"],
    emitted: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> ProbabilityWeights:
    """Takes a Newton step on the weights of each depth that a token was emitted at."""
    depth = min(emitted.shape[1], distributions.tokens.shape[1])
    cut = jax.tree.map(lambda array: array[:, :depth], distributions)
    old, curvature = weights.values[:, :depth], weights.curvature[:, :depth]
    candidates = probabilities(head, params, cut, old, before[:, :depth])
    hit = (cut.tokens == emitted[:, :depth, None]) & cut.there
    right = jnp.concatenate([hit, ~hit.any(-1, keepdims=True)], axis=-1)
    probs, features = jnp.exp(candidates.log_shares), candidates.features
    mean = jnp.einsum("bmk,bmkf->bmf", probs, features)
    spread = jnp.einsum("bmk,bmkf->bmf", probs, jnp.square(features)) - jnp.square(mean)
    surplus = jnp.where(right[..., None], features, 0.0).sum(2) - mean
    # Logits that are not numbers teach nothing.
    valid = (jnp.arange(depth)[None] < counts[:, None]) & jnp.isfinite(surplus + spread).all(-1)
    weight = _MEMORY * curvature + jnp.maximum(spread, 0.0)
    step = jnp.clip(_STEP_SIZE * surplus / weight, -_MAX_STEP, _MAX_STEP)
    low, high = (jnp.broadcast_to(jnp.float32(bound), old.shape) for bound in _RANGE)
    moved = jnp.where(valid[..., None], jnp.clip(old + step, low, high), old)
    new_curvature = jnp.where(valid[..., None], weight, curvature)
    return ProbabilityWeights(
        weights.values.at[:, :depth].set(moved), weights.curvature.at[:, :depth].set(new_curvature)
    )
