"""Attention of a round, whose bits do not depend on where keys lie or what else attends."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num

from jspec._xla.native.library import instruction_set, on_one_device

MOST_TOKENS = 128
"""The most new tokens of a row: of more, as in prompts, XLA's products take less time."""

_DTYPES = {
    ("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "uint16"), ("float32", "int8")
}  # fmt: skip
"""Of queries and of slots; uint16 are the bits of bfloat16."""


def takes_attention(q: Float[Array, "B N G*H D"], slot_keys: Num[Array, "B H*L S D"]) -> bool:
    """Returns whether `attention` computes this on a CPU."""
    return (
        q.size > 0
        and q.shape[1] <= MOST_TOKENS
        and (q.dtype.name, slot_keys.dtype.name) in _DTYPES
        and on_one_device(q)
        and on_one_device(slot_keys)
        and instruction_set() is not None
    )


def attention(
    q: Float[Array, "B N G*H D"],
    node_keys: Float[Array, "B H K D"],
    node_values: Float[Array, "B H K D"],
    mask: Bool[Array, "B N K"],
    slot_keys: Num[Array, "B H*L S D"],
    slot_values: Num[Array, "B H*L S D"],
    lengths: Int[Array, " B"],
    oldest: Int[Array, "B N"],
    layer: Int[Array, ""],
    *,
    soft_cap: float | None,
    scales: tuple[Float[Array, "B H*L S 1"], Float[Array, "B H*L S 1"]] | None = None,
) -> Float[Array, "B N G*H D"]:
    """Returns one softmax per query over the live slots and its visible nodes."""
    if scales is None:
        scales = jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.float32)
    shape = jax.ShapeDtypeStruct(q.shape, jnp.float32)
    call = jax.ffi.ffi_call("jspec_attend", shape, vmap_method="sequential")
    return partial(call, soft_cap=np.float32(soft_cap or 0))(
        *(q.astype(jnp.float32), node_keys, node_values, mask),
        *(slot_keys, slot_values, *scales, lengths, oldest, layer),
    )
