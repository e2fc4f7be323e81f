"""The largest entries of rows and the sums of their exponentials, in one pass over the rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from jspec._xla.native.library import has, on_one_device

_MOST = 128
"""The most entries that are kept of a row: of more, XLA's sort takes less time."""


def takes_top(x: Float[Array, "*S V"], k: int) -> bool:
    """Returns whether `top` computes this on a CPU."""
    fits = x.dtype == jnp.float32 and x.size > 0 and 0 < k <= min(x.shape[-1], _MOST)
    return fits and on_one_device(x) and has("jspec_top")


def top(
    x: Float32[Array, "*S V"], k: int
) -> tuple[Float32[Array, "*S k"], Int[Array, "*S k"], Float32[Array, "*S"]]:
    """Returns `jax.lax.top_k` of the last axis, and `jax.nn.logsumexp` of float32 sums."""
    rows = x.shape[:-1]
    shapes = (
        jax.ShapeDtypeStruct((*rows, k), jnp.float32),
        jax.ShapeDtypeStruct((*rows, k), jnp.int32),
        jax.ShapeDtypeStruct(rows, jnp.float32),
    )
    values, places, log_sums = jax.ffi.ffi_call("jspec_top", shapes, vmap_method="broadcast_all")(x)
    return values, places, log_sums
