"""Keys and values as a model's memory, with the one function that writes them.

A model whose memory is this one has three lines:

    def init_memory(self, batch, capacity):
        return memory.init(batch, capacity, layers, heads, head_dim, dtype)

    commit, until = staticmethod(memory.commit), staticmethod(memory.until)
"""

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int, Num

from jspec import _struct as struct
from jspec._xla.backend import platform
from jspec._xla.compiler import RELEASE
from jspec._xla.mesh_axes import ROWS, WEIGHTS
from jspec.types import PyTree

ROOM = 64
"""Slots behind the capacity of a cache on a GPU: one for each token of the largest default tree."""


@struct.dataclass
class Rounded:
    """Keys or values in 8 bits, with a scale for each vector of a head."""

    values: Num[Array, "*S D"] | Any
    """int8 or float8_e4m3fn."""
    scales: Float32[Array, "*S 1"] | Any
    """`S` are the axes in front, B, H, S of a layer. (`Any`: trees have other leaves too.)"""

    def astype(self, dtype: DTypeLike) -> Float[Array, "*S D"]:
        """Returns the numbers that these stand for, as an array has it."""
        return (self.values.astype(jnp.float32) * self.scales).astype(dtype)


Held = Num[Array, "B H S D"] | Rounded
"""Keys or values of one layer, as a memory keeps them."""


def quantise(x: Float[Array, "B H S D"], dtype: DTypeLike = jnp.int8) -> Rounded:
    """Returns keys or values in 8 bits."""
    x, is_integer = x.astype(jnp.float32), jnp.issubdtype(dtype, jnp.integer)
    largest = float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)
    scales = jnp.abs(x).max(-1, keepdims=True) / largest
    steps = (x / jnp.where(scales == 0, 1, scales)).clip(-largest, largest)
    steps = jnp.round(steps) if is_integer else steps
    return Rounded(
        jnp.where(jnp.isfinite(steps), steps, 0).astype(dtype),
        jnp.where(jnp.isfinite(scales), scales, jnp.nan),
    )


def kept(x: Float[Array, "B H S D"], dtype: DTypeLike | None) -> Held:
    """Returns new keys or values as the memory keeps them, before anything attends to them."""
    return x if dtype is None else quantise(x, dtype)


def slots_dtype(dtype: DTypeLike) -> DTypeLike:
    """Returns the dtype in which a cache keeps keys and values of this dtype.

    bfloat16 is kept as its bits, uint16, on a CPU before jaxlib 0.11, whose XLA reads and writes
    the whole of an array in bfloat16 for each write to it.
    """
    slow = platform() == "cpu" and RELEASE < (0, 11)
    return jnp.uint16 if slow and jnp.dtype(dtype) == jnp.bfloat16 else dtype


def numbers(slots: Num[Array, "*S D"]) -> Float[Array, "*S D"]:
    """Returns the numbers whose bits the slots of a cache may hold."""
    bits = slots.dtype == jnp.uint16
    return jax.lax.bitcast_convert_type(slots, jnp.bfloat16) if bits else slots


def dequantise(slots: Held, dtype: DTypeLike) -> Float[Array, "*S D"]:
    """Returns the numbers of slots of a cache."""
    return (slots if isinstance(slots, Rounded) else numbers(slots)).astype(dtype)


@struct.dataclass
class Behind:
    """What N new tokens see of a cache's slots, themselves among them behind the live ones."""

    seen: Bool[Array, "B N S"] | Any
    positions: Int[Array, "B S"] | Any
    """Of the tokens in the slots."""


