"""Conditions candidates' probabilities on the noise, which is known beforehand.

Under the coupled rule a token is argmax(log p + T G), see `jspec.sampling.gumbel`. G depends on the
key, the row and the position alone, so that a drafter can look at it. A token whose noise is large
will be drawn where others would be; one whose noise is small will not, however likely it is.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import sampling as samplings
from jspec._xla.manual_axes import vary
from jspec.drafters.contrib.candidates import Candidates, raised
from jspec.types import Sampling

_MEAN = 0.57721566
"""The mean of Gumbel noise: what there is to expect of all other tokens."""


def given(
    offered: Candidates,
    keys: jax.Array | None,
    sampling: Sampling | None,
    positions: Int[Array, " B"],
    vocab_size: int,
) -> Candidates:
    """Returns candidates with log odds raised by T (G - its mean).

    In greedy decoding they are what they were, and nothing is computed.
    """
    if keys is None or sampling is None:
        return offered
    temperature = jnp.broadcast_to(jnp.asarray(sampling.temperature, jnp.float32), positions.shape)

    def drawn() -> Float[Array, "*S c"]:
        tokens = offered.tokens.reshape(len(positions), -1)
        noise = samplings.gumbel_of(keys, positions, tokens, vocab_size) - _MEAN
        return raised(offered, (temperature[:, None] * noise).reshape(offered.tokens.shape))

    like = keys, positions, temperature, offered
    probs = jax.lax.cond(
        (temperature > 0).any(), lambda: vary(drawn(), *like), lambda: vary(offered.probs, *like)
    )
    return replace(offered, probs=probs)
