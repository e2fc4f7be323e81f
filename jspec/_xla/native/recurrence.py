"""Recurrent layers of a round, whose bits do not depend on what else is in the tree."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int

from jspec._xla.native.library import has, on_one_device


def takes_recurrence(x: Float[Array, "..."], *arrays: Float[Array, "..."]) -> bool:
    """Returns whether the kernels below compute with these arrays on a CPU."""
    return has("jspec_recur") and all(
        y.dtype == jnp.float32 and y.size > 0 and on_one_device(y) for y in (x, *arrays)
    )


def recur(
    q: Float32[Array, "B J N K"],
    k: Float32[Array, "B J N K"],
    v: Float32[Array, "B H N D"],
    factors: Float32[Array, "B H N"],
    beta: Float32[Array, "B H N"] | None,
    states: Float32[Array, "B H K D"],
    seen: Bool[Array, "B N N"],
) -> tuple[Float32[Array, "B H N D"], Float32[Array, "B H N D"]]:
    """Returns each node's read of its state and its update, from its parent's state."""
    shapes = (jax.ShapeDtypeStruct(v.shape, jnp.float32),) * 2
    call = jax.ffi.ffi_call("jspec_recur", shapes, vmap_method="sequential")
    rates = factors if beta is None else beta
    mixed, updates = call(
        q, k, v, factors, rates, states, seen, delta=np.int32(beta is not None)
    )  # fmt: skip
    return mixed, updates


def replay(
    states: Float32[Array, "B H K D"],
    keys: Float32[Array, "B H N K"],
    updates: Float32[Array, "B H N D"],
    factors: Float32[Array, "B H N 1"],
    path: Int[Array, "B P"],
    counts: Int[Array, " B"],
) -> Float32[Array, "B H K D"]:
    """Returns the states after the first `counts` nodes of a path, bitwise as in `recur`."""
    shape = jax.ShapeDtypeStruct(states.shape, jnp.float32)
    call = jax.ffi.ffi_call(
        "jspec_replay", shape, vmap_method="sequential", input_output_aliases={0: 0}
    )
    return call(states, keys, updates, factors, path.astype(jnp.int32), counts.astype(jnp.int32))


def convolve(
    inputs: Float32[Array, "B J N C"],
    kernel: Float32[Array, "J C _"],
    window: Float32[Array, "B J W C"],
    seen: Bool[Array, "B N N"],
) -> Float32[Array, "B J N C"]:
    """Returns each lane's sum over a node and the W tokens before it on its path."""
    shape = jax.ShapeDtypeStruct(inputs.shape, jnp.float32)
    call = jax.ffi.ffi_call("jspec_convolve", shape, vmap_method="sequential")
    return call(inputs, jnp.moveaxis(kernel, -1, 0), window, seen)
