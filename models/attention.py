"""Attention in two parts: the committed past in the cache, then the new tokens under a mask."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Num

from jspec._xla import native
from jspec._xla.manual_axes import vary
from jspec.memory import Behind, Held, KVCache, Rounded, TreeKV, dequantise, put
from jspec.models.online_softmax import (
    LOW,
    Softmax,
    join,
    scores_of,
    softmax_over,
    with_sinks,
)

_MANY_QUERIES = 128
"""The number of queries of a head from which a loop over blocks pays on any device."""
_FEW_SLOTS, _MANY_SLOTS = 128, 512
"""The slots of a block, for few queries and for many."""
GPU_SCORES = 1 << 24
"""Scores, all heads and rows together, that a GPU computes at once; 64 MiB. Writing and
reading so many of an H100's takes as long as its host takes to decide two or three times that a
loop goes on.
"""
_FEW_BLOCKS = 8
"""Blocks of slots that have a condition each on a GPU: conditions are part of a CUDA graph,
a loop is not, and the host waits for it. Of more blocks there is a loop: the program would be
large."""
_MANY_TOKENS = 512
"""New tokens of a row up to which XLA attends among them on a GPU too, as in a chunk of a prompt.
The kernel took an H200 a third of XLA's time over 512 nodes, and a twelfth over 2,048 (bfloat16,
depth first); fewer were not timed.
"""


class Cached(NamedTuple):
    """A layer's part of the cache, or of all layers that are scanned together."""

    keys: Held | tuple[Held, ...]
    """[B, H*L, S, D]; or parts, whose lanes are concatenated."""
    values: Held
    """[B, H*L, S, D]."""
    lengths: Int[Array, "B *Q"]
    """The number of live slots of each row, or of each query of a head."""
    layer: Int[Array, ""] | None = None
    """Index of the layer among L; None: there is one."""
    behind: Behind | None = None
    """Where given, new tokens are written behind the live slots."""

    @property
    def slots(self) -> int:
        """S, the number of slots."""
        return jax.tree.leaves(self.keys)[0].shape[2]

    def block(self, heads: int, start: Int[Array, ""] | int, size: int) -> tuple[Held, Held]:
        """Returns keys and values of `size` slots of the layer, a copy of these alone."""

        def cut(x: Array) -> Array:
            if self.layer is None:
                return jax.lax.dynamic_slice_in_dim(x, start, size, axis=2)
            return of_layer(x, heads, self.layer, start, size)

        return jax.tree.map(cut, (self.keys, self.values))


