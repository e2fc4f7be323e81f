"""The target's memory: empty caches and the one write that ever happens to them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from jspec.types import Cache, Output, TreeKV


def init(batch: int, slots: int, layers: int, heads: int, head_dim: int, dtype: DTypeLike) -> Cache:
    """An empty cache of [B, H, S, D] arrays per layer."""
    shape = (batch, heads, slots, head_dim)
    return Cache(
        keys=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
        values=tuple(jnp.zeros(shape, dtype) for _ in range(layers)),
        lengths=jnp.zeros(batch, jnp.int32),
    )


def commit(
    cache: Cache, output: Output | TreeKV, path: Int[Array, "B P"], counts: Int[Array, " B"]
) -> Cache:
    """Writes the keys and values of the first `counts` nodes of `path` behind the committed tokens.

    The tree's keys and values live in `output`, never in the cache, so accepting a path is one
    gather from that small array and one scatter: no scratch slots, nothing to compact.

    Args:
        cache: the cache; read, not donated (inside a loop XLA updates it in place).
        output: the forward that scored the nodes, or their keys and values.
        path: node ids from the root.
        counts: how many of them to commit, 0 .. P; 0 leaves a row untouched.
    """
    counts = _known_after(output, counts)
    step = jnp.arange(path.shape[1])
    # A masked lane goes off the end and is dropped. (Index -1 would write the last slot.)
    slots = jnp.where(step < counts[:, None], cache.lengths[:, None] + step, cache.slots)

    def write(old: tuple[Array, ...], new: tuple[Array, ...]) -> tuple[Array, ...]:
        return tuple(_write(*layer, path, slots) for layer in zip(old, new, strict=True))

    return Cache(
        keys=write(cache.keys, output.keys),
        values=write(cache.values, output.values),
        lengths=cache.lengths + counts,
    )


def until(cache: Cache, lengths: Int[Array, " B"]) -> Cache:
    """The cache with no more than so many committed tokens of each row."""
    return replace(cache, lengths=jnp.minimum(cache.lengths, lengths))


@jax.jit  # inside of a program this is a call, which XLA inlines; all layers share its trace
def _write(
    old: Float[Array, "B H S D"],
    new: Float[Array, "B H N D"],
    path: Int[Array, "B P"],
    slots: Int[Array, "B P"],
) -> Float[Array, "B H S D"]:
    # Mapped over rows, not indexed by them: a sharded batch then writes without communication.
    # And over heads: XLA for TPU lays an array out by what a scatter takes whole, and with whole
    # heads it would copy the cache into another layout and back, twice a call of `step`.
    @jax.vmap
    @jax.vmap
    def scatter(old, picked, slots):
        return old.at[slots].set(picked, mode="drop")

    picked = jnp.take_along_axis(new, path[:, None, :, None], axis=2).astype(old.dtype)
    return scatter(old, picked, jnp.broadcast_to(slots[:, None], picked.shape[:3]))


def _known_after(kv: Output | TreeKV, counts: Int[Array, " B"]) -> Int[Array, " B"]:
    """The counts, which are not known before the forward has read the cache.

    XLA writes in place only what is surely not read any more, and copies the cache otherwise. In a
    round the accepted path depends on the scores, but how long a prompt is was known before.
    """
    last = kv.keys[-1][:, 0, -1, -1]
    # Never true, which XLA does not know.
    return counts + (jnp.isnan(last) & jnp.isinf(last)).astype(counts.dtype)
