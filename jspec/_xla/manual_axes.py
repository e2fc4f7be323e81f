"""Loops under `jax.shard_map`, whose carries vary over their data's mesh axes.

`shard_map` checks which values differ between devices (`check_vma`). A loop may not begin with a
constant, the same on all devices, and go on with data of its own device: such constants are made to
vary first. Elsewhere nothing happens.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree


def vary(carry: PyTree, *like: PyTree) -> PyTree:
    """Returns the carry, varying over all axes of some leaf of `like` or itself."""
    axes = frozenset().union(*map(varying_axes, jax.tree.leaves((carry, like))))

    def cast(leaf):
        missing = tuple(sorted(axes - varying_axes(leaf)))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, carry) if axes else carry


def cond(
    condition: Array, make: Callable[[], PyTree], other: Callable[[], PyTree], *like: PyTree
) -> PyTree:
    """Returns `make()` if wanted, else `other()`, with equal varying axes."""
    shapes = jax.eval_shape(make)

    def alike(result: PyTree) -> PyTree:
        return vary(result, condition, shapes, *like)

    return jax.lax.cond(condition, lambda: alike(make()), lambda: alike(other()))


def varying_axes(leaf: Any) -> frozenset[str]:
    """Returns the axes of `shard_map` over which an array differs, as far as JAX was asked."""
    kind = jax.typeof(leaf)
    # JAX has renamed it: `vma` until 0.10, which is part of `manual_axis_type` since.
    manual_type = getattr(kind, "manual_axis_type", None)
    return kind.vma if manual_type is None else manual_type.varying


def default_row_ids(batch: int, tokens: Any, key: Any) -> Any:
    """Returns 0 .. B - 1, or the rows' places among those of all devices under `jax.shard_map`."""
    ids = np.arange(batch, dtype=np.int32)
    if key is None:
        return ids
    mapped = "BatchTracer"  # which JAX has under no public name
    if type(tokens).__name__ == mapped:
        if type(key).__name__ != mapped:
            _warn_of_equal_noise("jax.vmap")
        return ids
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return ids
    # Without the check of varying axes nothing says which devices have rows of their own.
    if not any(varying_axes(jax.lax.axis_index(axis)) for axis in axes):
        _warn_of_equal_noise("jax.pmap or jax.shard_map(.., check_vma=False)")
        return ids
    row_axes = varying_axes(tokens) - varying_axes(key)
    place = 0
    for axis in axes:
        if axis in row_axes:
            place = place * jax.lax.axis_size(axis) + jax.lax.axis_index(axis)
    return ids + batch * place


def _warn_of_equal_noise(transform: str) -> None:
    warnings.warn(
        f"a call was mapped by {transform} without row_ids, so that all devices or calls may draw "
        "the same noise, and equal prompts write equal texts; pass row_ids=, one for each row of "
        "all of them",
        stacklevel=6,
    )
