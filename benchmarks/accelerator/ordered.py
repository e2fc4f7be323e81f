"""Attention in the order of positions on a Hopper GPU: the same bits in a tree and in the cache.

A key that is a node in one round lies in the cache in the next. So keys are taken in blocks of 64
positions, wherever they lie, and each block is a softmax of its own, by one kernel; those of a
query are added in the order of their positions, one after the other. Blocks that the cache has in
full are read for all queries at once. What is behind them, and a query's own path, are gathered for
each query.

It is here to be compiled and compared, and is part of no model: see `bits`.
"""

from dataclasses import replace
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jspec.models.attention import Cached
from jspec.models.block_attention import AttentionWork, Hopper, visits
from jspec.models.online_softmax import Softmax

BLOCK = 64
OWN = 2
"""Blocks of a query's own: a path has at most 64 nodes."""


def attention(
    q: Float[Array, "B N G*H D"],
    k: Float[Array, "B H N D"],
    v: Float[Array, "B H N D"],
    mask: Bool[Array, "B N N"],
    cached: Cached,
    interpret: bool = False,
) -> Float[Array, "B N G*H D"]:
    """Attention of the nodes of trees behind a cache.

    Args:
        q: queries, scaled.
        k: keys of the nodes.
        v: values of the nodes.
        mask: each node's ancestors, itself among them; a node stands behind its parent.
        cached: whose slots are a multiple of 64.
        interpret: whether to run the kernel step by step on any device.
    """
    batch, nodes, _, dim = q.shape
    heads, slots = k.shape[1], cached.slots
    group = q.shape[2] // heads
    kernel = Hopper(BLOCK, num_splits=slots // BLOCK, interpret=interpret)
    whole = cached.lengths // BLOCK * BLOCK

    # The cache's full blocks: as the queries of a head, [B, H, N*G, D].
    grouped = q.reshape(batch, nodes, heads, group, dim).transpose(0, 2, 1, 3, 4)
    queries = _filled(grouped.reshape(batch, heads, nodes * group, dim))
    past = _blocks(kernel, queries, cached.keys, cached.values, whole)
    past = Softmax(*(part[:, :, :, : nodes * group] for part in past))

    # Each node's own blocks: a row of its own, whose queries are those of a group.
    places = _places(mask, cached.lengths - whole, nodes)
    own_keys, own_values = (
        _gathered(new, held, places, whole) for new, held in ((k, cached.keys), (v, cached.values))
    )
    apart = grouped.transpose(0, 2, 1, 3, 4).reshape(batch * nodes, heads, group, dim)
    live = (cached.lengths - whole)[:, None] + mask.sum(-1)
    found = _blocks(
        replace(kernel, num_splits=OWN), _filled(apart), own_keys, own_values, live.reshape(-1)
    )
    own = Softmax(*(_beside(part[:, :, :, :group], batch) for part in found))

    together = [jnp.concatenate(pair, axis=2) for pair in zip(past, own, strict=True)]
    parts = [Softmax(*(part[:, :, at] for part in together)) for at in range(together[0].shape[2])]
    softmax = reduce(_added, parts)
    mixed = (softmax.mixed / softmax.total).astype(q.dtype)
    mixed = mixed.reshape(batch, heads, nodes, group, dim).transpose(0, 2, 1, 3, 4)
    return mixed.reshape(q.shape)


def _blocks(kernel: Hopper, queries: Array, keys: Array, values: Array, lengths: Array) -> Softmax:
    """The softmax of each block of keys up to a row's length, [B, H, P, Q, ..]."""
    batch, heads, count, _ = queries.shape
    ends = jnp.broadcast_to(lengths[:, None].astype(jnp.int32), (batch, count))
    limits = jnp.stack([jnp.zeros_like(ends), ends], axis=-1)
    listed = visits.of_range(limits, kernel.tile, BLOCK, keys.shape[2])
    work = AttentionWork(queries, keys, values, limits, listed)
    found = kernel.parts(work, visits.in_range, None)
    return Softmax(*(part.reshape(batch, heads, *part.shape[1:]) for part in found))


def _places(mask: Bool[Array, "B N N"], begun: Array, nodes: int) -> Array:
    """Where the keys of a node's own blocks stand, [B, N, OWN * 64].

    First the slots of the cache's last block, then the nodes: places from 64 on.
    """
    nth = jnp.cumsum(mask, axis=-1) - 1
    at = jnp.arange(OWN * BLOCK) - begun[:, None]  # of the path, from the root on
    here = mask[..., None, :] & (nth[..., None, :] == at[:, None, :, None])
    node = jnp.where(here, jnp.arange(nodes), 0).sum(-1)
    slot = jnp.arange(OWN * BLOCK)
    return jnp.where(at[:, None] < 0, slot, BLOCK + node)


def _gathered(new: Array, held: Array, places: Array, whole: Array) -> Array:
    """Keys or values of each node's own blocks, [B*N, H, OWN * 64, D]."""

    def of_row(new, held, places, whole):
        last = jax.lax.dynamic_slice_in_dim(held, whole, BLOCK, axis=1)
        both = jnp.concatenate([last, new.astype(held.dtype)], axis=1)
        return both[:, places].swapaxes(0, 1)

    # At the end of a full cache there is no block left to begin: what is read then is not seen.
    start = jnp.minimum(whole, held.shape[2] - BLOCK)
    found = jax.vmap(of_row)(new, held, places, start)
    return found.reshape(-1, *found.shape[2:])


def _beside(part: Array, batch: int) -> Array:
    """[B*N, H, P, G, X] as [B, H, P, N*G, X]."""
    rows, heads, num_splits, group, last = part.shape
    nodes = rows // batch
    apart = part.reshape(batch, nodes, heads, num_splits, group, last).transpose(0, 2, 3, 1, 4, 5)
    return apart.reshape(batch, heads, num_splits, nodes * group, last)


def _filled(queries: Array) -> Array:
    more = -queries.shape[2] % BLOCK
    return jnp.pad(queries, [(0, 0), (0, 0), (0, more), (0, 0)])


def _added(first: Softmax, second: Softmax) -> Softmax:
    """Two softmaxes as one; one over nothing changes no bit of the other."""
    top = jnp.maximum(first.top, second.top)
    one, other = (jnp.exp(each.top - top) for each in (first, second))
    return Softmax(
        top,
        one * first.total + other * second.total,
        one * first.mixed + other * second.mixed,
    )
