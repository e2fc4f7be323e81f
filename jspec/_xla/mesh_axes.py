"""A mesh of devices: what lies where, and the largest entries, selected where they lie.

XLA carries the shardings of arguments through a program by itself, but it has no top-k of parts: it
gathers all rows of a batch first, in every round. So the selection is written as what each device
does with its own part.

The type of a value tells its mesh, and under automatic axes not how it is laid out. That follows
from the names of the axes: `ROWS` are rows of the batch, `WEIGHTS` what weights are split over, the
vocabulary among it. On a mesh of other names XLA gathers. The results are the same everywhere.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int, Num, PyTree

ROWS, WEIGHTS = "data", "model"
"""The axis of a mesh that the rows of a batch are split over, and that of weights."""

Select = Callable[[Float[Array, "*S V"], int], tuple[Float[Array, "*S k"], Int[Array, "*S k"]]]
"""The k largest of the last axis, falling, and their places; the first of equals comes first."""


def largest(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """`jax.lax.top_k` of rows that stay on their devices.

    Example:
        >>> import jax.numpy as jnp
        >>> values, places = largest(jnp.array([[0.1, 0.7, 0.2]]), 2)
        >>> places.tolist()
        [[1, 2]]
    """
    return of_parts(_top_k, x, k, split=False)


def of_parts(
    select: Select, x: Float[Array, "*S V"], k: int, split: bool = True
) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    """The k largest of the last axis: of each part of a vocabulary, and then of those.

    Args:
        select: does it for an array that is whole.
        x: rows first.
        k: how many.
        split: whether the last axis is a vocabulary, which is split as weights are.

    Returns:
        Values and places, to the last tie those of the whole array. No more than k entries of each
        part have left their device.
    """
    mesh = jax.typeof(x).sharding.mesh
    rows = _divides(mesh, ROWS, x.shape[0]) if x.ndim > 1 else None
    parts = _divides(mesh, WEIGHTS, x.shape[-1], at_least=k) if split else None
    names = {name for name in (rows, parts) if name is not None}
    if not names:
        return select(x, k)

    def own(x: Float[Array, "*s v"]) -> tuple[Float[Array, "*s k"], Int[Array, "*s k"]]:
        values, places = select(x, k)
        if parts is None:
            return values, places
        places = places + jax.lax.axis_index(parts) * x.shape[-1]
        # Parts stand in their order, so that the first of equals stays the first.
        values, places = (
            jax.lax.all_gather(each, parts, axis=each.ndim - 1, tiled=True, to="invarying")
            for each in (values, places)
        )
        values, best = _top_k(values, k)
        return values, jnp.take_along_axis(places, best, axis=-1)

    lanes = [None] * (x.ndim - 2)
    spec = PartitionSpec(rows, *lanes, parts) if x.ndim > 1 else PartitionSpec(parts)
    return jax.shard_map(
        own, mesh=mesh, in_specs=spec, out_specs=PartitionSpec(rows), axis_names=names
    )(x)


def looked_up(table: Num[Array, "V E"], tokens: Int[Array, "*S"]) -> Num[Array, "*S E"]:
    """The rows of a table that may be split by tokens: each device gives those that it has.

    The row of one token alone XLA takes for a slice, for which it gathers the whole table.

    Example:
        >>> import jax.numpy as jnp
        >>> looked_up(jnp.array([[1.0], [2.0]]), jnp.array([[1]])).tolist()
        [[[2.0]]]
    """
    if tokens.size > 1 or _divides(jax.typeof(table).sharding.mesh, WEIGHTS, len(table)) is None:
        return table[tokens]
    twice = jnp.broadcast_to(tokens, (2, *tokens.shape))
    return table[jax.lax.optimization_barrier(twice)][0]


def rows_are_split(x: Num[Array, "B *S"]) -> bool:
    """Whether rows may lie on several devices, so that comparing them would exchange them."""
    return _divides(jax.typeof(x).sharding.mesh, ROWS, x.shape[0]) is not None


def _top_k(x: Float[Array, "*S V"], k: int) -> tuple[Float[Array, "*S k"], Int[Array, "*S k"]]:
    values, places = jax.lax.top_k(x, k)  # a list
    return values, places


def _divides(mesh: AbstractMesh, name: str, size: int, at_least: int = 1) -> str | None:
    """The axis, if XLA is left to split over it and it makes even parts of at least so many."""
    if name not in mesh.axis_names:
        return None
    if mesh.axis_types[mesh.axis_names.index(name)] != AxisType.Auto:
        return None
    count = mesh.shape[name]
    return name if count > 1 and size % count == 0 and size // count >= at_least else None


def mesh_of(arrays: PyTree) -> Mesh | None:
    """The mesh of several devices that some array lies on; None inside of a caller's program."""
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            place = leaf.sharding
            if isinstance(place, NamedSharding) and place.mesh.size > 1:
                return place.mesh  # type: ignore[return-value]
    return None


def specs(state: PyTree, axes: Mapping[str, int], batch: int) -> list[PartitionSpec]:
    """How what a generation keeps is split: rows over `ROWS`, a part with `mesh_axes` by these.

    Args:
        state: with rows first; what has no rows is whole on every device.
        axes: those of a mesh that may be used, with their sizes. What they do not divide is whole.
        batch: the number of rows.

    Returns:
        One for each leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> kept = {"lengths": jnp.zeros(4), "matrix": jnp.zeros((1, 9))}
        >>> [tuple(spec) for spec in specs(kept, {"data": 2}, 4)]
        [('data',), ()]
    """

    def spec(leaf: Any, *names: str) -> PartitionSpec:
        if leaf.shape[:1] != (batch,):
            return PartitionSpec()
        pairs = zip(names, leaf.shape, strict=False)
        return PartitionSpec(
            *(name if name in axes and size % axes[name] == 0 else None for name, size in pairs)
        )

    found = []
    for part in jax.tree.leaves(state, is_leaf=lambda part: hasattr(part, "mesh_axes")):
        names = getattr(part, "mesh_axes", (ROWS,))
        found += [spec(leaf, *names) for leaf in jax.tree.leaves(part)]
    return found
