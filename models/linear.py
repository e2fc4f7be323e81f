"""Products with a matrix: a dense layer that keeps both cores of a CPU busy, and the head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from jspec.models import eight_bits

_FEW_ROWS = 16
"""The most states that are unembedded with the table first; more were not measured."""


def product(x: Float[Array, "... I"], kernel: Float[Array, "I O"]) -> Float[Array, "... O"]:
    """x @ kernel; a single row on a CPU by `halves`."""
    inputs = kernel.shape[0]
    if inputs % 2 or x.size != inputs:
        return x @ kernel
    return jax.lax.platform_dependent(x, kernel, cpu=halves, default=jnp.matmul)


def halves(x: Float[Array, "... I"], kernel: Float[Array, "I O"]) -> Float[Array, "... O"]:
    """x @ kernel as the sum of two products, of one half of the inputs each.

    On a CPU, XLA runs a matrix-vector product on one thread while the matrix has fewer than about
    half a million entries: all of a small model. As a batch of two half products it runs on two,
    and larger matrices lose nothing. Products of more rows run on all threads by themselves.
    `python -m benchmarks.speed.products` measures both.
    """
    inputs, outputs = kernel.shape
    rows = x.size // inputs
    parts = jnp.einsum("rti,tio->tro", x.reshape(rows, 2, -1), kernel.reshape(2, -1, outputs))
    # Not parts.sum(0): a sum fuses into what comes next, a reduction is handed to threads.
    return (parts[0] + parts[1]).reshape(*x.shape[:-1], outputs)


def unembed(x: Float[Array, "... E"], table: Float[Array, "V E"]) -> Float[Array, "... V"]:
    """Scores of all tokens in float32: states by the rows of a table such as the embedding.

    A few states on a CPU by `table_first`.
    """
    table = table.astype(x.dtype)
    rows = x.size // x.shape[-1]
    if not 1 < rows <= _FEW_ROWS:
        return states_first(x, table)
    return jax.lax.platform_dependent(x, table, cpu=table_first, default=states_first)


def states_first(x: Float[Array, "... E"], table: Float[Array, "V E"]) -> Float[Array, "... V"]:
    """`unembed` as it is written."""
    return jnp.einsum("...e,ve->...v", x, table, preferred_element_type=jnp.float32)


def table_first(x: Float[Array, "... E"], table: Float[Array, "V E"]) -> Float[Array, "... V"]:
    """`unembed` with the table as the left operand, and the scores transposed.

    On a CPU, XLA takes 2 to 16 states through 49,152 x 576 in 0.72 to 0.76 of the time that
    it needs with the states on the left (two cores; one state is faster as it is).
    `python -m benchmarks.speed.products` measures both.
    """
    scores = jnp.einsum("ve,...e->v...", table, x, preferred_element_type=jnp.float32)
    # Without the barrier XLA makes one product of both, with the states on the left again.
    return jnp.moveaxis(jax.lax.optimization_barrier(scores), 0, -1)


def as_laid_out(y: Float[Array, "..."]) -> Float[Array, "..."]:
    """The same; the weights that y is a product with stay as they are laid out.

    XLA for a TPU lets the heads of attention choose the layout of the weights of queries, keys and
    values, and so copies those of all layers before the loop: 6 MB a layer of an eighth of 8B.
    """
    return jax.lax.platform_dependent(y, tpu=jax.lax.optimization_barrier, default=lambda y: y)


def multiply(
    x: Float[Array, "... I"], kernel: Float[Array, "I O"] | eight_bits.Narrow
) -> Float[Array, "... O"]:
    """x @ kernel; in 8 bits, the factors of its columns are multiplied into the result."""
    if not isinstance(kernel, eight_bits.Narrow):
        return product(x, kernel)
    wide = jax.lax.platform_dependent(x, kernel.weights, cpu=widened_after, default=widened)
    return product(x, wide) * kernel.factors.astype(x.dtype)


def widened(x: Float[Array, "..."], weights: Num[Array, "I O"]) -> Float[Array, "I O"]:
    """The weights in the dtype of x, anew in every step of a loop.

    XLA would take that out of the loop, and hold all weights of the model in that dtype.
    """
    x, weights = jax.lax.optimization_barrier((x, weights))
    return weights.astype(x.dtype)


def widened_after(x: Float[Array, "..."], weights: Num[Array, "I O"]) -> Float[Array, "I O"]:
    """The same when x is known, not before: XLA for CPU drops the barrier too early."""
    first = x.reshape(-1)[0]
    # Never true, which XLA does not know.
    never = jnp.isnan(first) & jnp.isinf(first)
    bits = jax.lax.bitcast_convert_type(weights, jnp.int8) + never.astype(jnp.int8)
    return jax.lax.bitcast_convert_type(bits, weights.dtype).astype(x.dtype)


class Linear(nn.Module):
    """`flax.linen.Dense` with `product`, and the initial weights of this field."""

    features: int
    use_bias: bool
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        x, shape = x.astype(self.dtype), (x.shape[-1], self.features)
        kernel = eight_bits.parameter(self, "kernel", shape, self.param_dtype, self.dtype)
        y = multiply(x, kernel)
        if not self.use_bias:
            return y
        wide = eight_bits.wide(self.param_dtype, self.dtype)
        bias = self.param("bias", nn.initializers.zeros, (self.features,), wide)
        return y + bias.astype(self.dtype)
