"""What the noise says of a candidate: it is known before the target's distribution is.

Under the coupled rule a token is argmax(log p + T G), see `jspec.sampling.gumbel`. G depends on the
key, the row and the position alone, so that a drafter can look at it. A token whose noise is large
will be drawn where others would be; one whose noise is small will not, however likely it is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec import sampling as samplings
from jspec.base import Sampling
from jspec.manual_axes import vary

_MEAN = 0.57721566
"""The mean of Gumbel noise: what there is to expect of all other tokens."""


def log_odds(
    keys: jax.Array | None,
    sampling: Sampling | None,
    positions: Int[Array, " B"],
    tokens: Int[Array, "B *c"],
    vocab_size: int,
) -> Float[Array, "B *c"]:
    """By how much the noise of a position raises the log odds of tokens there: T (G - its mean).

    0 in greedy decoding, which costs nothing.

    Args:
        keys: the random keys [B]; None if the call was given none.
        sampling: the target's; None is greedy.
        positions: of the tokens before.
        tokens: some of each row.
        vocab_size: V.
    """
    nothing = jnp.zeros(tokens.shape, jnp.float32)
    if keys is None or sampling is None:
        return nothing
    temperature = jnp.broadcast_to(jnp.asarray(sampling.temperature, jnp.float32), positions.shape)

    def drawn() -> Float[Array, "B *c"]:
        flat = tokens.reshape(len(tokens), -1)
        noise = samplings.gumbel_of(keys, positions, flat, vocab_size) - _MEAN
        return (temperature[:, None] * noise).reshape(tokens.shape)

    like = keys, positions, temperature, tokens
    return jax.lax.cond(
        (temperature > 0).any(), lambda: vary(drawn(), *like), lambda: vary(nothing, *like)
    )