@struct.dataclass
class KVCache:
    """Keys and values of the committed tokens. Slot s of a row holds its token at position s.

    A tuple of arrays, one a layer, that XLA updates in place inside a `while_loop`. Layers that a
    model scans share one array, in which H counts the heads of all of them. An array may be a
    pytree of several that have the same first three axes.
    """

    mesh_axes: ClassVar = (ROWS, WEIGHTS)
    """The axes of a mesh that rows and heads are split over, see `jspec._xla.mesh_axes.specs`."""

    keys: tuple[Num[Array, "B _ S D"] | Any, ...]
    values: tuple[Num[Array, "B _ S D"] | Any, ...]
    lengths: Int[Array, " B"]
    """The number of committed tokens per row; slots at or beyond it are never read."""
    behind: Behind | None = None
    """Given where a forward pass may write its tokens behind the live slots, see `opened`."""
    room: int = struct.field(pytree_node=False, default=0)
    """Slots after the capacity, for such tokens."""

    @property
    def capacity(self) -> int:
        return self.slots - self.room

    @property
    def slots(self) -> int:
        """S."""
        return jax.tree.leaves(self.keys)[0].shape[2]

    def opened(self, mask: Bool[Array, "B N N"], positions: Int[Array, "B N"]) -> "KVCache":
        """Returns the cache, open to a forward pass that writes its tokens behind the live slots.

        Then attention is one over all slots, of fewer kernels than one over the slots and one over
        the tokens. What is tentative of such a pass are the cache's own arrays, for `commit` alone.
        A cache without room for so many tokens stays closed.

        Args:
            mask: who of the new tokens sees whom.
            positions: of the new tokens.
        """
        count = mask.shape[1]
        if count > self.room:
            return self
        slots = jnp.arange(self.slots, dtype=jnp.int32)[None]
        node = slots - self.lengths[:, None]
        new = (node >= 0) & (node < count)
        index = jnp.clip(node, 0, count - 1)
        node_mask = jnp.take_along_axis(mask, index[:, None], axis=2)
        seen = jnp.where(new[:, None], node_mask, node[:, None] < 0)
        places = jnp.where(new, jnp.take_along_axis(positions, index, axis=1), slots)
        # Behind the barrier it is made once, and not in each layer that reads it.
        behind = jax.lax.optimization_barrier(Behind(seen, places))
        return replace(self, behind=behind)


@struct.dataclass
class TreeKV:
    """Tentative keys and values: of tree nodes that were scored and are not in the cache."""

    keys: tuple[Num[Array, "B _ M D"] | Any, ...]
    values: tuple[Num[Array, "B _ M D"] | Any, ...]
    in_slots: bool = struct.field(pytree_node=False, default=False)
    """True where these are a cache's arrays, with the nodes behind the live slots."""

    def concat(self, later: "TreeKV") -> "TreeKV":
        """Returns these M nodes, followed by N later ones: arrays of M + N."""
        return jax.tree.map(lambda *both: jnp.concatenate(both, axis=2), self, later)

    def padded(self, size: int) -> "TreeKV":
        """Returns these nodes, with room for `size` in all: what is in the room is never read."""

        def pad(x: Array) -> Array:
            return jnp.pad(x, ((0, 0), (0, 0), (0, size - x.shape[2]), (0, 0)))

        return jax.tree.map(pad, self)

    def put(self, later: "TreeKV", at: Int[Array, ""] | int) -> "TreeKV":
        """Returns these nodes, with N later ones in the room from node `at` on: the same shapes."""

        def write(old: Array, new: Array) -> Array:
            # A tree of one level scores nothing below the root and has no room. Its loop still
            # traces this line, though it never runs it, so the slice is cut to what fits.
            return jax.lax.dynamic_update_slice_in_dim(old, new[:, :, : old.shape[2]], at, axis=2)

        return jax.tree.map(write, self, later)


def init(
    batch: int, capacity: int, layers: int, heads: int, head_dim: int, dtype: DTypeLike,
    value_dim: int | None = None,
) -> KVCache:  # fmt: skip
    """An empty cache of [B, H, S, D] arrays per layer; of `Rounded` ones in 8 bits."""

    def empty(dim: int) -> Held:
        shape = (batch, heads, capacity, dim)
        if jnp.dtype(dtype).itemsize == 1:
            return Rounded(jnp.zeros(shape, dtype), jnp.zeros((*shape[:-1], 1), jnp.float32))
        return jnp.zeros(shape, dtype)

    return KVCache(
        keys=tuple(empty(head_dim) for _ in range(layers)),
        values=tuple(empty(value_dim or head_dim) for _ in range(layers)),
        lengths=jnp.zeros(batch, jnp.int32),
    )


