"""Ragged rows in rectangular arrays."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Num


def append(
    buffer: Num[Array, "B T *S"],
    lengths: Int[Array, " B"],
    new: Num[Array, "B P *S"],
    counts: Int[Array, " B"],
) -> Num[Array, "B T *S"]:
    """Writes the first `counts` of `new` behind the first `lengths` of each row.

    Mapped over rows, not indexed by them: a sharded batch then writes without communication.
    """
    offsets = jnp.arange(new.shape[1], dtype=jnp.int32)[None]
    # A masked lane goes off the end and is dropped.
    places = jnp.where(offsets < counts[:, None], lengths[:, None] + offsets, buffer.shape[1])
    return jax.vmap(lambda row, place, token: row.at[place].set(token, mode="drop"))(
        buffer, places, new
    )


def sequence(batch: int, count: int) -> tuple[Int[Array, "B T"], Bool[Array, "B T T"]]:
    """Returns the (positions, mask) of rows of text, in which each token follows all before it."""
    positions = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), (batch, count))
    causal = jnp.tril(jnp.ones((count, count), bool))
    return positions, jnp.broadcast_to(causal, (batch, count, count))
