"""What draft heads of one transformer layer share: their shape, and what they borrow."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec import cache as caches
from jspec.base import Cache, Output, TreeKV
from jspec.models.llama import LlamaConfig


class Head(nn.Module):
    """A `jspec.base.DraftHead` that borrows embedding and scores from its target.

    The variables' collection `target` holds the target's own arrays, which are neither trained nor
    saved with the head.

    Args:
        config: shape of the layer; vocabulary and width are the target's.
        dtype: of activations and cache.
        param_dtype: that weights are created in.
    """

    config: LlamaConfig
    dtype: Any = jnp.float32
    param_dtype: Any = jnp.float32

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context(self) -> int:
        return self.config.context

    @property
    def hidden_size(self) -> int:
        return self.config.hidden_size

    @property
    def features(self) -> int:
        return self.config.hidden_size

    def init_cache(self, batch: int, slots: int) -> Cache:
        config = self.config
        return caches.init(batch, slots, 1, config.num_kv_heads, config.head_dim, self.dtype)

    def setup(self):
        shape = (self.config.vocab_size, self.config.hidden_size)
        self.target_embed = self.variable("target", "embed", jnp.zeros, shape, self.param_dtype)
        self.target_head = self.variable("target", "head", jnp.zeros, shape, self.param_dtype)

    def embed(self, tokens: Int[Array, "B N"]) -> Float[Array, "B N E"]:
        """The target's embedding of tokens."""
        return self.target_embed.value[tokens].astype(self.dtype)

    def logits(self, hidden: Float[Array, "... E"]) -> Float[Array, "... V"]:
        """The target's scores after states."""
        head = self.target_head.value.astype(self.dtype)
        return jnp.einsum(
            "...e,ve->...v", hidden.astype(self.dtype), head, preferred_element_type=jnp.float32
        )

    def further(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        cache: Cache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        """The steps after the first, from states that the head predicted."""
        return self(hidden, tokens, positions, mask, cache, nodes)

    def inform(
        self, logits: Float[Array, "B N V"], tokens: Int[Array, "B N"]
    ) -> Float[Array, "B N V"]:
        """The scores of what follows each token, where the states do not know it yet."""
        del tokens
        return logits