class Past(NamedTuple):
    """The keys and values that a layer may attend to besides those that it makes."""

    cached: Cached | None
    nodes: tuple[Held, Held] | None
    """Keys and values of tree nodes that were scored before."""
    own: tuple[Held, Held] | None = None
    """Keys and values of the new tokens by another layer; None: the layer makes them."""

    def of_layer(self, layer: Int[Array, ""], count: int) -> "Past":
        """Returns one layer's part of `count` layers that share their arrays.

        Nothing is copied of the cache, of which the layer reads what it needs.
        """
        nodes, own = jax.tree.map(
            lambda x: of_layer(x, x.shape[1] // count, layer, 0, x.shape[2]), self[1:]
        )
        cached = None if self.cached is None else self.cached._replace(layer=layer)
        return Past(cached, nodes, own)

    def put(self, k: Held, v: Held) -> tuple[Held, Held]:
        """Returns new keys and values as the layer hands them out: as they are, or where they are
        written behind the live slots, the slots.
        """
        if self.cached is None or self.cached.behind is None:
            return k, v
        slots = self.cached.keys, self.cached.values
        return jax.tree.map(partial(put, at=self.cached.lengths), slots, finite(k, v))


def past(cache: KVCache | None, nodes: TreeKV | None, array: int) -> Past:
    """Returns the keys and values of one layer, from the cache and from the nodes."""
    return Past(
        cached=None
        if cache is None
        else Cached(cache.keys[array], cache.values[array], cache.lengths, behind=cache.behind),
        nodes=None if nodes is None else (nodes.keys[array], nodes.values[array]),
    )


def of_layer(
    array: Num[Array, "B H*L S D"],
    heads: int,
    layer: Int[Array, ""],
    start: Int[Array, ""] | int,
    size: int,
) -> Num[Array, "B H size D"]:
    """Returns some slots of one layer, from an array in which a head's layers are adjacent."""
    batch, both, slots, dim = array.shape
    layers = array.reshape(batch, heads, both // heads, slots, dim)
    sizes = (batch, heads, 1, size, dim)
    return jax.lax.dynamic_slice(layers, (0, 0, layer, start, 0), sizes)[:, :, 0]


@dataclass(frozen=True)
class Implementation:
    """The implementation of attention's two parts, a value of the model; here XLA's."""

    num_tokens = 1
    """The fewest tokens of a round's forward pass: `jspec.round.forward` fills up what is less."""

    def softmax(
        self,
        queries: Float[Array, "B H G*N D"],
        keys: Float[Array, "B H K D"] | tuple[Float[Array, "B H K _"], ...],
        values: Float[Array, "B H K V"],
        seen: Bool[Array, "B N K"],
        cached: Cached | None,
        oldest: Int[Array, "B N"] | None,
        soft_cap: float | None,
    ) -> Softmax:
        """Returns the softmax over the nodes that each node sees, and over the live slots."""
        softmax = self.own(queries, keys, values, seen, soft_cap)
        if cached is None:
            return softmax
        return self.with_past(softmax, queries, cached, oldest, soft_cap)

    def own(
        self,
        queries: Float[Array, "B H G*N D"],
        keys: Float[Array, "B H K D"] | tuple[Float[Array, "B H K _"], ...],
        values: Float[Array, "B H K V"],
        seen: Bool[Array, "B N K"],
        soft_cap: float | None,
    ) -> Softmax:
        """Returns the softmax over the nodes that each node sees, itself among them."""
        # A masked token weighs 0, and 0 * NaN would reach every query. So values that are not
        # finite count as 0, and make those queries NaN that may see them.
        poison = jax.lax.stop_gradient((0.0 * values).sum(-1))[:, :, None].astype(jnp.float32)
        values = jnp.where(jnp.isfinite(values), values, 0)
        return _seen_alone(queries, keys, values, seen, soft_cap, poison)

    def with_past(
        self,
        softmax: Softmax,
        queries: Float[Array, "B H G*N D"],
        cached: Cached,
        oldest: Int[Array, "B N"] | None,
        soft_cap: float | None,
    ) -> Softmax:
        """Returns the softmax, joined by the live slots of a cache."""
        if oldest is not None:
            oldest = jnp.tile(oldest, (1, queries.shape[2] // oldest.shape[1]))
        return with_past(softmax, queries, cached, oldest, soft_cap)


XLA = Implementation()


class _Written(Implementation):
    """XLA's over slots behind whose live ones the new tokens are written, with `finite` values."""

    def own(self, queries, keys, values, seen, soft_cap):
        return _seen_alone(queries, keys, values, seen, soft_cap)


def _seen_alone(
    queries: Float[Array, "B H G*N D"],
    keys: Float[Array, "B H K D"] | tuple[Float[Array, "B H K _"], ...],
    values: Float[Array, "B H K V"],
    seen: Bool[Array, "B N K"],
    soft_cap: float | None,
    poison: Float[Array, "B H 1 K"] | float = 0.0,
) -> Softmax:
    """Returns the softmax over the keys that each query sees."""
    batch, new, _ = seen.shape
    group = queries.shape[2] // new
    seen = jnp.broadcast_to(seen[:, None, None], (batch, 1, group, *seen.shape[1:]))
    seen = seen.reshape(batch, 1, group * new, -1)
    scores = scores_of(queries, keys, soft_cap) + poison
    return softmax_over(jnp.where(seen, scores, LOW), values)


def finite(k: Any, v: Any) -> tuple[Any, Any]:
    """Returns keys and values whose values are finite."""
    if isinstance(k, Rounded):
        scales = finite(k.scales, v.scales)
        return Rounded(k.values, scales[0]), Rounded(v.values, scales[1])
    nothing = 0.0 * v
    if k.shape[-1] != v.shape[-1]:
        nothing = nothing.sum(-1, keepdims=True)
    return k + nothing, jnp.where(jnp.isfinite(v), v, 0)


def attend(
    q: Float[Array, "B N G*H D"],
    k: Held,
    v: Held,
    mask: Bool[Array, "B N M+N"],
    past: Past,
    positions: Int[Array, "B N"] | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    window: int | None = None,
    latent: bool = False,
    sinks: Float[Array, " G*H"] | None = None,
    impl: Implementation = XLA,
) -> Float[Array, "B N G*H*V"]:
    """Returns one softmax over past slots and new tokens, without joining the arrays."""
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    cached, oldest = past.cached, None
    behind = None if cached is None else cached.behind
    if behind is not None:
        k, v, mask, cached, impl = (
            *(dequantise(x, q.dtype) for x in (k, v)),
            behind.seen,
            None,
            _Written(),
        )
    if window is not None:
        assert positions is not None, "a window is counted in positions"
        oldest = positions - window + 1
        if behind is None:
            mask = near(mask, positions, window)
        else:
            mask = mask & (behind.positions[:, None] >= oldest[..., None])
    k, v = (own.astype(q.dtype) if isinstance(own, Rounded) else own for own in (k, v))
    if past.nodes is not None:
        k, v = (
            jnp.concatenate([held.astype(own.dtype), own], axis=2)
            for held, own in zip(past.nodes, (k, v), strict=True)
        )
    keys: Any = k
    if latent:
        keys = v, k
        cached = None if cached is None else cached._replace(keys=(cached.values, cached.keys))
    given = q * factor, keys, v, mask, cached, oldest, sinks
    in_parts: Any = partial(_in_two_parts, soft_cap=soft_cap, impl=impl)
    if impl == XLA and cached is not None and q.shape[1] > _MANY_TOKENS:
        from jspec.models import block_attention  # which imports this module

        large: Any = block_attention.OF_LARGE_TREES
        kernel = partial(_in_two_parts, soft_cap=soft_cap, impl=large)
        in_parts = partial(jax.lax.platform_dependent, cuda=kernel, default=in_parts)
    held = None if cached is None else cached.keys
    held = held.values if isinstance(held, Rounded) else held
    if (
        impl != XLA
        or sinks is not None
        or held is None
        or isinstance(held, tuple)
        or not native.takes_attention(q, held)
    ):
        mixed = in_parts(*given)
    else:
        mixed = native.natively(partial(_natively, soft_cap=soft_cap), in_parts, *given[:-1])
    return mixed.reshape(*q.shape[:2], -1)


def _natively(
    q: Float[Array, "B N G*H D"],
    k: Float[Array, "B H K D"],
    v: Float[Array, "B H K D"],
    mask: Bool[Array, "B N K"],
    cached: Cached,
    oldest: Int[Array, "B N"] | None,
    soft_cap: float | None,
) -> Float[Array, "B N G*H D"]:
    """Returns `attend` by the kernel of a CPU, whose queries are scaled."""
    first = jnp.zeros(q.shape[:2], jnp.int32) if oldest is None else oldest
    layer = jnp.int32(0) if cached.layer is None else cached.layer
    keys: Any = cached.keys
    values: Any = cached.values
    scales = None
    if isinstance(keys, Rounded):
        scales = keys.scales, values.scales
        keys, values = keys.values, values.values
    return native.attention(
        *(q, k, v, mask, keys, values, cached.lengths, first, layer),
        soft_cap=soft_cap,
        scales=scales,
    ).astype(q.dtype)


def _in_two_parts(
    q: Float[Array, "B N G*H D"],
    k: Float[Array, "B H K D"] | tuple[Float[Array, "B H K _"], ...],
    v: Float[Array, "B H K V"],
    mask: Bool[Array, "B N K"],
    cached: Cached | None,
    oldest: Int[Array, "B N"] | None,
    sinks: Float[Array, " G*H"] | None = None,
    *,
    soft_cap: float | None,
    impl: Implementation,
) -> Float[Array, "B N G*H V"]:
    """Returns `attend` over the nodes, then over the cache."""
    batch, new, query_heads, dim = q.shape
    heads = v.shape[1]
    group = query_heads // heads
    # [B, H, G*N, D]: one matrix product per key-value head serves its whole group.
    grouped = q.reshape(batch, new, heads, group, dim)
    grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, heads, group * new, dim)
    softmax = impl.softmax(grouped, k, v, mask, cached, oldest, soft_cap)
    if sinks is not None:
        own = jnp.repeat(sinks.astype(jnp.float32).reshape(heads, group), new, axis=1)
        softmax = with_sinks(softmax, own[..., None])
    mixed = jnp.divide(softmax.mixed, softmax.total).astype(q.dtype)
    mixed = mixed.reshape(batch, heads, group, new, -1)
    return mixed.transpose(0, 3, 1, 2, 4).reshape(batch, new, query_heads, -1)


def with_past(
    softmax: Softmax,
    queries: Float[Array, "B H Q D"],
    cached: Cached,
    oldest: Int[Array, "B Q"] | None,
    soft_cap: float | None,
) -> Softmax:
    """Returns the softmax, joined by the live slots of a cache, a block of slots at a time.

    No more blocks are read than the longest row fills, and of the scores only one block's are there
    at once; few queries on an accelerator see all slots as one block, and so do many on a GPU if
    their scores are few. A block of slots that are
    masked leaves a row's numbers as they are, to the last bit.
    """
    slots = cached.slots
    if queries.shape[2] >= _MANY_QUERIES:
        size = min(_MANY_SLOTS, slots)
        blocks = max(slots // max(GPU_SCORES // queries[..., 0].size // size * size, size), 1)
        return jax.lax.platform_dependent(
            *(softmax, queries, cached, oldest),
            cuda=partial(by_blocks, -(-slots // blocks), soft_cap, most_apart=_FEW_BLOCKS),
            default=partial(by_blocks, size, soft_cap),
        )
    if slots <= 2 * _FEW_SLOTS:  # a loop would cost what it saves
        return by_blocks(slots, soft_cap, softmax, queries, cached, oldest)
    # Elsewhere a step of a loop takes longer than few queries do with all slots: a GPU's host
    # decides whether the loop goes on. JAX's fused attention could take this part there:
    # `jax.nn.dot_product_attention(.., implementation="cudnn", return_residual=True)` gives the
    # log-sum-exp by which `join` would add it, on keys seen as [B * H, S, 1, D] without a copy.
    # But it can be traced only where CUDA is installed, takes 16 bits and no soft cap, and what it
    # gives for a row without live slots is not documented. So it waits for a test on a GPU.
    return jax.lax.platform_dependent(
        *(softmax, queries, cached, oldest),
        cpu=partial(by_blocks, _FEW_SLOTS, soft_cap),
        default=partial(by_blocks, slots, soft_cap),
    )


def by_blocks(
    size: int,
    soft_cap: float | None,
    softmax: Softmax,
    queries: Float[Array, "B H Q D"],
    cached: Cached,
    oldest: Int[Array, "B Q"] | None,
    most_apart: int = 0,
) -> Softmax:
    """Returns `with_past` in blocks of `size` slots, or all at once if most are live.

    A block is copied before it is read, the whole cache is not. So few queries see half a block
    where no row has more. Of up to `most_apart` blocks each has a condition, and there is no loop.
    """
    lengths, last = cached.lengths, cached.slots - size
    ends = lengths.reshape(len(lengths), -1, 1)

    def with_slots(
        start: Int[Array, ""] | int, size: int, first: Int[Array, ""] | int, softmax: Softmax
    ) -> Softmax:
        """Joins `size` slots from `start` on; slots before `first` are masked."""
        slots = (start + jnp.arange(size, dtype=jnp.int32))[None, None]
        live = (slots >= first) & (slots < ends)
        if oldest is not None:
            live = live & (slots >= oldest[..., None])
        held, mixed = jax.tree.map(
            lambda part: dequantise(part, queries.dtype),
            cached.block(queries.shape[1], start, size),
            is_leaf=lambda part: isinstance(part, Rounded),
        )
        scores = jnp.where(live[:, None], scores_of(queries, held, soft_cap), LOW)
        return join(softmax, scores, mixed)

    if last == 0:
        return with_slots(0, size, 0, softmax)
    end = (lengths.max() + size - 1) // size
    first = jnp.zeros_like(end) if oldest is None else jnp.maximum(oldest.min(), 0) // size
    first, softmax = vary((first, softmax), queries, cached, oldest)

    def going(carry):
        return carry[0] < end

    def body(carry):
        # Where blocks do not divide the slots, the last begins earlier and masks what it repeats.
        number, softmax = carry
        start = jnp.minimum(number * size, last)
        return number + 1, with_slots(start, size, number * size, softmax)

    if -(-cached.slots // size) <= most_apart:
        for number in range(-(-cached.slots // size)):
            there = partial(with_slots, min(number * size, last), size, number * size)
            live = (number >= first) & (number < end)
            softmax = jax.lax.cond(live, there, lambda softmax: softmax, softmax)
        return softmax

    def live_blocks(softmax):
        return jax.lax.while_loop(going, body, (first, softmax))[1]

    if queries.shape[2] >= _MANY_QUERIES:
        return live_blocks(softmax)
    half = partial(with_slots, 0, size // 2, 0)
    whole = partial(with_slots, 0, cached.slots, 0)
    short = lengths.max() <= size // 2
    most = 2 * size * (end - first) > cached.slots
    branch = jnp.where(short, 0, 1 + most.astype(jnp.int32))
    return jax.lax.switch(branch, (half, live_blocks, whole), softmax)


def near(
    mask: Bool[Array, "B N M+N"], positions: Int[Array, "B N"], window: int
) -> Bool[Array, "B N M+N"]:
    """Returns the mask without tokens `window` positions or more before the query."""
    earlier = mask.shape[2] - mask.shape[1]
    own = positions[:, :, None] - positions[:, None] < window
    if not earlier:
        return mask & own
    # The positions of earlier nodes are not given. But a token sees one path, which was scored from
    # the root down: a node is as far above the token as there are seen ones after it.
    after = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1] - mask
    return mask & jnp.concatenate([after[..., :earlier] < window, own], axis=-1)
