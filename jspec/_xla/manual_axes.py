"""Loops under `jax.shard_map`, whose carries vary over their data's mesh axes.

`shard_map` checks which values differ between devices (`check_vma`). A loop may not begin with a
constant, the same on all devices, and go on with data of its own device: such constants are made to
vary first. Elsewhere nothing happens.
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, PyTree


def vary(carry: PyTree, *like: PyTree) -> PyTree:
    """Returns the carry, varying over all axes of some leaf of `like` or itself.

    Args:
        carry: of a loop, before its first step.
        like: data that the loop reads.
    """
    axes = frozenset().union(*map(varying_axes, jax.tree.leaves((carry, like))))

    def cast(leaf):
        missing = tuple(sorted(axes - varying_axes(leaf)))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, carry) if axes else carry


def cond(
    wanted: Array, make: Callable[[], PyTree], other: Callable[[], PyTree], *like: PyTree
) -> PyTree:
    """Returns `make()` if wanted, else `other()`, with equal varying axes."""
    shapes = jax.eval_shape(make)

    def alike(made: PyTree) -> PyTree:
        return vary(made, wanted, shapes, *like)

    return jax.lax.cond(wanted, lambda: alike(make()), lambda: alike(other()))


def varying_axes(leaf: Any) -> frozenset[str]:
    """Returns the axes of `shard_map` over which an array differs, as far as JAX was asked."""
    kind = jax.typeof(leaf)
    # JAX has renamed it: `vma` until 0.10, which is part of `manual_axis_type` since.
    known = getattr(kind, "manual_axis_type", None)
    return kind.vma if known is None else known.varying
