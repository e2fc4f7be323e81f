"""The tree that looks at the noise: best-first growth by what the target is about to draw."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from jspec.base import Feedback
from jspec.drafters.draft_model.best_first import BestFirst, GrowthLog
from jspec.drafters.growth.best_first import NodeValues, ValueFn
from jspec.errors import InputError
from jspec.verify import schemes
from jspec.verify.proposals import Candidates

_START = 2.0
"""Sharpness to begin with; pairs of models that were measured settle between 1.3 and 2.2."""
_RANGE = (1 / 8, 16.0)
_PRIOR = 10.0
"""Tokens that the start counts for."""
_MEMORY = 0.99
"""Share of what is known that a new token leaves."""
_STEP = 0.5
"""Most that one token moves log sharpness."""
_LEAST = 1e3
"""Scores this far below the best have no share at any sharpness."""


@struct.dataclass
class InverseTemperature:
    """How far the draft's scores are to be trusted, learnt from the tokens that the target took."""

    log: Float[Array, " B"]
    weight: Float[Array, " B"]
    """Curvature of the log-likelihood so far, forgotten slowly."""


@dataclass(frozen=True)
class CoupledTree(BestFirst):
    """Spends a budget of nodes on the tokens that the target will most likely draw. jspec's own.

    Under the coupled rule the target's token is argmax(log p + G), any proposal is lossless, and G
    is known before p is. So the tree may look at G: a child's share of its parent's worth is
    softmax(beta z) over its siblings, z = logits of q + T G at temperature T. That is the chance
    that it is the target's token if the logits of p differ from those of q by Gumbel noise of scale
    1 / beta. Sharpness beta follows the text, row by row, by one Newton step of the log-likelihood
    per emitted token; at T = 0 the same line ranks plain logits.

    Sampling then costs few more rounds than greedy decoding: the noise that makes the target's
    choice uncertain is known to the draft.

    Raises:
        InputError: if an argument is out of range, or another scheme is asked for.
    """

    max_depth: int = 16
    min_gain: float = 0.02

    def __post_init__(self):
        if self.scheme != schemes.COUPLED:
            raise InputError(
                "CoupledTree looks at the noise, which only the coupled rule allows; leave out "
                "scheme, or take DySpec"
            )
        super().__post_init__()

    def remember(self, batch: int, earlier: InverseTemperature | None) -> InverseTemperature:
        """What earlier rows learnt is worth the same to each new row: their mean."""
        if earlier is None:
            earlier = InverseTemperature(
                log=jnp.log(jnp.full(1, _START, jnp.float32)),
                weight=jnp.full(1, _PRIOR, jnp.float32),
            )
        return jax.tree.map(lambda known: jnp.full(batch, known.mean()), earlier)

    def value_fn(self, memory: InverseTemperature) -> ValueFn:
        beta = jnp.exp(memory.log)[:, None, None]

        def share(drawn: Candidates, value: Float[Array, "B M"]) -> NodeValues:
            shares = value[..., None] * jax.nn.softmax(beta * drawn.scores, axis=-1)
            return NodeValues(shares, shares, notes=(drawn.scores,))

        return share

    def learn(self, memory: GrowthLog, feedback: Feedback) -> InverseTemperature:
        """One Newton step on log beta for each emitted token whose parent the draft had scored."""
        offers, scored = memory.visited(feedback)
        emitted = jnp.arange(feedback.emitted.shape[1]) < feedback.counts[:, None]
        hit = offers.tokens == feedback.emitted[..., None]
        # Tokens that the draft holds impossible would make the moments 0 * inf; a node whose logits
        # are no numbers teaches nothing.
        best = offers.notes[0].max(-1, keepdims=True)
        scores = jnp.maximum(offers.notes[0], best - _LEAST)
        known = emitted & scored & hit.any(-1) & jnp.isfinite(best[..., 0])

        def step(sharpness: InverseTemperature, token):
            scores, hit, known = token
            beta = jnp.exp(sharpness.log)
            share = jax.nn.softmax(beta[:, None] * scores, axis=-1)
            mean = (share * scores).sum(-1)
            spread = (share * jnp.square(scores - mean[:, None])).sum(-1)
            weight = _MEMORY * sharpness.weight + jnp.square(beta) * spread
            gain = beta * (jnp.where(hit, scores, 0.0).sum(-1) - mean) / weight
            log = jnp.clip(sharpness.log + jnp.clip(gain, -_STEP, _STEP), *map(math.log, _RANGE))

            def keep(new, old):
                return jnp.where(known, new, old)

            return InverseTemperature(
                keep(log, sharpness.log), keep(weight, sharpness.weight)
            ), None

        steps = jax.tree.map(lambda array: jnp.moveaxis(array, 1, 0), (scores, hit, known))
        return jax.lax.scan(step, memory.memory, steps)[0]