def commit(
    cache: KVCache, nodes: TreeKV, path: Int[Array, "B P"], counts: Int[Array, " B"]
) -> KVCache:
    """Writes keys and values of the first `counts` nodes of `path` to the cache."""
    lengths, step = cache.lengths, jnp.arange(path.shape[1])[None]
    if nodes.in_slots:
        parts = nodes.keys, nodes.values
        if path.shape[1] > 1:
            parts = _move(parts, lengths[:, None] + path, lengths)
        return replace(cache, keys=parts[0], values=parts[1], lengths=lengths + counts)
    counts = _wait_for(nodes, counts)
    # A masked lane goes off the end and is dropped. (Index -1 would write the last slot.)
    places = jnp.where(step < counts[:, None], lengths[:, None] + step, cache.slots)

    def write(old: Array, new: Array) -> Array:
        return _write(old, new, path, places)

    return replace(
        cache,
        keys=jax.tree.map(write, cache.keys, nodes.keys),
        values=jax.tree.map(write, cache.values, nodes.values),
        lengths=lengths + counts,
    )


def close(memory: PyTree, limit: int) -> PyTree:
    """Returns a memory with those caches closed of which new tokens see more than `limit` slots."""

    def of_cache(cache: Any) -> Any:
        if (
            not isinstance(cache, KVCache)
            or cache.behind is None
            or cache.behind.seen.size <= limit
        ):
            return cache
        return replace(cache, behind=None)

    return jax.tree.map(of_cache, memory, is_leaf=lambda part: isinstance(part, KVCache))


def put(
    old: Num[Array, "B H S D"], new: Num[Array, "B H N D"], at: Int[Array, " B"]
) -> Num[Array, "B H S D"]:
    """Returns the slots with new ones in a row, from slot `at` of each row on."""

    def write(old: Array, new: Array, at: Array) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(old, new, at, axis=-2)

    new = new.astype(old.dtype)
    if len(at) == 1:  # over several rows it is a scatter
        return write(old, new, at[0])
    return jax.vmap(write)(old, new, at)


def _move(parts: PyTree, places: Int[Array, "B P"], starts: Int[Array, " B"]) -> PyTree:
    """Returns arrays of slots, those at `places` moved to the slots from `starts` on."""

    def take(slots: Num[Array, "B H S D"]) -> Num[Array, "B H P D"]:
        return jnp.take_along_axis(slots, places[:, None, :, None], axis=2, mode="clip")

    # Nothing is written before all is read: no array is copied.
    values = jax.lax.optimization_barrier(jax.tree.map(take, parts))
    return jax.tree.map(partial(put, at=starts), parts, values)


def until(cache: KVCache, lengths: Int[Array, " B"]) -> KVCache:
    """Returns the cache with no more than so many committed tokens of each row."""
    return replace(cache, lengths=jnp.minimum(cache.lengths, lengths))


@jax.jit  # inside of a program this is a call, which XLA inlines; all layers share its trace
def _write(
    old: Num[Array, "B H S D"],
    new: Num[Array, "B H N D"],
    path: Int[Array, "B P"],
    places: Int[Array, "B P"],
) -> Num[Array, "B H S D"]:
    # Mapped over rows, not indexed by them: a sharded batch then writes without communication.
    # And over heads: XLA for TPU lays an array out by what a scatter takes whole, and with whole
    # heads it would copy the cache into another layout and back, twice a call of `step`.
    @jax.vmap
    @jax.vmap
    def scatter(old, picked, places):
        return old.at[places].set(picked, mode="drop")

    picked = jnp.take_along_axis(new, path[:, None, :, None], axis=2, mode="clip")
    if old.dtype == jnp.uint16:
        picked = jax.lax.bitcast_convert_type(picked.astype(jnp.bfloat16), old.dtype)
    picked = picked.astype(old.dtype)
    return scatter(old, picked, jnp.broadcast_to(places[:, None], picked.shape[:3]))


def _wait_for(nodes: TreeKV, counts: Int[Array, " B"]) -> Int[Array, " B"]:
    """Returns the counts, which are not known before the forward pass has read the cache.

    XLA writes in place only what is surely not read any more, and copies the cache otherwise. In a
    round the accepted path depends on the scores, but how long a prompt is was known before.
    """
    last = jax.tree.leaves(nodes.keys)[-1][:, 0, -1, -1].astype(jnp.float32)
    # Never true, which XLA does not know.
    return counts + (jnp.isnan(last) & jnp.isinf(last)).astype(counts.dtype)
