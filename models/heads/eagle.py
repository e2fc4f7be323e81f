"""EAGLE's draft head (Li et al. 2024): a layer from state and token to state."""

from dataclasses import dataclass

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.memory import KVCache, TreeKV
from jspec.models import attention
from jspec.models.heads.base import TransformerHead
from jspec.models.linear import Linear, unembed
from jspec.models.llama import Block, LlamaConfig
from jspec.types import Output, PyTree


@dataclass(frozen=True)
class EAGLEConfig(LlamaConfig):
    """Shape of the layer, and of what it scores."""

    hot_tokens: int = 0
    own_embed: bool = False
    own_head: bool = False


class EAGLEHead(TransformerHead):
    """Maps EAGLE-1 and EAGLE-2.

    Its states live where the target's head reads them, after the final norm. So the layer has no
    norm at its entrance, and its output goes to the target's head as it is. Tokens that it does not
    score get -inf; the collection `scored` names them, if these are not all.
    """

    config: EAGLEConfig

    @nn.nowrap
    def hot(self, params: PyTree) -> Int[Array, " d"] | None:
        return params["scored"]["ids"] if self.config.hot_tokens else None

    def setup(self):
        super().setup()
        dtypes = self.dtype, self.param_dtype
        self.fuse = Linear(self.config.hidden_size, True, *dtypes)
        self.layer = Block(self.config, *dtypes, input_norm=False)
        if self.config.hot_tokens:
            self.ids = self.variable("scored", "ids", jnp.arange, self.config.hot_tokens)

    def __call__(
        self,
        hidden: Float[Array, "B N E"],
        tokens: Int[Array, "B N"],
        positions: Int[Array, "B N"],
        mask: Bool[Array, "B N M+N"],
        memory: KVCache | None = None,
        nodes: TreeKV | None = None,
    ) -> Output:
        pair = jnp.concatenate([self.embed(tokens), hidden.astype(self.dtype)], axis=-1)
        past = attention.past(memory, nodes, 0)
        x, k, v = self.layer(self.fuse(pair), positions, mask, past)
        return Output(logits=self.logits(x), hidden=x, tentative=TreeKV((k,), (v,)))

    def logits(self, hidden: Float[Array, "B N E"]) -> Float[Array, "B N V"]:
        """Returns the target's scores after states, -inf for tokens that it does not score."""
        if not self.config.hot_tokens:
            return super().logits(hidden)
        scores = self.hot_scores(hidden)
        wide = jnp.full((*scores.shape[:-1], self.vocab_size), -jnp.inf, scores.dtype)
        return wide.at[..., self.ids.value].set(scores, unique_indices=True)

    def hot_scores(
        self, hidden: Float[Array, "B N E"], tokens: Int[Array, "B N"] | None = None
    ) -> Float[Array, "B N d"]:
        """Returns the scores of the hot tokens, whatever is before: these states know it."""
        del tokens
        # Gathered once for decoding, see `base.gather_hot`.
        has_rows = self.has_variable("hot", "head")
        rows = self.get_variable("hot", "head") if has_rows else self.hot_rows()["head"]
        return unembed(hidden.astype(self.dtype), rows)

    def hot_rows(self) -> dict[str, Array]:
        """Returns the rows of the head that it scores by, one behind the other."""
        return {"head": self.unembedding[self.ids.value]}
