"""The base of networks of transformer blocks: their sizes, and a cache of these."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jspec import cache as caches
from jspec.base import Cache


class Decoder(nn.Module):
    """A stack of transformer blocks whose config names its sizes as the field does.

    Args:
        config: its shape, a frozen dataclass.
        dtype: dtype of activations and cache. Logits, softmax and norms are float32.
        param_dtype: dtype that weights are created in; loaded weights keep their own.
    """

    config: Any
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @property
    def vocab_size(self) -> int:
        """V, number of tokens in the vocabulary."""
        return self.config.vocab_size

    @property
    def context(self) -> int:
        """Most positions that the network can place."""
        return self.config.context

    @property
    def hidden_size(self) -> int:
        """E, width of the states between the blocks."""
        return self.config.hidden_size

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    def init_cache(self, batch: int, slots: int) -> Cache:
        """An empty cache of `slots` tokens a row."""
        config = self.config
        return caches.init(
            batch, slots, self.num_layers, config.num_kv_heads, config.head_dim, self.dtype
        )
