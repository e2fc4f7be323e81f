"""A drafter's memory between two calls: what does not depend on how long the texts were."""

from functools import lru_cache, partial
from typing import Any

import jax
from jaxtyping import Array

from jspec.types import PyTree

SLOTS = 64
"""Tokens that a row of a memory between two calls has room for.

Nobody reads them. They are more than trees have levels, since draft heads refuse shorter rows.
"""


def between_calls(drafter: Any, state: PyTree, batch: int, capacity: int) -> PyTree:
    """Returns the memory of an ended call as the next one gets it: leaves that grow with the
    capacity, which are of ended texts, are new ones of `SLOTS` tokens.
    """
    grows = _growing(drafter, batch, capacity)
    if not any(grows):
        return state
    leaves, structure = jax.tree.flatten(state)
    fresh = iter(_fresh(drafter, batch, grows))
    both = zip(leaves, grows, strict=True)
    return jax.tree.unflatten(structure, [next(fresh) if new else old for old, new in both])


@lru_cache(maxsize=64)
def _growing(drafter: Any, batch: int, capacity: int) -> tuple[bool, ...]:
    """Returns, for each leaf of a memory, whether its shape depends on the capacity."""
    shapes = (
        jax.tree.leaves(jax.eval_shape(partial(drafter.init, batch, size, None)))
        for size in (SLOTS, capacity, capacity + 1)
    )
    return tuple(len({leaf.shape for leaf in sizes}) > 1 for sizes in zip(*shapes, strict=True))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _fresh(drafter: Any, batch: int, grows: tuple[bool, ...]) -> list[Array]:
    """Returns the leaves of an empty memory that grow with the capacity."""
    leaves = jax.tree.leaves(drafter.init(batch, SLOTS, None))
    return [leaf for leaf, new in zip(leaves, grows, strict=True) if new]
