"""The largest entries of rows, found where they lie: group by group, part by part.

XLA carries the shardings of arguments through a program by itself, but it has no top-k of parts: it
gathers all rows of a batch first, in every round. So the selection is written as what each device
does with its own part.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int, Shaped

from jspec._xla import mesh_axes

_GROUP = 128
"""The number of lanes per group of the two-stage top-k."""
_PIECE = 1 << 22
"""Entries that a TPU searches at a time; 16 MiB."""

Select = Callable[[Float[Array, "*S V"], int], tuple[Float[Array, "*S k"], Int[Array, "*S k"]]]
"""The k largest of the last axis, falling, and their places; first of equals first."""


def largest(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """Returns `jax.lax.top_k` of rows that stay on their devices."""
    return of_parts(_top_k, x, k, split=False)


def of_parts(
    select: Select, x: Float[Array, "*S V"], k: int, split: bool = True
) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """Returns the k largest of the last axis: first of each part, then among these."""
    mesh = jax.typeof(x).sharding.mesh
    rows = mesh_axes.divides(mesh, mesh_axes.ROWS, x.shape[0]) if x.ndim > 1 else None
    parts = mesh_axes.divides(mesh, mesh_axes.WEIGHTS, x.shape[-1], at_least=k) if split else None
    names = {name for name in (rows, parts) if name is not None}
    if not names:
        return select(x, k)

    def select_part(x: Float[Array, "*s v"]) -> tuple[Float[Array, "*s k"], Int[Array, "*s k"]]:
        values, places = select(x, k)
        if parts is None:
            return values, places
        places = places + jax.lax.axis_index(parts) * x.shape[-1]
        # Parts keep their order, so that the first of equals stays the first.
        values, places = (
            jax.lax.all_gather(each, parts, axis=each.ndim - 1, tiled=True, to="invarying")
            for each in (values, places)
        )
        values, best = _top_k(values, k)
        return values, jnp.take_along_axis(places, best, axis=-1)

    inner = [None] * (x.ndim - 2)
    spec = PartitionSpec(rows, *inner, parts) if x.ndim > 1 else PartitionSpec(parts)
    return jax.shard_map(
        select_part, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(rows), axis_names=names
    )(x)


def top_k(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """Returns `jax.lax.top_k`, the first of equals first, much faster on a long last axis."""
    return of_parts(_by_pieces, x, k)


def top_k_and_logsumexp(
    x: Float[Array, "*S V"], k: int
) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"], Float[Array, "*S"]]:
    """Returns `top_k` and `jax.nn.logsumexp` of the last axis; one kernel does both on a CPU."""
    from jspec._xla import native  # on first use: decoding can be read without it

    def plainly(x: Float[Array, "*S V"]) -> tuple[Any, Any, Any]:
        return *top_k(x, k), jax.nn.logsumexp(x, axis=-1)

    if not native.takes_top(x, k):
        return plainly(x)
    return native.natively(partial(native.top, k=k), plainly, x)


def _by_pieces(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """Returns `top_k` of an array that is whole, which a TPU searches some nodes at a time.

    XLA for TPUs copies what it takes groups from, three times with its padding. Of the logits of a
    wide tree for many rows these copies were the largest arrays alongside weights and cache.
    """
    num_nodes = x.shape[-2] if x.ndim > 2 else 1
    size = max(num_nodes * _PIECE // max(x.size, 1), 1)
    if size >= num_nodes:
        return _by_groups(x, k)
    # Elsewhere nothing is padded. A processor's cores share the work on all of it better than that
    # on pieces; on a GPU each piece is nine launches, and XLA of JAX 0.12 compiles no loop around a
    # top-k there ("BufferAllocation::Slice not assigned").
    return jax.lax.platform_dependent(
        x, tpu=partial(_some_nodes, size=size, k=k), default=partial(_by_groups, k=k)
    )


def _some_nodes(
    x: Float[Array, "*S N V"], size: int, k: int
) -> tuple[Float[Array, "*S N k"], Int[Array, "*S N k"]]:
    """`_by_groups` in a loop over nodes, `size` of them at a time."""
    count = x.shape[-2]
    pieces = -(-count // size)
    again = pieces * size - count  # the last piece begins earlier, with nodes of the one before it

    def search(start: Int[Array, ""]) -> tuple[Float[Array, "*S n k"], Int[Array, "*S n k"]]:
        return _by_groups(jax.lax.dynamic_slice_in_dim(x, start, size, axis=-2), k)

    def join(parts: Shaped[Array, "P *S n k"]) -> Shaped[Array, "*S N k"]:
        parts = jnp.moveaxis(parts, 0, -3)
        before = parts[..., :-1, :, :].reshape(*x.shape[:-2], -1, k)
        return jnp.concatenate([before, parts[..., -1, again:, :]], axis=-2)

    starts = jnp.minimum(jnp.arange(pieces, dtype=jnp.int32) * size, count - size)
    values, places = jax.lax.map(search, starts)
    return join(values), join(places)


def _by_groups(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """Returns `top_k` of an array that is whole."""
    size = x.shape[-1]
    groups = -(-size // _GROUP)
    if groups <= 2 * k:
        values, place = jax.lax.top_k(x, k)  # a list
        return values, place
    padding = [(0, 0)] * (x.ndim - 1) + [(0, groups * _GROUP - size)]
    grouped = jnp.pad(x, padding, constant_values=-jnp.inf).reshape(*x.shape[:-1], groups, _GROUP)
    _, best = jax.lax.top_k(grouped.max(-1), k)
    best = jnp.sort(best, axis=-1)
    winners = jnp.take_along_axis(grouped, best[..., None], axis=-2).reshape(*x.shape[:-1], -1)
    values, place = jax.lax.top_k(winners, k)
    group = jnp.take_along_axis(best, place // _GROUP, axis=-1)
    return values, group * _GROUP + place % _GROUP


def _top_k(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    values, places = jax.lax.top_k(x, k)  # a list
    return values, places
