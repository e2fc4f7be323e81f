"""Medusa's heads (Cai et al. 2024): from one hidden state, the token at each of several offsets."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from jspec.base import PyTree
from jspec.errors import InputError
from jspec.models.linear import Linear, product


@dataclass(frozen=True)
class MedusaConfig:
    """Shape of the heads; vocabulary and width are the target's."""

    vocab_size: int
    hidden_size: int
    num_heads: int = 4
    num_layers: int = 1
    """Residual blocks of a head."""

    def __post_init__(self):
        for name in ("vocab_size", "hidden_size", "num_heads", "num_layers"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"{name} of the Medusa heads is {value}; it has to be at least 1")


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W starts at zero, so that a new head is nearly the target's own."""

    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        width = x.shape[-1]
        kernel = self.param("kernel", nn.initializers.zeros, (width, width), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (width,), self.param_dtype)
        return x + nn.silu(product(x, kernel.astype(self.dtype)) + bias.astype(self.dtype))


class MedusaHeads(nn.Module):
    """Head i scores, from the state at position j, the token at j + 2 + i; head 0 is the first.

    The target's own head scores the token at j + 1, so Medusa has none for it.

    Args:
        config: shape of the heads.
        dtype: dtype of activations; scores are float32.
        param_dtype: that weights are created in.
    """

    config: MedusaConfig
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def features(self) -> int:
        """E, width of the target's state that the heads read."""
        return self.config.hidden_size

    @property
    def num_heads(self) -> int:
        return self.config.num_heads

    @nn.compact
    def __call__(self, hidden: Float[Array, "B N E"]) -> Float[Array, "B N K V"]:
        """Scores of K heads."""
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        scores = []
        for head in range(config.num_heads):
            x = hidden.astype(self.dtype)
            for layer in range(config.num_layers):
                x = ResBlock(*dtypes, name=f"block_{head}_{layer}")(x)
            scores.append(Linear(config.vocab_size, False, *dtypes, name=f"head_{head}")(x))
        return jnp.stack(scores, axis=2).astype(jnp.float32)


def fresh(heads: MedusaHeads, target: PyTree) -> PyTree:
    """Weights to train from: every head scores as the target's own does, as in the authors' code.

    Args:
        heads: the module.
        target: params of the model that it will draft for.
    """
    held = target["params"]
    scores = jnp.asarray(held.get("head", held["embed"]), heads.param_dtype).T
    zero = jnp.zeros((heads.features, heads.features), heads.param_dtype)
    params = {}
    for head in range(heads.num_heads):
        params[f"head_{head}"] = {"kernel": jnp.copy(scores)}
        for layer in range(heads.config.num_layers):
            params[f"block_{head}_{layer}"] = {"kernel": jnp.copy(zero), "bias": zero[0].copy()}
    return params
