"""Norms of activations, with their moments in float32 whatever the dtype."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec._xla import native
from jspec.models import eight_bits


class RMSNorm(nn.Module):
    """Zhang and Sennrich 2019: x / rms(x), times a scale for each lane.

    Args:
        eps: added to the mean square.
        dtype: dtype of the result.
        param_dtype: dtype that the scale is created in.
        offset: added to the scale: 1 where the weights are what differs from 1, as in Gemma.
        scaled: whether there is a scale.
    """

    eps: float
    dtype: Any
    param_dtype: Any
    offset: float = 0.0
    scaled: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        high = x.astype(jnp.float32)
        unit = high * jax.lax.rsqrt(native.row_sums(jnp.square(high)) / x.shape[-1] + self.eps)
        if not self.scaled:
            return unit.astype(self.dtype)
        begin = nn.initializers.constant(1.0 - self.offset)
        scale = self.param(
            "scale", begin, (x.shape[-1],), eight_bits.high_precision(self.param_dtype, self.dtype)
        )
        factor = jnp.broadcast_to(scale.astype(jnp.float32) + self.offset, unit.shape)
        return (unit * factor).astype(self.dtype)


class LayerNorm(nn.Module):
    """Ba et al. 2016: (x - mean(x)) / std(x), times a scale and plus a bias for each lane."""

    eps: float
    affine: bool
    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        width = x.shape[-1]
        high = x.astype(jnp.float32)
        # E[x^2] - E[x]^2 cancels where a lane is large, as some are in every trained GPT-2.
        high = high - native.row_sums(high) / width
        unit = high * jax.lax.rsqrt(native.row_sums(jnp.square(high)) / width + self.eps)
        if self.affine:
            kind = eight_bits.high_precision(self.param_dtype, self.dtype)
            scale = self.param("scale", nn.initializers.ones_init(), (width,), kind)
            bias = self.param("bias", nn.initializers.zeros_init(), (width,), kind)
            unit = unit * scale.astype(jnp.float32) + bias.astype(jnp.float32)
        return unit.astype(self.dtype)
