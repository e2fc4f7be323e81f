"""Shards parameters, caches and batches over a mesh of devices.

`TABLES` names the logical axes of each family's parameters. `Rules` say which axis of the mesh each
logical axis is split over: other ones for a target, a draft model and a head. Nothing else in the
project places arrays: XLA carries the shardings of the arguments through `decode`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from jspec._validate.errors import InputError
from jspec._xla.mesh_axes import ROWS, WEIGHTS
from jspec.models import columns, eight_bits
from jspec.models.decoder import Decoder
from jspec.types import PyTree

Axes = tuple[str | None, ...]


@dataclass(frozen=True)
class Rules:
    """The mesh axis of each logical axis; None: whole on every device.

    Example:
        >>> Rules(heads=None, mlp=None).axis("vocabulary")
        'model'
    """

    rows: str | None = ROWS
    vocabulary: str | None = WEIGHTS
    heads: str | None = WEIGHTS
    mlp: str | None = WEIGHTS
    experts: str | None = WEIGHTS

    def axis(self, name: str | None) -> str | None:
        """Returns the mesh axis of a logical one."""
        return None if name is None else getattr(self, name)


TARGET = Rules()
"""All that is large is split, so that a model fits."""
DRAFT = Rules(vocabulary=None, heads=None, mlp=None, experts=None)
"""A small draft model is whole on each device: exchanging states would cost more."""
HEAD = Rules(heads=None, mlp=None, experts=None)
"""Rules for heads: whole layers, and per-token weights split like the vocabulary."""

_ENDS: dict[str, Axes] = {"embed": ("vocabulary", None), "head": ("vocabulary", None)}
_PER_LAYER: dict[str, Axes] = {"per_layer_embed": ("vocabulary", None)}
# The first product of a pair is split by outputs and the second by inputs, so that a block needs
# one sum over devices behind attention and one behind the MLP (Shoeybi et al. 2019, section 3).
_ATTENTION: dict[str, Axes] = {
    "qkv/weight": ("heads", None),
    "qkv/bias": ("heads",),
    "output/weight": (None, "heads"),
    "sinks": ("heads",),
}
_MLP: dict[str, Axes] = {
    "up/weight": ("mlp", None),
    "up/bias": ("mlp",),
    "down/weight": (None, "mlp"),
}
_GATED_MLP: dict[str, Axes] = {
    "gate_up/weight": ("mlp", None),
    "gate_up/bias": ("mlp",),
    "down/weight": (None, "mlp"),
}
_EXPERTS: dict[str, Axes] = {
    "experts/gate_up": ("experts", None, None),
    "experts/down": ("experts", None, None),
    "experts/gate_up_bias": ("experts", None),
    "experts/down_bias": ("experts", None),
}

_SHARED: dict[str, Axes] = {
    "shared_gate_up/weight": ("mlp", None),
    "shared_down/weight": (None, "mlp"),
}
_LATENT: dict[str, Axes] = {"q/weight": ("heads", None), "kv_up": ("heads", None)}
_DELTA_NET: dict[str, Axes] = {"qkvz/weight": ("heads", None), "ba/weight": ("heads", None)}
_MAMBA: dict[str, Axes] = {"projection/weight": ("mlp", None)}

TABLES: dict[str, dict[str, Axes]] = {
    "Llama": _ENDS | _PER_LAYER | _ATTENTION | _LATENT | _GATED_MLP | _EXPERTS | _SHARED,
    "Hybrid": _ENDS | _ATTENTION | _GATED_MLP | _EXPERTS | _SHARED | _DELTA_NET | _MAMBA,
    "LearnedPositionDecoder": _ENDS | _ATTENTION | _MLP,
    "GPTNeoX": _ENDS | _ATTENTION | _MLP,
    "EAGLEHead": _ENDS | _ATTENTION | _GATED_MLP,
    "EAGLE3Head": _ENDS | _ATTENTION | _GATED_MLP,
    "LyannaHead": _ENDS
    | _ATTENTION
    | _GATED_MLP
    | {"info/up": (None, "vocabulary"), "info/scale": ("vocabulary",)},
    "MedusaHeads": {"head/weight": ("vocabulary", None)},
    "BlockHead": _ENDS
    | _ATTENTION
    | _GATED_MLP
    | {"markov_from": ("vocabulary", None), "markov_to": ("vocabulary", None)},
}
"""Family to the ends of its parameters' paths, without numbers, to their logical axes. Axes
count from the last: layers stacked in front stay whole. What is not listed is whole on every
device."""

_ANY: dict[str, Axes] = {end: axes for table in TABLES.values() for end, axes in table.items()}

_CACHE: Axes = ("rows", "heads")


def params(tree: PyTree, mesh: Mesh, rules: Rules = TARGET, model: Any = None) -> PyTree:
    """Returns the sharding of every parameter of a model or head.

    Args:
        tree: params; arrays, or their shapes.
        mesh: devices, with the axes "data" and "model" or one of them.
        rules: such as `TARGET`, `DRAFT` or `HEAD`.
        model: its network, whose family's table is read; None: all families' tables as one.

    Returns:
        A NamedSharding for every leaf, as `jax.device_put` and `jax.jit` take them.

    Example:
        >>> import jax, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("model",))
        >>> shapes = {"params": {"embed": jax.ShapeDtypeStruct((8, 4), "float32")}}
        >>> tuple(params(shapes, mesh)["params"]["embed"].spec)
        ('model', None)
        >>> tuple(params(shapes, mesh, DRAFT)["params"]["embed"].spec)
        (None, None)
    """
    table = _ANY if model is None else TABLES.get(type(model).__name__, {})

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = tuple(jax.tree_util.keystr(path, simple=True, separator="/").split("/"))
        return _fit(_axes(names, table), leaf.shape, mesh, rules)

    return jax.tree_util.tree_map_with_path(place, tree)


def parameter(
    path: tuple[str, ...], shape: tuple[int, ...], mesh: Mesh, rules: Rules = TARGET
) -> NamedSharding:
    """Returns the sharding of one parameter.

    Args:
        path: its keys in the tree of parameters.
        shape: its own.
        mesh: devices.
        rules: as in `params`.
    """
    return _fit(_axes(path, _ANY), shape, mesh, rules)


def memory(tree: PyTree, mesh: Mesh, rules: Rules = TARGET) -> PyTree:
    """Returns the sharding of a model's memory: by rows, keys and values by heads too.

    Heads are split only if they divide evenly.
    """

    def place(part: Any) -> Any:
        axes = _CACHE if hasattr(part, "mesh_axes") else _CACHE[:1]

        def split(leaf: Any) -> Any:
            places = (*axes, *[None] * leaf.ndim)[: leaf.ndim]
            return _fit(places, leaf.shape, mesh, rules)

        return jax.tree.map(split, part)

    return jax.tree.map(place, tree, is_leaf=lambda part: hasattr(part, "mesh_axes"))


def laid_out(model: Any, mesh: Mesh | AbstractMesh | None, rules: Rules = TARGET) -> Any:
    """Returns the network whose columns are laid out for a mesh, as `load` makes it.

    Args:
        model: a network of the project; any other is given back as it is.
        mesh: devices, which need not exist; None: one.
        rules: as in `params`.

    Example:
        >>> import jax
        >>> from jspec import models
        >>> mesh = jax.sharding.AbstractMesh((2,), ("model",))
        >>> model = models.load("jspec-800k").model
        >>> laid_out(model, mesh).tp_size, laid_out(model, mesh, DRAFT).tp_size
        (2, 1)
    """
    parts = 1 if mesh is None else dict(mesh.shape).get(rules.heads, 1)
    if not isinstance(model, Decoder) or model.tp_size == parts:
        return model
    return model.clone(tp_size=parts)


def spread(model: Any, tree: PyTree, mesh: Mesh, rules: Rules = TARGET) -> tuple[Any, PyTree]:
    """Returns a loaded model and its weights on a mesh, as `load` would read them.

    Args:
        model: its network.
        tree: its params.
        mesh: devices.
        rules: as in `params`.

    Returns:
        The network, whose columns are laid out for the mesh, and its params on their devices.
    """
    network = laid_out(model, mesh, rules)
    placed = jax.device_put(tree, params(tree, mesh, rules))
    if isinstance(model, Decoder):
        placed = columns.relaid(placed, model.fused, model.tp_size, network.tp_size)
    return network, placed


def batch(arrays: PyTree, mesh: Mesh, rules: Rules = TARGET) -> PyTree:
    """Returns prompts, lengths or other arrays with a row each, put on their devices.

    Args:
        arrays: rows first.
        mesh: devices.
        rules: as in `params`.

    Raises:
        InputError: if the devices cannot have equally many rows.

    Example:
        >>> import jax, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
        >>> tuple(batch(np.zeros((4, 9), "int32"), mesh).sharding.spec)
        ('data',)
    """

    def put(array: Any) -> jax.Array:
        _check("the batch has", array.shape[0], "rows", rules.rows, mesh)
        here = rules.rows if rules.rows in mesh.shape else None
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(here)))

    return jax.tree.map(put, arrays)


def assemble(
    shape: tuple[int, ...],
    place: Sharding,
    read: Callable[[tuple[slice, ...]], np.ndarray],
) -> jax.Array:
    """Returns an array on the devices of this process, whose parts are read one after the other.

    Args:
        shape: of the whole.
        place: where each part goes.
        read: a part of it; devices that hold the same part share one reading.
    """
    by_part: dict[tuple[Any, ...], list[Any]] = {}
    for device, index in place.addressable_devices_indices_map(shape).items():
        key = tuple(cut.indices(size)[:2] for cut, size in zip(index or (), shape, strict=True))
        by_part.setdefault(key, []).append(device)
    parts = []
    for key, devices in by_part.items():
        part = read(tuple(slice(*bounds) for bounds in key))
        # Waited for, so that the host holds one part at a time.
        parts += [jax.block_until_ready(jax.device_put(part, device)) for device in devices]
    return jax.make_array_from_single_device_arrays(shape, place, parts)


def check(model: Any, mesh: Mesh, rules: Rules = TARGET) -> None:
    """Refuses a mesh that does not divide what the rules would split.

    Without it, what does not divide stays whole on every device, which takes room; and where key
    and value heads do not, every layer exchanges them.

    Args:
        model: a network with the sizes of a decoder.
        mesh: devices.
        rules: as in `params`.

    Raises:
        InputError: for the first size that the mesh does not divide, before anything is compiled.

    Example:
        >>> import jax, numpy as np
        >>> from jspec import models
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("model",))
        >>> check(models.load("jspec-800k").model, mesh)
    """
    config = model.config
    _check("the model has", config.vocab_size, "tokens in its vocabulary", rules.vocabulary, mesh)
    if getattr(config, "latent", None) is None:
        _check("the model has", config.num_kv_heads, "key-value heads", rules.heads, mesh)
    else:  # latents are whole on every device, and split are the heads that read them
        _check("the model has", config.num_heads, "heads", rules.heads, mesh)
    routed = {layer.experts for layer in getattr(config, "layers", ())} - {None}
    for experts in routed:
        _check("the model has", experts.num_experts, "experts", rules.experts, mesh)
    if not routed:
        _check("the model has", config.intermediate_size, "MLP lanes", rules.mlp, mesh)


def _check(who: str, size: int, what: str, axis: str | None, mesh: Mesh) -> None:
    if axis is None or axis not in mesh.shape or size % (count := mesh.shape[axis]) == 0:
        return
    fitting = max(n for n in range(1, count) if size % n == 0)
    raise InputError(
        f"{who} {size} {what}, which {count} devices of the mesh's axis {axis!r} cannot share "
        f"evenly; take an axis of {fitting}"
        + (f", or {-(-size // count) * count} rows" if what == "rows" else "")
    )


def strip_numbers(name: str) -> str:
    """Returns a name without the numbers of layers.

    Example:
        >>> strip_numbers("layers_12/qkv/weight")
        'layers/qkv/weight'
    """
    return re.sub(r"_\d+", "", name)


def _axes(path: tuple[str, ...], table: dict[str, Axes]) -> Axes:
    """Returns the logical axes of a parameter, by its path's last keys."""
    *_, above, last = ("", *path)
    name = last.removesuffix(eight_bits.SUFFIX)
    axes = table.get(
        f"{strip_numbers(above)}/{strip_numbers(name)}", table.get(strip_numbers(name), ())
    )
    # The factors of weights in 8 bits have no axis of inputs.
    return axes[:-1] if name != last else axes


def _fit(axes: Axes, shape: tuple[int, ...], mesh: Mesh, rules: Rules) -> NamedSharding:
    """Leaves whole what the mesh has no axis for or cannot split evenly (a vocabulary of 105)."""
    if not axes:
        return NamedSharding(mesh, PartitionSpec())
    stacked = (None,) * (len(shape) - len(axes))
    even = []
    for name, size in zip((*stacked, *axes), shape, strict=True):
        axis = rules.axis(name)
        even.append(axis if axis in mesh.shape and size % mesh.shape[axis] == 0 else None)
    return NamedSharding(mesh, PartitionSpec(*even))
