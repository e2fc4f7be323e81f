"""Products with a matrix: a dense layer that keeps both cores of a CPU busy, and the head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
    """Scores of all tokens in float32: states by the rows of a table such as the embedding."""
    return jnp.einsum("...e,ve->...v", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


class Linear(nn.Module):
    """`flax.linen.Dense` with `product`, and the initial weights of this field."""

    features: int
    use_bias: bool
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... I"]) -> Float[Array, "... O"]:
        shape = (x.shape[-1], self.features)
        kernel = self.param("kernel", nn.initializers.normal(0.02), shape, self.param_dtype)
        y = product(x.astype(self.dtype), kernel.astype(self.dtype))
        if not self.use_bias:
            return y
        bias = self.param("bias", nn.initializers.zeros, (self.features,), self.param_dtype)
        return y + bias.astype(self.dtype)
