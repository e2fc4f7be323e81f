"""Greedy calls and their random keys: an unread key compiles nothing new."""

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from jspec._validate import seeds
from jspec.protocols import Drafter
from jspec.round.request import Prepared
from jspec.types import Frame, PyTree


def without_unread(call: Prepared, drafter: Drafter, params: PyTree) -> Prepared:
    """Returns a greedy call without its key, unless the drafter's draft reads that.

    Args:
        call: whose target is greedy, with a key.
        drafter: of the call.
        params: its weights.
    """
    leaves, structure = jax.tree.flatten(params)
    try:
        shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        if _reads_key(drafter, structure, shapes, len(call.arrays.lengths), call.capacity):
            return call
    except Exception:  # The call itself says in a sentence what is wrong with drafter or params.
        return call
    return call._replace(arrays=call.arrays._replace(key=None))


@lru_cache(maxsize=64)
def _reads_key(
    drafter: Drafter, structure: Any, shapes: tuple[Any, ...], batch: int, capacity: int
) -> bool:
    leaves = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    rows = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def draft(keys: jax.Array, params: PyTree, state: PyTree, root: jax.Array) -> PyTree:
        frame = Frame(root=root, positions=root, keys=keys, sampling=None, done=root < 0)
        return jax.tree.leaves(drafter.draft(params, state, frame))

    program = jax.make_jaxpr(draft)(
        jax.eval_shape(lambda: jax.random.split(seeds.any_key(), batch)),
        jax.tree.unflatten(structure, leaves),
        jax.eval_shape(lambda: drafter.init(batch, capacity, None)),
        rows,
    ).jaxpr
    keys = program.invars[0]
    read = [*program.outvars, *(given for each in program.eqns for given in each.invars)]
    return any(given is keys for given in read)
