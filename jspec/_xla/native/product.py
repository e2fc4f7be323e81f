"""Products of few rows, whose bits do not depend on the number of rows."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int8, Num, UInt8

from jspec._xla.native.library import instruction_set, on_one_device
from jspec._xla.native.primitive import natively

MOST_ROWS = 128
"""The most rows that are multiplied natively without tiles: of more, XLA takes less time."""

_WEIGHTS = ("float32", "bfloat16", "int8")
_STATES = ("float32", "bfloat16")
_LANES = 16
"""The most outputs that products of integers lay out together."""
_IN_TILES = 144
"""Blocks of fewer bytes have 32 weights, and are multiplied by AMX where there is AMX."""


def _few(x: Float[Array, "... _"], in_tiles: bool) -> bool:
    return x.size <= MOST_ROWS * x.shape[-1] or (in_tiles and instruction_set() == "AMX")


def _at_hand(x: Float[Array, "... _"], weights: Num[Array, "*L O I"]) -> bool:
    """Returns whether there are kernels here for such rows, and numbers to compute with."""
    return (
        x.size > 0
        and weights.size > 0
        and x.dtype.name in _STATES
        and on_one_device(x)
        and on_one_device(weights)
        and instruction_set() is not None
    )


def takes_product(x: Float[Array, "... _"], weights: Num[Array, "*L O I"]) -> bool:
    """Returns whether `product` computes a product of so many rows, of x's dtype, on a CPU."""
    is_small = _few(x, weights.dtype.name != "float32")
    return weights.dtype.name in _WEIGHTS and is_small and _at_hand(x, weights)


def product(
    x: Float[Array, "... I"],
    weights: Num[Array, "O I"] | Num[Array, "L O I"],
    layer: Int[Array, ""] | None = None,
) -> Float[Array, "... O"]:
    """Multiplies x by the rows of the weights, summed in float32 in one fixed order."""
    layer = jnp.int32(0) if layer is None else layer
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], weights.shape[-2]), jnp.float32)
    call = jax.ffi.ffi_call("jspec_product", shape, vmap_method="sequential")
    return call(x.astype(jnp.float32), weights, layer)


def takes_rounded_product(x: Float[Array, "... _"], weights: Num[Array, "*L O B"]) -> bool:
    """Tells whether a product of rounded rows, of any number of them, is computed on a CPU."""
    laid_out = weights.shape[-2] >= _LANES and weights.dtype.name in ("int8", "uint8")
    return laid_out and _at_hand(x, weights)


def rounded_product(
    x: Float[Array, "... I"],
    weights: Int8[Array, "O I"] | Int8[Array, "L O I"],
    factors: Float[Array, "O"] | Float[Array, "L O"],
    layer: Int[Array, ""] | None = None,
) -> Float[Array, "... O"]:
    """Multiplies x, rounded to 8 bits per row, by the weights and their factors, in float32.

    Bit for bit what `jspec.models.eight_bits.rounded_product` computes by XLA's operations.
    """
    return _multiply_rounded(x, weights, factors.astype(jnp.float32), 0, layer)


def rounded_block_product(
    x: Float[Array, "... I"],
    packed: UInt8[Array, "O B"] | UInt8[Array, "L O B"],
    block_bytes: int,
    layer: Int[Array, ""] | None = None,
) -> Float[Array, "... O"]:
    """Multiplies x, rounded to 8 bits 32 by 32, by rows of weights in blocks, in float32.

    Bit for bit what `jspec.models.eight_bits.rounded_block_product` computes by XLA's operations.
    """
    return _multiply_rounded(x, packed, jnp.zeros(0, jnp.float32), block_bytes, layer)


def _multiply_rounded(
    x: Float[Array, "... I"],
    weights: Num[Array, "*L O B"],
    factors: Float[Array, "..."],
    block_bytes: int,
    layer: Int[Array, ""] | None,
) -> Float[Array, "... O"]:
    layer = jnp.int32(0) if layer is None else layer
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], weights.shape[-2]), jnp.float32)
    call = jax.ffi.ffi_call("jspec_rounded_product", shape, vmap_method="sequential")
    operands = x.astype(jnp.float32), weights, factors, layer
    return call(*operands, block_bytes=np.int32(block_bytes))


def takes_block_product(
    x: Float[Array, "... _"], packed: UInt8[Array, "*L O B"], block_bytes: int
) -> bool:
    """Returns whether `block_product` computes this product on a CPU."""
    return _few(x, block_bytes < _IN_TILES) and _at_hand(x, packed)


def block_product(
    x: Float[Array, "... I"],
    packed: UInt8[Array, "O B"] | UInt8[Array, "L O B"],
    block_bytes: int,
    layer: Int[Array, ""] | None = None,
) -> Float[Array, "... O"]:
    """Returns `product` with weights in blocks of 32, which are widened in the register."""
    layer = jnp.int32(0) if layer is None else layer
    shape = jax.ShapeDtypeStruct((*x.shape[:-1], packed.shape[-2]), jnp.float32)
    call = jax.ffi.ffi_call("jspec_block_product", shape, vmap_method="sequential")
    return call(x.astype(jnp.float32), packed, layer, block_bytes=np.int32(block_bytes))


def row_sums(x: Float[Array, "... I"]) -> Float[Array, "... 1"]:
    """Sums over the last axis, each in an order that does not depend on the number of rows.

    XLA shares out a row among threads where there are few of them.
    """

    def plainly(x):
        return x.sum(-1, keepdims=True)

    if instruction_set() is None or x.dtype != jnp.float32 or not x.size or not on_one_device(x):
        return plainly(x)
    return natively(lambda x: product(x, jnp.ones((1, x.shape[-1]), jnp.float32)), plainly, x)
