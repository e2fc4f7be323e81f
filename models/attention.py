"""Attention in two parts: the committed past in the cache, then the new tokens under a mask."""

from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache

Past = tuple[Float[Array, "B H S D"], Float[Array, "B H S D"], Int[Array, " B"]]
"""A layer's cached keys, values, and how many slots of each row are live."""


def past(cache: Cache | None, layer: int) -> Past | None:
    """What a layer of the cache holds."""
    if cache is None:
        return None
    return cache.keys[layer], cache.values[layer], cache.lengths


def attend(
    q: Float[Array, "B N G*H D"],
    k: Float[Array, "B H N D"],
    v: Float[Array, "B H N D"],
    mask: Bool[Array, "B N N"],
    past: Past | None,
) -> Float[Array, "B N G*H*D"]:
    """One softmax over past slots and new tokens, in float32, without joining the two parts.

    Query heads are G groups-mates per key-value head, group-mates adjacent (as in Llama).

    Args:
        q: queries of the new tokens, unscaled.
        k, v: their keys and values.
        mask: new token i sees new token j.
        past: what the layer's cache holds; or None.
    """
    batch, new, query_heads, dim = q.shape
    heads = k.shape[1]
    group = query_heads // heads
    scale = dim**-0.5
    # [B, H, G*N, D]: one matrix product per key-value head serves its whole group.
    grouped = (q * scale).reshape(batch, new, heads, group, dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, heads, group * new, dim)

    low = jnp.finfo(jnp.float32).min
    own = jnp.einsum("bhqd,bhkd->bhqk", grouped, k, preferred_element_type=jnp.float32)
    seen = jnp.broadcast_to(mask[:, None, None], (batch, 1, group, new, new))
    parts = [(jnp.where(seen.reshape(batch, 1, group * new, new), own, low), v)]
    if past is not None:
        keys, values, lengths = past
        old = jnp.einsum(
            "bhqd,bhkd->bhqk", grouped, keys.astype(q.dtype), preferred_element_type=jnp.float32
        )
        live = jnp.arange(keys.shape[2]) < lengths[:, None]
        parts.append((jnp.where(live[:, None, None], old, low), values.astype(q.dtype)))
    top = reduce(jnp.maximum, (scores.max(-1, keepdims=True) for scores, _ in parts))
    # The maximum cancels, so its gradient is zero; said aloud, training is about twice as fast.
    top = jax.lax.stop_gradient(top)
    total, mixed = 0.0, 0.0
    for scores, held in parts:
        weights = jnp.exp(scores - top)
        total += weights.sum(-1, keepdims=True)
        mixed += jnp.einsum(
            "bhqk,bhkd->bhqd",
            weights.astype(held.dtype),
            held,
            preferred_element_type=jnp.float32,
        )
    mixed = jnp.divide(mixed, total).astype(q.dtype).reshape(batch, heads, group, new, dim)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, new, query_heads * dim)
