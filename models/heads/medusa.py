"""Medusa's heads (Cai et al. 2024): tokens at several offsets from one state."""

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec._validate.errors import InputError
from jspec.models import blocks
from jspec.models.linear import Linear, product, unembed
from jspec.types import PyTree

_MOST_BLOCKS = 1024


@dataclass(frozen=True)
class MedusaConfig:
    """Shape of the heads; vocabulary and width are the target's."""

    vocab_size: int
    hidden_size: int
    num_heads: int = 4
    num_layers: int = 1
    hot_tokens: int = 0

    def __post_init__(self):
        if not 0 <= self.hot_tokens <= self.vocab_size:
            raise InputError(
                f"hot_tokens of the Medusa heads is {self.hot_tokens}; use at most the "
                f"{self.vocab_size} tokens of the vocabulary, or 0"
            )
        for name in ("vocab_size", "hidden_size", "num_heads", "num_layers"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"{name} of the Medusa heads is {value}; it has to be at least 1")
        if (count := self.num_heads * self.num_layers) > _MOST_BLOCKS:
            raise InputError(
                f"the Medusa heads have {count} residual blocks; use at most {_MOST_BLOCKS}"
            )


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W starts at zero, so that a new head is nearly the target's own."""

    dtype: Any
    param_dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "... E"]) -> Float[Array, "... E"]:
        width = x.shape[-1]
        weight = self.param("weight", nn.initializers.zeros, (width, width), self.param_dtype)
        bias = self.param("bias", nn.initializers.zeros, (width,), self.param_dtype)
        moved = product(x, weight.astype(self.dtype))
        return x + nn.silu(moved + jnp.broadcast_to(bias.astype(self.dtype), moved.shape))


class MedusaHeads(nn.Module):
    """Head i scores, from the state at position j, the token at j + 2 + i; head 0 is the first.

    The target's own head scores the token at j + 1, so Medusa has none for it.

    With hot tokens there are two collections alongside `params`: `target` holds the target's own
    head, and `scored` the ids of the tokens that the heads score.

    Example:
        >>> heads = MedusaHeads(MedusaConfig(49152, 576, num_heads=4, hot_tokens=8192))
        >>> heads.num_heads, heads.num_scored
        (4, 8192)
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

    @property
    def num_scored(self) -> int:
        """The number d of tokens that the heads score."""
        return self.config.hot_tokens or self.config.vocab_size

    @nn.nowrap
    def scored(self, params: PyTree) -> Int[Array, " d"]:
        """Returns the tokens that the heads score."""
        return params["scored"]["ids"] if self.config.hot_tokens else jnp.arange(self.vocab_size)

    @nn.compact
    def __call__(self, hidden: Float[Array, "B N E"]) -> Float[Array, "B N K d"]:
        """Scores of K heads."""
        config, dtypes = self.config, (self.dtype, self.param_dtype)
        if config.hot_tokens:
            table = (config.vocab_size, config.hidden_size)
            self.variable("target", "head", jnp.zeros, table, self.param_dtype)
            self.variable("scored", "ids", jnp.arange, config.hot_tokens)
            # Gathered once for decoding, see `base.gather_hot`.
            has_rows = self.has_variable("hot", "head")
            rows = self.get_variable("hot", "head") if has_rows else self.hot_rows()["head"]
        scores = []
        for head in range(config.num_heads):
            x = hidden.astype(self.dtype)
            for layer in range(config.num_layers):
                x = ResBlock(*dtypes, name=f"block_{head}_{layer}")(x)
            if config.hot_tokens:
                scores.append(unembed(x, rows))
            else:
                scores.append(Linear(config.vocab_size, False, *dtypes, name=f"head_{head}")(x))
        return jnp.stack(scores, axis=2).astype(jnp.float32)

    def hot_rows(self) -> dict[str, Array]:
        """Returns the rows of the target's head that the heads score by, one behind the other."""
        table, ids = self.get_variable("target", "head"), self.get_variable("scored", "ids")
        return {"head": table[ids]}


def fresh(heads: MedusaHeads, target: PyTree) -> PyTree:
    """Returns initial weights: every head scores like the target's own.

    Args:
        heads: to train.
        target: the params of their target.
    """
    weights = target["params"]
    head = blocks.table(weights.get("head", weights["embed"]), heads.features)
    scores = jnp.asarray(head, heads.param_dtype)
    zero = jnp.zeros((heads.features, heads.features), heads.param_dtype)
    params = {}
    for head in range(heads.num_heads):
        if not heads.config.hot_tokens:
            params[f"head_{head}"] = {"weight": jnp.copy(scores)}
        for layer in range(heads.config.num_layers):
            params[f"block_{head}_{layer}"] = {"weight": jnp.copy(zero), "bias": zero[0].copy()}
    return params
