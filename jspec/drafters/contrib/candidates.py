"""Combines candidates of several sources in one distribution, with weights that are learnt.

c: the candidates of all sources, one source behind the other.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import _struct as struct
from jspec.arrays.top_k import largest
from jspec.drafters.growth.calibration import (
    BASE_LOG_ODDS,
    NUM_BUCKETS,
    AcceptanceModel,
    log_odds,
)

NUM_BINS = 8
"""The number of bins of log odds, each 1 wide, from -4 to 4."""
NUM_KINDS = NUM_BUCKETS // NUM_BINS
"""The number of kinds of candidates that each source tells apart, such as ranks."""
_LEAST = 1e-9
"""The least probability that none of the candidates comes next."""
_MOST = 60.0
"""The most that log odds are raised by, so that they stay finite at high temperatures."""


@struct.dataclass
class Source:
    """The candidates of one source after each token, with what it says of them."""

    tokens: Int[Array, "*S k"]
    prior: Float[Array, "*S k"]
    bucket: Int[Array, "*S k"]
    """-1 where there is no candidate."""


@struct.dataclass
class Candidates:
    """The candidates after each token; of equal ones the first stands for all."""

    tokens: Int[Array, "*S c"]
    buckets: Int[Array, "*S c sources"]
    """Of each source that offers the candidate, else -1; all -1 where there is no candidate."""
    probs: Float[Array, "*S c"]
    """The probability that a candidate comes next; 0 where there is none."""

    @property
    def there(self) -> Bool[Array, "*S c"]:
        return (self.buckets >= 0).any(-1)


def source(
    tokens: Int[Array, "*S k"], probs: Float[Array, "*S k"], kind: Int[Array, "*#S k"]
) -> Source:
    """Returns a source that gives its candidates probabilities; 0 means that there is none."""
    found = log_odds(probs, 1 - probs.sum(-1, keepdims=True))
    place = jnp.clip(found + NUM_BINS / 2, 0, NUM_BINS - 1).astype(jnp.int32)
    bucket = jnp.where(probs > 0, kind * NUM_BINS + place, -1)
    return Source(tokens, found - BASE_LOG_ODDS, bucket.astype(jnp.int32))


def united(sources: Sequence[Source], acceptance: AcceptanceModel) -> Candidates:
    """Returns the candidates of all sources. One that several offer is likelier for it."""
    if len(sources) == 1:  # which has a token once: there is nothing to compare
        (one,) = sources
        bucket = one.bucket[..., None]
        weight = jnp.exp(acceptance.scores(one.prior[..., None], bucket))
        return _candidates(one.tokens, bucket, jnp.where(one.bucket >= 0, weight, 0.0))
    tokens = jnp.concatenate([one.tokens for one in sources], axis=-1)
    there = jnp.concatenate([one.bucket >= 0 for one in sources], axis=-1)
    same = (
        (tokens[..., :, None] == tokens[..., None, :]) & there[..., :, None] & there[..., None, :]
    )
    lane = jax.lax.broadcasted_iota(jnp.int32, tokens.shape, tokens.ndim - 1)
    first = there & (jax.lax.argmax(same, same.ndim - 1, jnp.int32) == lane)
    priors, buckets, begin = [], [], 0
    for one in sources:
        own = same[..., begin : begin + one.tokens.shape[-1]] & first[..., None]
        begin += one.tokens.shape[-1]
        # A source has a token once.
        priors.append(jnp.where(own, one.prior[..., None, :], 0.0).sum(-1))
        buckets.append(jnp.where(own, one.bucket[..., None, :], -1).max(-1))
    bucket = jnp.stack(buckets, axis=-1)
    scores = acceptance.scores(jnp.stack(priors, axis=-1), bucket)
    return _candidates(tokens, bucket, jnp.where(first, jnp.exp(scores), 0.0))


def _candidates(
    tokens: Int[Array, "*S c"], buckets: Int[Array, "*S c sources"], weight: Float[Array, "*S c"]
) -> Candidates:
    """Returns candidates of these weights, alongside which "none of them" has 1."""
    return Candidates(tokens, buckets, weight / (1 + weight.sum(-1, keepdims=True)))


def raised(offered: Candidates, by: Float[Array, "*S c"]) -> Float[Array, "*S c"]:
    """Returns the probabilities of candidates with raised log odds."""
    none = jnp.maximum(1 - offered.probs.sum(-1, keepdims=True), _LEAST)
    weight = offered.probs / none * jnp.exp(jnp.minimum(by, _MOST))
    return weight / (1 + weight.sum(-1, keepdims=True))


def likeliest(offered: Candidates, k: int) -> tuple[Int[Array, "*S k"], Float[Array, "*S k"]]:
    """Returns the k likeliest candidates and their probabilities."""
    if offered.tokens.shape[-1] == k:
        return offered.tokens, offered.probs
    probs, place = largest(offered.probs, k)
    return jnp.take_along_axis(offered.tokens, place, axis=-1), probs
