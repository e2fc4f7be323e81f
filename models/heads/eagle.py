"""EAGLE's draft head (Li et al. 2024): one transformer layer from state and token to next state."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.base import Cache, Output, TreeKV
from jspec.models import attention
from jspec.models.heads.base import TransformerHead
from jspec.models.linear import Linear
from jspec.models.llama import Block


class EAGLEHead(TransformerHead):
    """EAGLE-1 and EAGLE-2.

    Its states live where the target's head reads them, after the final norm. So the layer has no
    norm at its entrance, and its output goes to the target's head as it is.
    """

    def setup(self):
        super().setup()
        dtypes = self.dtype, self.param_dtype
        self.fuse = Linear(self.config.hidden_size, True, *dtypes)
        self.layer = Block(self.config, *dtypes, input_norm=False)

    def __call__(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        cache: Cache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        pair = jnp.concatenate([self.embed(tokens), hidden.astype(self.dtype)], axis=-1)
        past = attention.past(cache, nodes, 0)
        x, k, v = self.layer(self.fuse(pair), positions, mask, past)
        return Output(logits=self.logits(x), hidden=x, keys=(k,), values=(v,))
