"""Products with a matrix: a dense layer that keeps both cores of a CPU busy, and the head."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_FEW_ROWS = 16


def product(x: Float[Array, "... I"], kernel: Float[Array, "I O"]) -> Float[Array, "... O"]:
    """x @ kernel.

    On a CPU, XLA runs a matrix-vector product on one thread while the matrix has fewer than about
    half a million entries: all of a small model. As a batch of two half products it runs on two
    (256 x 1376: 28 us against 49 us on two cores), and larger matrices lose nothing. The same
    helps a few rows through a tall matrix (8 rows, 688 x 256: 35 us against 64 us).
    """
    inputs, outputs = kernel.shape
    rows = x.size // inputs
    if inputs % 2 or not (rows == 1 or (rows <= _FEW_ROWS and inputs > outputs)):
        return x @ kernel

    def halves(x, kernel):
        parts = jnp.einsum("rti,tio->tro", x.reshape(rows, 2, -1), kernel.reshape(2, -1, outputs))
        # Not parts.sum(0): a sum fuses into what comes next, a reduction is handed to threads.
        return (parts[0] + parts[1]).reshape(*x.shape[:-1], outputs)

    return jax.lax.platform_dependent(x, kernel, cpu=halves, default=jnp.matmul)


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
