"""Products with weights that are held by outputs, [O, I]: a dense layer, and the head.

A matrix has one output's weights side by side, as torch and Hugging Face's files have them. On a
CPU that is what makes a few rows cheap, so what speculative decoding lives on: see `weights_first`.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from jspec._xla import native
from jspec.models import blocks, eight_bits
from jspec.models.eight_bits import Held

_FEW_ROWS = 32
"""The most rows that go first in a product; beyond, both orders are alike."""


def product(
    x: Float[Array, "... I"], weight: Float[Array, "O I"], dtype: DTypeLike | None = None
) -> Float[Array, "... O"]:
    """Multiplies x by the rows of the weights: natively on a CPU if `native.takes_product`.

    Elsewhere on a CPU one row is multiplied by `halves`, and a few by `weights_first`.
    """
    dtype = x.dtype if dtype is None else dtype
    if native.takes_product(x, weight):

        def kernel(x, weight):
            return native.product(x, weight).astype(dtype)

        return native.natively(kernel, partial(states_first, dtype=dtype), x, weight)
    weight = weight.astype(x.dtype)
    rows = x.size // x.shape[-1]
    if rows > _FEW_ROWS or (rows == 1 and len(weight) % 2):
        return states_first(x, weight, dtype)
    for_few = halves if rows == 1 else weights_first
    on_cpu, elsewhere = (partial(way, dtype=dtype) for way in (for_few, states_first))
    return jax.lax.platform_dependent(x, weight, cpu=on_cpu, default=elsewhere)


def states_first(
    x: Float[Array, "... I"], weight: Float[Array, "O I"], dtype: DTypeLike
) -> Float[Array, "... O"]:
    """Returns `product` as it is written."""
    return jnp.einsum("...i,oi->...o", x, weight.astype(x.dtype), preferred_element_type=dtype)


def weights_first(
    x: Float[Array, "... I"], weight: Float[Array, "O I"], dtype: DTypeLike
) -> Float[Array, "... O"]:
    """Returns `product` with the weights as the left operand, and the result transposed.

    On a CPU, XLA packs the right operand of a product of several rows before it multiplies. Where
    that is the few states, and not the weights, most products of 2 to 32 rows take less time.
    """
    outputs = jnp.einsum("oi,...i->o...", weight, x, preferred_element_type=dtype)
    # Without the barrier XLA makes one product of both, with the states on the left again.
    return jnp.moveaxis(jax.lax.optimization_barrier(outputs), 0, -1)


def halves(
    x: Float[Array, "... I"], weight: Float[Array, "O I"], dtype: DTypeLike
) -> Float[Array, "... O"]:
    """Returns `product` of a single row as two products of half the outputs each.

    On a CPU, XLA runs a matrix-vector product on one thread while the matrix has fewer than about
    half a million entries: all of a small model. A batch of two runs on two.
    """
    both = weight.reshape(2, -1, weight.shape[1])
    # Each half has its own row, or else it is not a batch but one product again.
    twice = jnp.broadcast_to(x.reshape(-1), (2, x.size))
    products = jnp.einsum("toi,ti->to", both, twice, preferred_element_type=dtype)
    return products.reshape(*x.shape[:-1], len(weight))


def unembed(
    x: Float[Array, "... E"], table: Float[Array, "V E"] | blocks.Blocks
) -> Float[Array, "... V"]:
    """Scores of all tokens in float32: states by the rows of a table such as the embedding."""
    if isinstance(table, blocks.Blocks):
        return _in_blocks(x, table, None, jnp.float32)
    return product(x, eight_bits.as_wide(table, x.dtype), jnp.float32)


def as_laid_out(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Returns the same; the weights that y is a product with stay as they are laid out.

    XLA for a TPU lets the heads of attention choose the layout of the weights of queries, keys and
    values, and so copies the weights of all layers before the loop: 6 MB a layer of an eighth of
    8B. On a GPU each reader of a product would sum its parts anew: they took, in a round of 81
    tokens of 8B, 8 MB a layer until its last reader, the commit, had run.
    """
    return jax.lax.platform_dependent(y, cpu=lambda y: y, default=jax.lax.optimization_barrier)


def multiply(
    x: Float[Array, "... I"],
    weights: Held | tuple[Held, ...],
    index: Int[Array, ""] | None = None,
) -> Float[Array, "... O"]:
    """Returns `product`; in 8 bits, the factors of the outputs are multiplied into the result."""
    if isinstance(weights, tuple):
        rounds = any(isinstance(part, blocks.Blocks) and part.rounds_states for part in weights)
        if rounds or all(natively_multiplied(x, part) for part in weights):
            return jnp.concatenate([multiply(x, part, index) for part in weights], -1)
        # The bits of an output by XLA depend on how many outputs there are.
        wide: list[Any] = [
            _wide(x, part) if isinstance(part, blocks.Blocks) else part for part in weights
        ]
        return multiply(x, jnp.concatenate(wide, -2), index)
    if isinstance(weights, blocks.Blocks):
        return _in_blocks(x, weights, index, x.dtype)
    if isinstance(weights, eight_bits.LowPrecision) and weights.rounds_states:
        return _multiply_rounded(x, weights, index)
    if natively_multiplied(x, weights):
        return native.natively(_by_kernel, _by_xla, x, weights, index)
    return _by_xla(x, weights, index)


