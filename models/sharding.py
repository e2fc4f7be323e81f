"""The axis of a device mesh that each axis of a parameter or of the cache is split over.

A mesh has an axis "data", over which rows of the batch are split, and an axis "model", over which
weights are; either may be left out. Nothing else in the project knows of devices: XLA carries the
shardings of the arguments through `decode`.
"""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec.base import Cache, PyTree
from jspec.models import eight_bits, stacking

TABLE = {
    "embed": ("model", None),
    "head": ("model", None),
    "qkv/kernel": (None, "model"),
    "qkv/bias": ("model",),
    "output/kernel": ("model", None),
    "gate_up/kernel": (None, "model"),
    "gate_up/bias": ("model",),
    "up/kernel": (None, "model"),
    "up/bias": ("model",),
    "down/kernel": ("model", None),
    "experts/gate_up": ("model", None, None),
    "experts/down": ("model", None, None),
    "cache/keys": ("data", "model", None, None),
    "cache/values": ("data", "model", None, None),
    "cache/lengths": ("data",),
}
"""End of a parameter's path to its mesh axes; what is not listed is whole on every device.

The first product of a pair is split by column and the second by row, so that a block needs one sum
over devices behind attention and one behind the MLP (Shoeybi et al. 2019, section 3).
"""


def params(tree: PyTree, mesh: Mesh) -> PyTree:
    """The sharding of every parameter of a model or head, of any family.

    Args:
        tree: params; arrays, or their shapes.
        mesh: devices, with the axes "data" and "model" or one of them.

    Returns:
        A NamedSharding for every leaf, as `jax.device_put` and `jax.jit` take them.

    Example:
        >>> import jax, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("model",))
        >>> shapes = {"params": {"embed": jax.ShapeDtypeStruct((8, 4), "float32")}}
        >>> tuple(params(shapes, mesh)["params"]["embed"].spec)
        ('model', None)
    """

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return parameter(tuple(key.key for key in path), leaf.shape, mesh)

    return jax.tree_util.tree_map_with_path(place, tree)


def parameter(path: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """The sharding of one parameter.

    Args:
        path: its keys in the tree of parameters.
        shape: its own.
        mesh: devices.
    """
    name = path[-1].removesuffix(eight_bits.SUFFIX)
    axes = TABLE.get("/".join((*path[-2:-1], name)), TABLE.get(name, ()))
    if axes and name != path[-1]:
        axes = (*axes[:-2], axes[-1])  # the factors of weights in 8 bits have no axis of inputs
    if axes and any(stacking.layers_of(key) is not None for key in path):
        axes = (None, *axes)  # in front stands the axis of the layers
    return _fit(axes, shape, mesh)


def cache(tree: Cache, mesh: Mesh) -> Cache:
    """The sharding of every array of a cache; heads are split only if they divide evenly."""
    keys, values, lengths = (TABLE[f"cache/{name}"] for name in ("keys", "values", "lengths"))
    return Cache(
        keys=tuple(_fit(keys, layer.shape, mesh) for layer in tree.keys),  # type: ignore[arg-type]
        values=tuple(_fit(values, layer.shape, mesh) for layer in tree.values),  # type: ignore[arg-type]
        lengths=_fit(lengths, tree.lengths.shape, mesh),  # type: ignore[arg-type]
    )


def _fit(axes: tuple[str | None, ...], shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Leaves whole what the mesh has no axis for or cannot split evenly (a vocabulary of 105)."""
    even = [
        axis if axis in mesh.shape and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(axes, shape, strict=bool(axes))
    ]
    return NamedSharding(mesh, PartitionSpec(*even))
