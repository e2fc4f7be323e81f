"""Rows of a drafter's memory: leaves of a row, and leaves that rows share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jspec._validate.errors import InputError
from jspec.types import PyTree


def row_axes(name: str, init: Callable[[int], PyTree]) -> list[int | None]:
    """Returns the axis of rows in each leaf of a memory; None for shared leaves."""
    smaller, larger = (jax.eval_shape(lambda batch=batch: init(batch)) for batch in (2, 3))
    axes: list[int | None] = []
    for (path, a), b in zip(
        jax.tree.leaves_with_path(smaller), jax.tree.leaves(larger), strict=True
    ):
        sizes = zip(a.shape, b.shape, strict=True)
        grown = [axis for axis, (old, new) in enumerate(sizes) if old != new]
        if not grown:
            axes.append(None)
        elif len(grown) == 1 and (a.shape[grown[0]], b.shape[grown[0]]) == (2, 3):
            axes.append(grown[0])
        else:
            raise InputError(
                f"{name}.init gives a state whose leaf {jax.tree_util.keystr(path) or ''} "
                f"has shape {a.shape} for 2 rows and {b.shape} for 3; give a row's memory one axis "
                "with an entry for each row"
            )
    return axes


def take(state: PyTree, axes: list[int | None], rows: Int[Array, " R"]) -> PyTree:
    """Returns the memory with other rows: `rows[i]` is the row that row i was before."""
    leaves, structure = jax.tree.flatten(state)
    new_leaves = [
        # Copied, or both states would hold one array, which the next step donates.
        jnp.copy(leaf) if axis is None else jnp.take(leaf, rows, axis=axis)
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    return jax.tree.unflatten(structure, new_leaves)


def put(state: PyTree, axes: list[int | None], row: Int[Array, ""], row_state: PyTree) -> PyTree:
    """Returns the memory with one row replaced by a single row's memory; what rows share stays."""
    leaves, structure = jax.tree.flatten(state)
    new_leaves = [
        leaf if axis is None else jax.lax.dynamic_update_slice_in_dim(leaf, new, row, axis)
        for leaf, new, axis in zip(leaves, jax.tree.leaves(row_state), axes, strict=True)
    ]
    return jax.tree.unflatten(structure, new_leaves)
