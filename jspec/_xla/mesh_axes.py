"""A mesh of devices: what lies where.

The type of a value tells its mesh, and under automatic axes not how it is laid out. That follows
from the names of the axes: `ROWS` are rows of the batch, `WEIGHTS` what weights are split over, the
vocabulary among it. On a mesh of other names XLA gathers. The results are the same everywhere.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, Num, PyTree

ROWS, WEIGHTS = "data", "model"
"""The axes of a mesh that rows of a batch and weights are split over."""


def look_up(table: Num[Array, "V E"], tokens: Int[Array, "*S"]) -> Num[Array, "*S E"]:
    """Returns rows of a table that may be split by tokens over devices.

    The row of one token alone XLA takes for a slice, for which it gathers the whole table.
    """
    if tokens.size > 1 or divides(jax.typeof(table).sharding.mesh, WEIGHTS, len(table)) is None:
        return table[tokens]
    twice = jnp.broadcast_to(tokens, (2, *tokens.shape))
    return table[jax.lax.optimization_barrier(twice)][0]


def divides(mesh: AbstractMesh, name: str, size: int, at_least: int = 1) -> str | None:
    """Returns the axis, if XLA may split over it into even parts of at least this size."""
    if name not in mesh.axis_names:
        return None
    if mesh.axis_types[mesh.axis_names.index(name)] != AxisType.Auto:
        return None
    count = mesh.shape[name]
    return name if count > 1 and size % count == 0 and size // count >= at_least else None


def mesh_of(arrays: PyTree) -> Mesh | None:
    """Returns the mesh of several devices that some array is on; None inside a program."""
    for leaf in jax.tree.leaves(arrays):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            place = leaf.sharding
            if isinstance(place, NamedSharding) and place.mesh.size > 1:
                return place.mesh  # type: ignore[return-value]
    return None


def specs(state: PyTree, axes: Mapping[str, int], batch: int) -> list[PartitionSpec]:
    """Returns the sharding of a generation's arrays: rows over `ROWS`, others by axis."""

    def spec(leaf: Any, *names: str) -> PartitionSpec:
        if leaf.shape[:1] != (batch,):
            return PartitionSpec()
        pairs = zip(names, leaf.shape, strict=False)
        return PartitionSpec(
            *(name if name in axes and size % axes[name] == 0 else None for name, size in pairs)
        )

    shardings = []
    for part in jax.tree.leaves(state, is_leaf=lambda part: hasattr(part, "mesh_axes")):
        names = getattr(part, "mesh_axes", (ROWS,))
        shardings += [spec(leaf, *names) for leaf in jax.tree.leaves(part)]
    return shardings
