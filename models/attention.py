"""Attention in two parts: the committed past in the cache, then the new tokens under a mask."""

from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache, TreeKV


class Past(NamedTuple):
    """The keys and values that a layer may attend to besides those of the new tokens."""

    cached: tuple[Float[Array, "B H S D"], Float[Array, "B H S D"], Int[Array, " B"]] | None
    """Cached keys, cached values, and the number of live slots of each row."""
    nodes: tuple[Float[Array, "B H M D"], Float[Array, "B H M D"]] | None
    """Keys and values of tree nodes that were scored before."""


def past(cache: Cache | None, nodes: TreeKV | None, layer: int) -> Past:
    """The keys and values of one layer, from the cache and from the nodes."""
    return Past(
        cached=None if cache is None else (cache.keys[layer], cache.values[layer], cache.lengths),
        nodes=None if nodes is None else (nodes.keys[layer], nodes.values[layer]),
    )


def attend(
    q: Float[Array, "B N G*H D"],
    k: Float[Array, "B H N D"],
    v: Float[Array, "B H N D"],
    mask: Bool[Array, "B N M+N"],
    past: Past,
    positions: Int[Array, "B N"] | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    window: int | None = None,
) -> Float[Array, "B N G*H*D"]:
    """One softmax over past slots and new tokens, in float32, without joining the two parts.

    Query heads are G groups-mates per key-value head, group-mates adjacent (as in Llama).

    Args:
        q: queries of the new tokens, unscaled.
        k, v: their keys and values.
        mask: new token i sees earlier node j, or new token j - M.
        past: what the layer holds of the committed tokens and of the earlier nodes.
        positions: positions of the new tokens, read only where there is a window.
        scale: factor of the scores; None: D ** -0.5.
        soft_cap: c, where scaled scores s become c * tanh(s / c) as in Gemma 2; None: they stay.
        window: a token at position p sees none at or before p - window; None: it sees all.
    """
    batch, new, query_heads, dim = q.shape
    heads = k.shape[1]
    group = query_heads // heads
    factor: float = dim**-0.5 if scale is None else scale
    if window is not None:
        assert positions is not None, "a window is counted in positions"
        mask = near(mask, positions, window)
    # [B, H, G*N, D]: one matrix product per key-value head serves its whole group.
    grouped = (q * factor).reshape(batch, new, heads, group, dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, heads, group * new, dim)

    if past.nodes is not None:
        k, v = (
            jnp.concatenate([held.astype(own.dtype), own], axis=2)
            for held, own in zip(past.nodes, (k, v), strict=True)
        )
    low = jnp.finfo(jnp.float32).min
    own = jnp.einsum("bhqd,bhkd->bhqk", grouped, k, preferred_element_type=jnp.float32)
    own = capped(own, soft_cap)
    # A masked token weighs 0, and 0 * NaN would reach every query. So values that are not finite
    # count as 0, and make those queries NaN that may see them.
    poison = jax.lax.stop_gradient((0.0 * v).sum(-1))[:, :, None].astype(jnp.float32)
    v = jnp.where(jnp.isfinite(v), v, 0)
    seen = jnp.broadcast_to(mask[:, None, None], (batch, 1, group, *mask.shape[1:]))
    parts = [(jnp.where(seen.reshape(batch, 1, group * new, -1), own + poison, low), v)]
    if past.cached is not None:
        keys, values, lengths = past.cached
        old = jnp.einsum(
            "bhqd,bhkd->bhqk", grouped, keys.astype(q.dtype), preferred_element_type=jnp.float32
        )
        slots = jnp.arange(keys.shape[2])
        live = (slots < lengths[:, None])[:, None, None]
        if window is not None and positions is not None:
            # Slot s holds the token at position s. [B, 1, G*N, S], as the scores are.
            ahead = slots > positions[:, :, None] - window
            live = live & jnp.tile(ahead, (1, group, 1))[:, None]
        parts.append((jnp.where(live, capped(old, soft_cap), low), values.astype(q.dtype)))
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


def capped(scores: Float[Array, "..."], soft_cap: float | None) -> Float[Array, "..."]:
    """Scores bent into -soft_cap .. soft_cap."""
    return scores if soft_cap is None else soft_cap * jnp.tanh(scores / soft_cap)


def near(
    mask: Bool[Array, "B N M+N"], positions: Int[Array, "B N"], window: int
) -> Bool[Array, "B N M+N"]:
    """The mask without what stands `window` positions or more before the token."""
    earlier = mask.shape[2] - mask.shape[1]
    own = positions[:, :, None] - positions[:, None] < window
    if not earlier:
        return mask & own
    # The positions of earlier nodes are not given. But a token sees one path, which was scored from
    # the root down: a node is as far above the token as there are seen ones after it.
    after = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1] - mask
    return mask & jnp.concatenate([after[..., :earlier] < window, own], axis=-1)