def _by_xla(
    x: Float[Array, "... I"],
    weights: Float[Array, "*L O I"] | eight_bits.LowPrecision,
    index: Int[Array, ""] | None,
) -> Float[Array, "... O"]:
    if index is not None:
        weights = jax.tree.map(lambda leaf: leaf[index], weights)
    if not isinstance(weights, eight_bits.LowPrecision):
        return product(x, weights)
    narrow = weights.weights
    high = jax.lax.platform_dependent(x, narrow, cpu=upcast_after, default=upcast)
    return product(x, high) * weights.factors.astype(x.dtype)


def natively_multiplied(x: Float[Array, "... I"], weights: Held) -> bool:
    """Returns whether a kernel of a CPU multiplies with these weights, or with one of them."""
    if isinstance(weights, blocks.Blocks):
        packed = weights.packed
        if not weights.rounds_states:
            return native.takes_block_product(x, packed, blocks.SIZES[weights.kind])
        return native.takes_rounded_product(x, packed)
    if isinstance(weights, eight_bits.LowPrecision):
        takes = native.takes_rounded_product if weights.rounds_states else native.takes_product
        return takes(x, weights.weights)
    return native.takes_product(x, weights)


def _in_blocks(
    x: Float[Array, "... I"],
    weights: blocks.Blocks,
    index: Int[Array, ""] | None,
    dtype: DTypeLike,
) -> Float[Array, "... O"]:
    """Returns the product with a matrix in blocks, or with one of several, in this dtype."""

    def by_kernel(x, packed, index):
        run = native.rounded_block_product if weights.rounds_states else native.block_product
        return run(x, packed, blocks.SIZES[weights.kind], index).astype(dtype)

    def by_xla(x, packed, index):
        packed = packed if index is None else packed[index]
        if weights.rounds_states:
            return eight_bits.rounded_block_product(x, packed, weights.kind).astype(dtype)
        return product(x, _wide(x, replace(weights, packed=packed)), dtype)

    inputs = x, weights.packed, index
    if natively_multiplied(x, weights):
        return native.natively(by_kernel, by_xla, *inputs)
    return by_xla(*inputs)


def _wide(x: Float[Array, "..."], weights: blocks.Blocks) -> Float[Array, "*L O I"]:
    """Returns the weights in the dtype of x, dequantised anew for each product."""
    way = jax.lax.platform_dependent
    packed = way(x, weights.packed, cpu=_read_after, default=_read_anew)
    return blocks.dequantise(packed, weights.kind, x.dtype)


def _multiply_rounded(
    x: Float[Array, "... I"], weights: eight_bits.LowPrecision, index: Int[Array, ""] | None = None
) -> Float[Array, "... O"]:
    """Returns the product of 8-bit rows with one matrix or one of several."""

    def by_kernel(x, weights, factors, index):
        return native.rounded_product(x, weights, factors, index).astype(x.dtype)

    def by_xla(x, weights, factors, index):
        if index is not None:
            weights, factors = weights[index], factors[index]
        return eight_bits.rounded_product(x, weights, factors).astype(x.dtype)

    inputs = x, weights.weights, weights.factors, index
    if natively_multiplied(x, weights):
        return native.natively(by_kernel, by_xla, *inputs)
    return by_xla(*inputs)


def _by_kernel(
    x: Float[Array, "... I"],
    weights: Float[Array, "*L O I"] | eight_bits.LowPrecision,
    index: Int[Array, ""] | None,
) -> Float[Array, "... O"]:
    if not isinstance(weights, eight_bits.LowPrecision):
        return native.product(x, weights, index).astype(x.dtype)
    factors = weights.factors if index is None else weights.factors[index]
    return (native.product(x, weights.weights, index) * factors).astype(x.dtype)


def upcast(x: Float[Array, "..."], weights: Num[Array, "O I"]) -> Float[Array, "O I"]:
    """Returns the weights in the dtype of x, anew in every step of a loop."""
    return _read_anew(x, weights).astype(x.dtype)


def upcast_after(x: Float[Array, "..."], weights: Num[Array, "O I"]) -> Float[Array, "O I"]:
    """Does so when x is there, not before: XLA for CPU drops the barrier too early."""
    return _read_after(x, weights).astype(x.dtype)


def _read_anew(x: Float[Array, "..."], weights: Num[Array, "O I"]) -> Num[Array, "O I"]:
    """Returns the weights as they are, read in every step of a loop.

    XLA would take out of the loop what is made of them, and hold it for the whole model.
    """
    return jax.lax.optimization_barrier((x, weights))[1]


def _read_after(x: Float[Array, "..."], weights: Num[Array, "O I"]) -> Num[Array, "O I"]:
    first = x.reshape(-1)[0]
    # Never true, which XLA does not know.
    never = jnp.isnan(first) & jnp.isinf(first)
    bits = jax.lax.bitcast_convert_type(weights, jnp.int8) + never.astype(jnp.int8)
    return jax.lax.bitcast_convert_type(bits, weights.dtype)


class Linear(nn.Module):
    """`flax.linen.Dense` with `product`, weights by outputs and the initial ones of this field."""

    features: int
    use_bias: bool
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        x, shape = x.astype(self.dtype), (self.features, x.shape[-1])
        y = multiply(x, *eight_bits.parameter(self, "weight", shape, self.param_dtype, self.dtype))
        # What is added to the product row by row, such as `jspec.models.lora.RowAdapters`.
        if (adapters := self.get_variable("params", "adapters")) is not None:
            y = y + adapters(x)
        if not self.use_bias:
            return y
        high = eight_bits.high_precision(self.param_dtype, self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), high)
        return y + jnp.broadcast_to(bias.astype(self.dtype), y.shape)
