"""Shapes of a generation's arrays, with the shardings that they have on a mesh."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jspec.arrays import memory_rows as memories
from jspec.models import sharding
from jspec.protocols import CausalLM
from jspec.types import PyTree, State

AXES = ("data", "model")
_BORROWED = "target"
"""The key of what a head's variables have of its target."""


def spread(tree: PyTree, mesh: Any) -> PyTree:
    """Returns the shapes of params with their shardings."""

    def place(path: tuple[Any, ...], leaf: Any) -> jax.ShapeDtypeStruct:
        return with_sharding(leaf, sharding.parameter(_keys(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)


def spread_drafter(tree: PyTree, mesh: Any) -> PyTree:
    """Returns the shapes of a drafter's params, borrowed parts as the target's."""
    places = [_keys(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
    borrowing = {keys[: keys.index(_BORROWED)] for keys in places if _BORROWED in keys}
    models = {keys[:-2] for keys in places if keys[-2:] == ("params", "embed")} - borrowing

    def place(path: tuple[Any, ...], leaf: Any) -> jax.ShapeDtypeStruct:
        keys = _keys(path)
        rules = sharding.TARGET if _BORROWED in keys else sharding.HEAD
        if "params" in keys and keys[: keys.index("params")] in models:
            rules = sharding.DRAFT
        return with_sharding(leaf, sharding.parameter(keys, leaf.shape, mesh, rules))

    return jax.tree_util.tree_map_with_path(place, tree)


def _keys(path: tuple[Any, ...]) -> tuple[str, ...]:
    # Alongside weights a drafter's params hold records.
    return tuple(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)


def whole(tree: PyTree, mesh: Any) -> PyTree:
    """Returns the shapes, whole on every device."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: with_sharding(leaf, everywhere), tree)


def model_memory(model: CausalLM, rows: int, capacity: int, mesh: Any) -> PyTree:
    """Returns the shapes of a model's memory, with their shardings."""
    shapes = jax.eval_shape(partial(model.init_memory, rows, capacity))
    return jax.tree.map(with_sharding, shapes, sharding.memory(shapes, mesh))


def memory_of(part: Any, rows: int, capacity: int, mesh: Any) -> PyTree:
    """Returns the shapes of the memory of a drafter or a policy: what has an entry for each row
    goes where the row goes.
    """

    def init(batch: int) -> PyTree:
        return part.init(batch, capacity, None)

    axes = memories.row_axes(type(part).__name__, init)
    leaves, structure = jax.tree.flatten(jax.eval_shape(partial(init, rows)))
    placed = [
        with_sharding(leaf, _by_row(leaf.shape, axis, mesh))
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    return structure.unflatten(placed)


def state_of(state: State, memory: PyTree, states: tuple[PyTree, PyTree], mesh: Any) -> State:
    """Returns the shapes of a generation's state, with the shardings of memories and rows."""
    place = partial(by_row, rows=state.root.shape[0], mesh=mesh)
    plain = jax.tree.map(place, replace(state, memory=None, drafter_state=None, policy_state=None))
    # A memory may have grown a part since `init`, in shapes that `init` tells nothing of.
    drafters, policies = states
    if jax.tree.structure(drafters) != jax.tree.structure(state.drafter_state):
        drafters = jax.tree.map(place, state.drafter_state)
    return replace(plain, memory=memory, drafter_state=drafters, policy_state=policies)


def by_row(leaf: Any, rows: int, mesh: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array whose first axis counts rows, if it is as long."""
    axis = 0 if leaf.shape and leaf.shape[0] == rows else None
    return with_sharding(leaf, _by_row(leaf.shape, axis, mesh))


def with_sharding(leaf: Any, split: NamedSharding) -> jax.ShapeDtypeStruct:
    """Returns the shape of an array with another sharding."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=split)


def _by_row(shape: Sequence[int], axis: int | None, mesh: Any) -> NamedSharding:
    spec: list[str | None] = [None] * len(shape)
    if axis is not None and shape[axis] % mesh.shape["data"] == 0:
        spec[axis] = "data"
    return NamedSharding(mesh, PartitionSpec(*spec))
