"""A softmax over scores that come in parts, of all rows and heads or of a tile in a kernel.

Q: queries; K: keys. The axes before these are the same in all arrays of a call.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

LOW = float(jnp.finfo(jnp.float32).min)
"""The score of what is masked."""


class Softmax(NamedTuple):
    """A softmax over some of a query's scores, which others may join. Q: all queries of a head."""

    top: Float[Array, "... Q 1"]
    """The largest score."""
    total: Float[Array, "... Q 1"]
    """The sum of exp(score - top)."""
    mixed: Float[Array, "... Q D"]
    """The sum of the values, each times exp(score - top)."""


def softmax_over(scores: Float[Array, "... Q K"], values: Float[Array, "... K D"]) -> Softmax:
    """Returns the softmax over these scores alone."""
    # The maximum cancels, so its gradient is zero; said aloud, training is about twice as fast.
    top = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    return Softmax(top, *_weigh(jnp.exp(scores - top), values))


def join(
    softmax: Softmax, scores: Float[Array, "... Q K"], values: Float[Array, "... K D"]
) -> Softmax:
    """Returns the softmax over more scores (Milakov and Gimelshein 2018, arXiv 1805.02867)."""
    top = jax.lax.stop_gradient(jnp.maximum(softmax.top, scores.max(-1, keepdims=True)))
    before = jnp.exp(softmax.top - top)
    total, mixed = _weigh(jnp.exp(scores - top), values)
    return Softmax(top, before * softmax.total + total, before * softmax.mixed + mixed)


def with_sinks(softmax: Softmax, sinks: Float[Array, "... Q 1"]) -> Softmax:
    """Returns the softmax, joined by one more score of each query, whose value is 0."""
    top = jax.lax.stop_gradient(jnp.maximum(softmax.top, sinks))
    before = jnp.exp(softmax.top - top)
    total = before * softmax.total + jnp.exp(sinks - top)
    return Softmax(top, total, before * softmax.mixed)


def merge(parts: Softmax) -> Softmax:
    """Returns the softmax over the scores of P parts, which are on the axis before the queries."""
    top = parts.top.max(-3, keepdims=True)
    weights = jnp.exp(parts.top - top)
    total, mixed = ((weights * part).sum(-3) for part in (parts.total, parts.mixed))
    return Softmax(top.squeeze(-3), total, mixed)


def _weigh(
    weights: Float[Array, "... Q K"], values: Float[Array, "... K D"]
) -> tuple[Float[Array, "... Q 1"], Float[Array, "... Q D"]]:
    """Returns the sum of the weights, and of the values by their weights, in float32."""
    mixed = jnp.einsum(
        "...qk,...kd->...qd",
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
    )
    return weights.sum(-1, keepdims=True), mixed


def scores_of(
    queries: Float[Array, "... Q D"],
    keys: Float[Array, "... K D"] | tuple[Float[Array, "... K _"], ...],
    soft_cap: float | None,
) -> Float[Array, "... Q K"]:
    """Returns the scores of scaled queries in float32, bent into -soft_cap .. soft_cap."""
    if isinstance(keys, tuple):
        ends = np.cumsum([part.shape[-1] for part in keys])[:-1].tolist()
        pairs = zip(jnp.split(queries, ends, axis=-1), keys, strict=True)
        first, *rest = (scores_of(*pair, None) for pair in pairs)
        return cap(sum(rest, first), soft_cap)
    scores = jnp.einsum("...qd,...kd->...qk", queries, keys, preferred_element_type=jnp.float32)
    return cap(scores, soft_cap)


def cap(scores: Float[Array, "..."], soft_cap: float | None) -> Float[Array, "..."]:
    """Scores bent into -soft_cap .. soft_cap."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)
